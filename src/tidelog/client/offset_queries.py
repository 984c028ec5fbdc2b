"""The offsets that a consumer needs: ends, times, committed offsets, and where a group starts.

A fresh group (without a committed offset in the partition) starts at the earliest message, which librdkafka does by itself. For
``latest`` and for a timestamp the offset is looked up here and **committed at once**. Otherwise a member that dies before its
first commit would leave no trace, and the next one would start at a later end and skip the messages in between.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from tidelog.client.consumer_settings import StartPosition
from tidelog.client.errors import from_kafka_error, kafka_errors
from tidelog.client.topic_partition import TopicPartition, partition_of, raw_offsets, raw_partitions


class OffsetQueries:
    """Each query is one request per broker for any number of partitions."""

    __slots__ = ("_addresses", "_handle")

    def __init__(self, handle: Any, addresses: str) -> None:
        self._handle = handle
        self._addresses = addresses

    def beginnings(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The offsets of the oldest messages."""
        return self._ask(partitions, OFFSET_BEGINNING, timeout)

    def ends(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The offsets after the last message that may be read: with read_committed the last stable offset."""
        return self._ask(partitions, OFFSET_END, timeout)

    def at(self, partitions: Iterable[TopicPartition], timestamp_ms: int, timeout: float) -> dict[TopicPartition, int]:
        """The offsets of the first messages of that time or later; the end if there is no such message."""
        partitions = list(partitions)
        found = self._ask(partitions, timestamp_ms, timeout)
        beyond = [partition for partition, offset in found.items() if offset < 0]
        return {**found, **self.ends(beyond, timeout)} if beyond else found

    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out."""
        raw = raw_partitions(partitions)
        if not raw:
            return {}
        with kafka_errors("committed offsets", self._addresses):
            answer = self._handle.committed(raw, timeout=timeout)
        return {partition: offset for partition, offset in self._checked(answer, "committed offsets").items() if offset >= 0}

    def _ask(self, partitions: Iterable[TopicPartition], time_or_place: int, timeout: float) -> dict[TopicPartition, int]:
        raw = raw_offsets((partition, time_or_place) for partition in partitions)
        if not raw:
            return {}
        with kafka_errors(f"offsets of {', '.join(sorted({partition.topic for partition in raw}))}", self._addresses):
            answer = self._handle.offsets_for_times(raw, timeout=timeout)
        return self._checked(answer, "offsets")

    def _checked(self, answer: Sequence[Any], what: str) -> dict[TopicPartition, int]:
        for raw in answer:
            if raw.error is not None:
                raise from_kafka_error(raw.error, f"{what} of {raw.topic}[{raw.partition}]", self._addresses)
        return {partition_of(raw): raw.offset for raw in answer}


def start_offsets(
    queries: OffsetQueries, partitions: Iterable[TopicPartition], start: StartPosition, timeout: float
) -> dict[TopicPartition, int]:
    """The offset of ``start`` in each partition."""
    if start.is_earliest:
        return queries.beginnings(partitions, timeout)
    if start.timestamp_ms is not None:
        return queries.at(partitions, start.timestamp_ms, timeout)
    return queries.ends(partitions, timeout)
