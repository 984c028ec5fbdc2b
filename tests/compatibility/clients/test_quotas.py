"""Real clients that are over their quotas: they hear of it, they are held, and everything arrives."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from tests.compatibility.kafka_client import admin_client, create_topic
from tidelog.client.quotas import QuotaAdmin
from tidelog.testing import Broker

KIB = 1024
RATE = 200 * KIB
MESSAGE, MESSAGES = bytes(10 * KIB), 60
BATCH_BYTES = 32 * KIB
# One whole sample and the one that has begun, so that a second's worth is all that may come at once.
CONFIGS = {"quota.window.num": 2}
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(configs=CONFIGS) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"quotas-{uuid.uuid4().hex}"
    create_topic(admin_client(broker.bootstrap_servers), name)
    return name


@pytest.fixture
def client_id(broker: Broker) -> str:
    """With a quota both ways."""
    name = f"client-{uuid.uuid4().hex}"
    with QuotaAdmin(broker.bootstrap_servers) as admin:
        admin.alter({"client-id": name}, {"producer_byte_rate": RATE, "consumer_byte_rate": RATE})
    return name


def seconds_of(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


# What is left when the first second's worth is free.
SECONDS_MIN = len(MESSAGE) * MESSAGES / RATE - 1.2


def test_confluent_kafka_is_told_and_held(broker: Broker, topic: str, client_id: str) -> None:
    told: list[Any] = []
    settings = {"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id, "throttle_cb": told.append}
    producer = Producer({**settings, "batch.size": BATCH_BYTES, "linger.ms": 50})
    failures: list[Any] = []

    def note_failure(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    def produce() -> None:
        for _ in range(MESSAGES):
            producer.produce(topic, MESSAGE, on_delivery=note_failure)
        assert producer.flush(WAIT_SECONDS) == 0

    assert seconds_of(produce) >= SECONDS_MIN
    assert failures == []
    assert any(event.throttle_time > 0 for event in told)
    told.clear()
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest", "fetch.message.max.bytes": BATCH_BYTES})
    consumer.subscribe([topic])

    def consume() -> None:
        deadline, count = time.monotonic() + WAIT_SECONDS, 0
        while count < MESSAGES:
            assert time.monotonic() < deadline
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None
                count += 1

    assert seconds_of(consume) >= SECONDS_MIN
    assert any(event.throttle_time > 0 for event in told)
    consumer.close()


def test_kafka_python_is_held(broker: Broker, topic: str, client_id: str) -> None:
    servers = broker.bootstrap_servers
    producer = KafkaProducer(bootstrap_servers=servers, client_id=client_id, batch_size=BATCH_BYTES)

    def produce() -> None:
        sent = [producer.send(topic, MESSAGE) for _ in range(MESSAGES)]
        for each in sent:
            each.get(WAIT_SECONDS)

    assert seconds_of(produce) >= SECONDS_MIN
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        client_id=client_id,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=BATCH_BYTES,
        consumer_timeout_ms=int(WAIT_SECONDS * 1000),
    )

    def consume() -> None:
        for number, _ in enumerate(consumer, start=1):
            if number == MESSAGES:
                return
        raise AssertionError("not all came")

    assert seconds_of(consume) >= SECONDS_MIN
    consumer.close()


def test_others_are_not_held(broker: Broker, topic: str, client_id: str) -> None:
    told: list[Any] = []
    settings = {"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id + "-not", "throttle_cb": told.append}
    producer = Producer(settings)
    for _ in range(MESSAGES):
        producer.produce(topic, MESSAGE)
    assert producer.flush(WAIT_SECONDS) == 0
    assert told == []
