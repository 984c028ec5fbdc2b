"""The toolkit's ``TopicPartition``, and its conversion to confluent-kafka's objects and back."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import confluent_kafka

from tidelog.client.errors import InvalidArgument


class TopicPartition(NamedTuple):
    """One partition of a topic: ``topic, partition = assigned[0]``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def partition_of(raw: Any) -> TopicPartition:
    """The partition that a confluent_kafka.TopicPartition names."""
    return TopicPartition(raw.topic, raw.partition)


def raw_partitions(partitions: Iterable[tuple[str, int]]) -> list[Any]:
    return [confluent_kafka.TopicPartition(topic, partition) for topic, partition in partitions]


def raw_offsets(offsets: Iterable[tuple[tuple[str, int], int]]) -> list[Any]:
    """confluent_kafka.TopicPartition objects that carry an offset each: pass ``mapping.items()``."""
    return [confluent_kafka.TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets]


def milliseconds_of(timestamp: int | datetime) -> int:
    """Milliseconds since 1970. A datetime without a time zone is refused, because it does not name a moment."""
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise InvalidArgument("a timestamp is milliseconds or a datetime with a zone: datetime.now(UTC)")
        return int(timestamp.timestamp() * 1000)
    if isinstance(timestamp, bool) or not isinstance(timestamp, int) or timestamp < 0:
        raise InvalidArgument(f"a timestamp is milliseconds since 1970 or a datetime with a zone: not {timestamp!r}")
    return timestamp
