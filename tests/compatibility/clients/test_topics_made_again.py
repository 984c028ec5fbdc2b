"""A topic is deleted and made again under the same name while producers and consumers are at it.

Each message says in its value in which life of the topic it was sent. One that was sent late in a life may be refused, or arrive
in the next; what was acknowledged before a topic was deleted must not come up in its successor.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compatibility.clients.aiokafka_client import AiokafkaClient
from tests.compatibility.clients.client import CALL_SECONDS_MAX
from tests.compatibility.clients.confluent_client import ConfluentClient
from tests.compatibility.clients.conftest import topic_name
from tests.compatibility.clients.kafka_python_client import KafkaPythonClient
from tests.compatibility.clients.waiting import wait_until
from tests.compatibility.kafka_records import ReadRecord
from tidelog.testing import Broker

LIVES = 4
# How many acknowledged messages each life of the topic must have before it is ended.
MESSAGES_MIN = 50


class Load:
    """What a producer did: for each acknowledged message, in which life it was sent and where it came to lie."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.life = 0
        self.is_over = False
        self.number = 0
        self.acknowledged: list[tuple[int, int, bytes]] = []
        """Life at the time of the acknowledgement, offset, value."""

    def next_value(self) -> bytes:
        self.number += 1
        return f"{self.life} {self.number}".encode()

    def acknowledge(self, offset: int, value: bytes) -> None:
        self.acknowledged.append((self.life, offset, value))

    def count(self, life: int) -> int:
        return sum(1 for at_life, _, _ in list(self.acknowledged) if at_life == life)


def confluent_produces(bootstrap_servers: str, load: Load) -> None:
    settings = {"acks": "all", "topic.metadata.refresh.interval.ms": 500, "allow.auto.create.topics": False, "linger.ms": 1}
    producer = ConfluentClient(bootstrap_servers).producer(**settings)

    def deliver(error: Any, message: Any) -> None:
        if error is None:
            load.acknowledge(message.offset(), message.value())

    while not load.is_over:
        producer.produce(load.topic, load.next_value(), partition=0, on_delivery=deliver)
        producer.poll(0.002)
    producer.purge()
    producer.flush(CALL_SECONDS_MAX)


def kafka_python_produces(bootstrap_servers: str, load: Load) -> None:
    settings = {
        "allow_auto_create_topics": False,
        "metadata_max_age_ms": 500,
        "delivery_timeout_ms": 5_000,
        "max_block_ms": 2_000,
    }
    with closing(
        KafkaPythonClient(bootstrap_servers).producer(**settings, request_timeout_ms=2_000, linger_ms=0, acks="all")
    ) as producer:
        while not load.is_over:
            value = load.next_value()
            try:
                load.acknowledge(producer.send(load.topic, value, partition=0).get(10).offset, value)
            except Exception:
                continue  # The topic is away: try again. What matters is that it goes on once it is there.


def aiokafka_produces(bootstrap_servers: str, load: Load) -> None:
    async def produce() -> None:
        settings = {"acks": "all", "metadata_max_age_ms": 500, "request_timeout_ms": 2_000, "retry_backoff_ms": 50}
        async with AiokafkaClient(bootstrap_servers).producer(**settings) as producer:
            while not load.is_over:
                value = load.next_value()
                try:
                    sent = await asyncio.wait_for(producer.send_and_wait(load.topic, value, partition=0), 10)
                except Exception:
                    await asyncio.sleep(0.02)
                else:
                    load.acknowledge(sent.offset, value)

    asyncio.run(produce())


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Broker]:
    """It makes no topics by itself: a late producer must not bring a deleted one back."""
    with Broker(configs={"auto.create.topics.enable": False}) as broker:
        yield broker


@contextmanager
def running(produce: Callable[[str, Load], None], bootstrap_servers: str, load: Load) -> Iterator[None]:
    thread = threading.Thread(target=produce, args=(bootstrap_servers, load))
    thread.start()
    try:
        yield
    finally:
        load.is_over = True
        thread.join()


@pytest.mark.parametrize("produce", [confluent_produces, kafka_python_produces, aiokafka_produces])
def test_deleted_and_made_again_under_load(produce: Callable[[str, Load], None], strict_broker: Broker) -> None:
    client = ConfluentClient(strict_broker.bootstrap_servers)
    admin = _admin(strict_broker)
    load = Load(topic_name(f"again-{produce.__name__}"))
    # Values that were acknowledged before the topic was deleted for the last time.
    gone: set[bytes] = set()
    _create(admin, load.topic)

    with running(produce, strict_broker.bootstrap_servers, load):
        for life in range(LIVES):
            wait_until(lambda: load.count(load.life) >= MESSAGES_MIN, f"{MESSAGES_MIN} messages in life {life} of the topic")
            if life < LIVES - 1:
                gone = {value for _, _, value in list(load.acknowledged)}
                admin.delete_topics([load.topic])[load.topic].result(CALL_SECONDS_MAX)
                _create(admin, load.topic)
                load.life += 1

    in_last_life = client.read(load.topic, client.watermarks(load.topic).end_offset)
    assert [record.offset for record in in_last_life] == list(range(len(in_last_life)))
    assert not gone & {record.value for record in in_last_life}
    _check_told(load, in_last_life)
    assert not [event for event in strict_broker.events if event["event"] == "unexpected_error"]


def _check_told(load: Load, in_last_life: list[ReadRecord]) -> None:
    """What was sent in the last life and acknowledged lies where its sender was told."""
    at = {record.value: record.offset for record in in_last_life}
    told = [(offset, value) for _, offset, value in load.acknowledged if value.startswith(b"%d " % (LIVES - 1))]
    assert told
    assert [(at.get(value), value) for _, value in told] == told


def _create(admin: Any, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(CALL_SECONDS_MAX)


def _admin(broker: Broker) -> Any:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def test_consumer_hears_that_its_topic_is_gone_and_reads_the_new_one(strict_broker: Broker) -> None:
    """By topic id: librdkafka must not take up the new topic at the old one's offset."""
    admin, topic = _admin(strict_broker), topic_name("again-consumed")
    client = ConfluentClient(strict_broker.bootstrap_servers)
    _create(admin, topic)
    producer = client.producer()
    for number in range(10):
        producer.produce(topic, f"old {number}".encode(), partition=0)
    producer.flush(CALL_SECONDS_MAX)

    settings = {"auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 200}
    with closing(client.consumer(**settings)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        old = [consumer.poll(CALL_SECONDS_MAX).value() for _ in range(10)]
        admin.delete_topics([topic])[topic].result(CALL_SECONDS_MAX)
        _create(admin, topic)
        for number in range(3):
            producer.produce(topic, f"new {number}".encode(), partition=0)
        producer.flush(CALL_SECONDS_MAX)
        new: list[bytes] = []

        def read_new() -> bool:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                new.append(message.value())
            return len(new) == 3

        wait_until(read_new, "the new topic's messages")

    assert old == [f"old {number}".encode() for number in range(10)]
    assert new == [f"new {number}".encode() for number in range(3)]
