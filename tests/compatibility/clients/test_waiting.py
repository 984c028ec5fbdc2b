"""A consumer at the end of a partition: data comes at once when there is some, and nothing happens while there is none.

Requests are counted where they pass, in a proxy between client and broker.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition as KafkaPythonPartition

from tests.compatibility.clients.aiokafka_client import AiokafkaClient
from tests.compatibility.clients.client import CALL_SECONDS_MAX, NOW
from tests.compatibility.clients.confluent_client import ConfluentClient
from tests.compatibility.clients.conftest import topic_name
from tests.compatibility.clients.kafka_python_client import KafkaPythonClient
from tests.compatibility.clients.proxy import RecordingProxy
from tests.compatibility.kafka_records import SentRecord
from tidelog.testing import Broker
from tidelog.wire.protocol import ApiKey

# A fetch that finds nothing is to wait this long; far longer than a record may take.
WAIT_MS = 5_000
IDLE_SECONDS = 2.0
ARRIVAL_SECONDS_MAX = 2.0

# Waits for one record, from the end of the topic's only partition on; calls back once it does.
WaitForOne = Callable[[str, str, Callable[[], None]], bytes]


@pytest.fixture(scope="module")
def proxy() -> Iterator[RecordingProxy]:
    with RecordingProxy() as proxy:
        configs = {"advertised.listeners": f"PLAINTEXT://{proxy.bootstrap_servers}"}
        with Broker(configs=configs) as broker:
            proxy.target_port = broker.port
            yield proxy


@pytest.fixture
def topic(proxy: RecordingProxy, request: pytest.FixtureRequest) -> str:
    name = topic_name(request.node.name)
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(CALL_SECONDS_MAX)
    return name


def confluent_waits(bootstrap_servers: str, topic: str, on_waiting: Callable[[], None]) -> bytes:
    settings = {"fetch.wait.max.ms": WAIT_MS, "socket.timeout.ms": 60_000}
    with closing(ConfluentClient(bootstrap_servers).consumer(**settings)) as consumer:
        consumer.assign([ConfluentPartition(topic, 0, 0)])
        consumer.poll(0)
        on_waiting()
        message = consumer.poll(CALL_SECONDS_MAX)
        return bytes(message.value())


def kafka_python_waits(bootstrap_servers: str, topic: str, on_waiting: Callable[[], None]) -> bytes:
    with closing(KafkaPythonClient(bootstrap_servers).consumer(fetch_max_wait_ms=WAIT_MS)) as consumer:
        where = KafkaPythonPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 0)
        on_waiting()
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while time.monotonic() < deadline:
            for records in consumer.poll(WAIT_MS).values():
                return bytes(records[0].value)
        raise TimeoutError


def aiokafka_waits(bootstrap_servers: str, topic: str, on_waiting: Callable[[], None]) -> bytes:
    async def wait() -> bytes:
        from aiokafka import TopicPartition

        async with AiokafkaClient(bootstrap_servers).consumer(fetch_max_wait_ms=WAIT_MS) as consumer:
            where = TopicPartition(topic, 0)
            consumer.assign([where])
            consumer.seek(where, 0)
            on_waiting()
            record: Any = await asyncio.wait_for(consumer.getone(), CALL_SECONDS_MAX)
            return bytes(record.value)

    return asyncio.run(wait())


@pytest.mark.parametrize("wait_for_one", [confluent_waits, kafka_python_waits, aiokafka_waits])
def test_waits_without_a_stir_and_hears_of_data_at_once(wait_for_one: WaitForOne, proxy: RecordingProxy, topic: str) -> None:
    fetches_before = proxy.count(ApiKey.FETCH)
    idle_fetches: list[int] = []
    sent_at: list[float] = []

    def send_once_it_waits() -> None:
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while proxy.count(ApiKey.FETCH) == fetches_before and time.monotonic() < deadline:
            time.sleep(0.01)
        # Idle for a while: that is the thing under test.
        time.sleep(IDLE_SECONDS)
        idle_fetches.append(proxy.count(ApiKey.FETCH) - fetches_before)
        sent_at.append(time.monotonic())
        ConfluentClient(proxy.bootstrap_servers).send(topic, [SentRecord(None, b"news", NOW)])

    sender = threading.Thread(target=send_once_it_waits)
    value = wait_for_one(proxy.bootstrap_servers, topic, sender.start)
    arrived_at = time.monotonic()
    sender.join()

    assert value == b"news"
    assert arrived_at - sent_at[0] < ARRIVAL_SECONDS_MAX
    # The one that waits; clients that open a fetch session, or look around first, send a second.
    assert 1 <= idle_fetches[0] <= 2
