"""Where reading starts in partitions that have just been assigned, and offsets by time.

A fresh group (no committed offset in that partition) starts at the earliest message, which librdkafka does by itself. For
``latest`` and for a timestamp the offset is asked for here and **committed at once**: otherwise a member that dies before its
first commit would leave no trace, and the next one would start at a later end and skip what came in between.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException, TopicPartition

from tidelog.client.consumer_settings import Start
from tidelog.client.errors import from_kafka_error
from tidelog.client.topic_partition import Partition, partition_of, raw_partitions


class OffsetLookup:
    """Questions about offsets; each is one request per broker for any number of partitions."""

    __slots__ = ("_addresses", "_handle")

    def __init__(self, handle: Any, addresses: str) -> None:
        self._handle = handle
        self._addresses = addresses

    def beginnings(self, partitions: Iterable[Partition], timeout: float) -> dict[Partition, int]:
        """The offsets of the oldest messages that are kept."""
        return self._ask(partitions, OFFSET_BEGINNING, timeout)

    def ends(self, partitions: Iterable[Partition], timeout: float) -> dict[Partition, int]:
        """The offsets after the last message that may be read: with read_committed the last stable offset."""
        return self._ask(partitions, OFFSET_END, timeout)

    def at(self, partitions: Iterable[Partition], timestamp_ms: int, timeout: float) -> dict[Partition, int]:
        """The offsets of the first messages of that time or later; the end where there is none."""
        partitions = list(partitions)
        found = self._ask(partitions, timestamp_ms, timeout)
        beyond = [partition for partition, offset in found.items() if offset < 0]
        return {**found, **self.ends(beyond, timeout)} if beyond else found

    def committed(self, partitions: Iterable[Partition], timeout: float) -> dict[Partition, int]:
        """Of the group; partitions where nothing is committed are left out."""
        raw = raw_partitions(partitions)
        if not raw:
            return {}
        try:
            answer = self._handle.committed(raw, timeout=timeout)
        except KafkaException as error:
            raise from_kafka_error(error.args[0], "committed offsets", self._addresses) from error
        return {partition: offset for partition, offset in self._checked(answer, "committed offsets").items() if offset >= 0}

    def _ask(self, partitions: Iterable[Partition], time_or_place: int, timeout: float) -> dict[Partition, int]:
        raw = [TopicPartition(topic, partition, time_or_place) for topic, partition in partitions]
        if not raw:
            return {}
        try:
            answer = self._handle.offsets_for_times(raw, timeout=timeout)
        except KafkaException as error:
            what = f"offsets of {', '.join(sorted({partition.topic for partition in raw}))}"
            raise from_kafka_error(error.args[0], what, self._addresses) from error
        return self._checked(answer, "offsets")

    def _checked(self, answer: Sequence[Any], what: str) -> dict[Partition, int]:
        for raw in answer:
            if raw.error is not None:
                raise from_kafka_error(raw.error, f"{what} of {raw.topic}[{raw.partition}]", self._addresses)
        return {partition_of(raw): raw.offset for raw in answer}


def start_offsets(lookup: OffsetLookup, partitions: Iterable[Partition], start: Start, timeout: float) -> dict[Partition, int]:
    """Where ``start`` is in each partition, as offsets."""
    if start.is_earliest:
        return lookup.beginnings(partitions, timeout)
    if start.timestamp_ms is not None:
        return lookup.at(partitions, start.timestamp_ms, timeout)
    return lookup.ends(partitions, timeout)
