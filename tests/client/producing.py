"""What the tests of producers share: topics of their own, and reading back with confluent-kafka alone."""

import secrets
from collections.abc import Mapping
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.toolkit_broker import ToolkitBroker, create_topic

READ_SECONDS_MAX = 120.0
# An end that does not come (the last offset of a transaction is its marker) is believed after this long without a message.
QUIET_SECONDS = 0.5


def new_topic(kafka: ToolkitBroker, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    return create_topic(kafka.bootstrap, f"topic-{secrets.token_hex(4)}", partitions=partitions, config=config)


def read(kafka: ToolkitBroker, topic: str, count: int | None, *, isolation: str = "read_committed") -> list[Any]:
    """``count`` messages (None: as many as there are) and no more may come: confluent_kafka.Message, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "reading-back",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    partitions = len(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[Any] = []
    ends: set[int] = set()
    deadline = monotonic() + READ_SECONDS_MAX
    try:
        while (len(found) < (count or 0) or len(ends) < partitions) and monotonic() < deadline:
            for message in consumer.consume(1000, timeout=QUIET_SECONDS):
                if message.error() is None:
                    found.append(message)
                    ends.discard(message.partition())
                else:
                    ends.add(message.partition())
    finally:
        consumer.close()
    assert count is None or len(found) == count, (
        f"{len(found)} messages, not {count}: {[message.value() for message in found[:20]]}"
    )
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def values(messages: list[Any]) -> list[bytes | None]:
    return [message.value() for message in messages]
