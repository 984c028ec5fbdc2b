"""A partition by name, as the consumer's callers give and get it, and its way to confluent-kafka's objects and back."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from confluent_kafka import TopicPartition

from tidelog.client.errors import InvalidArgument


class Partition(NamedTuple):
    """One partition of a topic: ``topic, partition = assigned[0]``."""

    topic: str
    partition: int


def partition_of(raw: Any) -> Partition:
    """Of a confluent_kafka.TopicPartition."""
    return Partition(raw.topic, raw.partition)


def raw_partitions(partitions: Iterable[tuple[str, int]]) -> list[Any]:
    return [TopicPartition(topic, partition) for topic, partition in partitions]


def milliseconds_of(timestamp: int | datetime) -> int:
    """Since 1970; a datetime without a zone is refused: nobody knows which hour it means."""
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise InvalidArgument("a timestamp is milliseconds or a datetime with a zone: datetime.now(UTC)")
        return int(timestamp.timestamp() * 1000)
    if isinstance(timestamp, bool) or not isinstance(timestamp, int) or timestamp < 0:
        raise InvalidArgument(f"a timestamp is milliseconds since 1970 or a datetime with a zone: not {timestamp!r}")
    return timestamp
