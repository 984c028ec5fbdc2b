"""Clients against one running broker per test process; each test has topics of its own."""

import gc
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.compatibility.clients.aiokafka_client import AiokafkaClient
from tests.compatibility.clients.client import CALL_SECONDS_MAX, Client
from tests.compatibility.clients.confluent_client import ConfluentClient
from tests.compatibility.clients.kafka_python_client import KafkaPythonClient
from tests.compatibility.clients.kcat_client import KcatClient
from tests.compatibility.clients.kcat_program import reason_without_kcat
from tests.compatibility.clients.waiting import wait_until
from tidelog.testing import Broker

CLIENTS: dict[str, type[Client]] = {
    client.name: client for client in (ConfluentClient, KafkaPythonClient, AiokafkaClient, KcatClient)
}

# Retention and time-outs of transactions are looked at often. Members of groups may be given up soon, and are told to show signs
# of life often.
CONFIGS = {
    "log.retention.check.interval.ms": 200,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 4_000,
    "group.consumer.heartbeat.interval.ms": 500,
}

MakeTopic = Callable[..., str]
MakeClient = Callable[[str], Client]


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(configs=CONFIGS) as broker:
        yield broker
        unexpected = [event for event in broker.events if event["event"] in ("unexpected_error", "failed")]
        assert unexpected == []


@pytest.fixture(scope="session")
def admin(broker: Broker) -> Any:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


@pytest.fixture(scope="session")
def client_of(broker: Broker) -> MakeClient:
    """A client by its name; without its program the test is skipped."""

    @cache
    def find(name: str) -> Client:
        reason = reason_without_kcat() if name == KcatClient.name else None
        if reason is not None:
            pytest.skip(reason)
        return CLIENTS[name](broker.bootstrap_servers)

    return find


@pytest.fixture(params=list(CLIENTS))
def client(client_of: MakeClient, request: pytest.FixtureRequest) -> Client:
    """Each client in turn."""
    return client_of(request.param)


@pytest.fixture
def quiet_clients(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """kafka-python leaves the sockets of refused connections to the garbage collector. That must come before the next test, and
    before it nobody may keep them, such as records of its log."""
    for name in ("kafka", "aiokafka", "asyncio"):
        caplog.set_level(logging.CRITICAL, logger=name)
    yield
    gc.collect()


@pytest.fixture
def new_topic(admin: Any, request: pytest.FixtureRequest) -> MakeTopic:
    """Makes a topic named after the test and returns its name once the leaders of its partitions serve it.

    On several brokers a leader may hear of its partition after the creation is answered. Clients try again then, but with acks=0
    nobody tells them, and the records are lost, on Apache Kafka too.
    """

    def make(partitions: int = 1, configs: Mapping[str, object] | None = None) -> str:
        name = topic_name(request.node.name)
        texts = {key: str(value) for key, value in (configs or {}).items()}
        # As many replicas as the broker's settings say: one, or three on three brokers.
        admin.create_topics([NewTopic(name, partitions, -1, config=texts)])[name].result(CALL_SECONDS_MAX)
        wait_until(lambda: leaders_serve(admin, name, partitions), f"the leaders of {name}", CALL_SECONDS_MAX)
        return name

    return make


def leaders_serve(admin: Any, topic: str, partitions: int) -> bool:
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
    try:
        # librdkafka remembers for half a minute that a topic was unknown, and asks again only here.
        admin.list_topics(topic, timeout=CALL_SECONDS_MAX)
        for answer in admin.list_offsets(wanted, request_timeout=CALL_SECONDS_MAX).values():
            answer.result()
    except KafkaException:
        return False
    return True


def topic_name(test_name: str) -> str:
    """One that no other test has."""
    return f"{re.sub('[^a-zA-Z0-9]+', '-', test_name)[:100]}-{uuid.uuid4().hex[:8]}"
