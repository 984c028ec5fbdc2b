"""What the tests of consumers share: topics that are filled by confluent-kafka alone, and reading until something holds."""

import secrets
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from confluent_kafka import Producer

from tests.client.producing import new_topic
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.consumer import Consumer
from tidelog.client.message import Message

SECONDS_MAX = 120.0
# A member hears of a rebalance with its next heartbeat.
QUICK = {"heartbeat.interval.ms": 100}


def new_group() -> str:
    return f"group-{secrets.token_hex(4)}"


def fill(bootstrap: str, topic: str, values: Iterable[str], partition: int = 0, **fields: Any) -> None:
    """Each value acknowledged, in batches that are small also where the machine is busy: no consumer fetches less than one."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 1, "batch.num.messages": 1_000})
    for value in values:
        producer.produce(topic, value.encode(), partition=partition, **fields)
        producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0


def filled_topic(kafka: ToolkitBroker, count: int = 10, partitions: int = 1) -> str:
    """Each partition has the values "0", "1", ... at the offsets of the same number."""
    topic = new_topic(kafka, partitions)
    for partition in range(partitions):
        fill(kafka.bootstrap, topic, map(str, range(count)), partition)
    return topic


def read(consumer: Consumer, count: int, max_records: int = 500) -> list[Message]:
    """``count`` messages, not one more."""
    found: list[Message] = []
    read_on(consumer, found, count, max_records)
    return found


def read_on(consumer: Consumer, found: list[Message], count: int, max_records: int = 500) -> None:
    """Until there are ``count`` in ``found``, not one more."""

    def is_found() -> bool:
        if len(found) < count:
            found.extend(consumer.poll(min(max_records, count - len(found)), timeout=0.2))
        return len(found) >= count

    until(is_found)
    assert len(found) == count


def until(condition: Callable[[], object], seconds: float = SECONDS_MAX) -> None:
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, "it did not come about"


def texts(messages: Iterable[Message]) -> list[str | None]:
    return [message.text() for message in messages]


def read_together(consumers: list[Consumer], is_over: Callable[[], object]) -> list[Message]:
    """Poll them in turn until it is over; what came."""
    found: list[Message] = []

    def is_over_now() -> object:
        for consumer in consumers:
            found.extend(consumer.poll(timeout=0.02))
        return is_over()

    until(is_over_now)
    return found
