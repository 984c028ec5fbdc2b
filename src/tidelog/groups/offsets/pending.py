"""Offsets that transactions committed, until their markers come.

A producer's offsets wait here by its id. Several transactions may be open on one partition; what counts in the end is the commit
that stands last in the log, whichever marker comes first. So a commit that takes effect supersedes the pending ones before it:
those stay, because the partition is unstable until their markers, but with no value left to apply.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.groups.records import OffsetCommitValue
from tidelog.records.topic_partition import TopicPartition


class PendingOffset(NamedTuple):
    group: str
    topic: str
    partition: int
    record_offset: int
    """Where its record stands in the log."""
    value: OffsetCommitValue | None
    """None once it is superseded."""


class PendingOffsets:
    __slots__ = ("_by_group", "_by_producer")

    def __init__(self) -> None:
        # Producer id -> what waits for its marker.
        self._by_producer: dict[int, dict[tuple[str, str, int], PendingOffset]] = {}
        # Group -> (topic, partition) -> the producers whose transactions are open on it.
        self._by_group: dict[str, dict[TopicPartition, dict[int, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def has_group(self, group: str) -> bool:
        return group in self._by_group

    def has(self, group: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._by_group.get(group, ())

    def partitions_of(self, group: str) -> list[TopicPartition]:
        return list(self._by_group.get(group, ()))

    def groups(self) -> Iterator[str]:
        return iter(self._by_group)

    def topics_of(self, group: str) -> list[str]:
        return list(dict.fromkeys(topic for topic, _ in self._by_group.get(group, ())))

    def values_of(self, group: str, topic: str) -> list[tuple[int, OffsetCommitValue]]:
        """(partition, value) of what is pending on a topic."""
        return [
            (partition, pending.value)
            for (name, partition), producers in self._by_group.get(group, {}).items()
            if name == topic
            for producer_id in producers
            if (pending := self._by_producer[producer_id][group, topic, partition]).value is not None
        ]

    def add(self, producer_id: int, pending: PendingOffset) -> None:
        group, topic, partition = pending[:3]
        self._by_producer.setdefault(producer_id, {})[group, topic, partition] = pending
        self._by_group.setdefault(group, {}).setdefault((topic, partition), {})[producer_id] = None

    def supersede(self, group: str, topic: str, partition: int, record_offset: int) -> None:
        """A commit that stands at ``record_offset`` has taken effect."""
        for producer_id in self._by_group.get(group, {}).get((topic, partition), ()):
            offsets = self._by_producer[producer_id]
            pending = offsets[group, topic, partition]
            if pending.record_offset < record_offset:
                offsets[group, topic, partition] = pending._replace(value=None)

    def remove(self, group: str, topic: str, partition: int) -> None:
        """A tombstone: nothing is pending any more."""
        for producer_id in list(self._by_group.get(group, {}).get((topic, partition), ())):
            offsets = self._by_producer[producer_id]
            del offsets[group, topic, partition]
            if not offsets:
                del self._by_producer[producer_id]
            self._close(group, topic, partition, producer_id)

    def end(self, producer_id: int) -> list[PendingOffset]:
        """The transaction is over: what was pending, in the order of the commits."""
        offsets = self._by_producer.pop(producer_id, {})
        for group, topic, partition in offsets:
            self._close(group, topic, partition, producer_id)
        return list(offsets.values())

    def _close(self, group: str, topic: str, partition: int, producer_id: int) -> None:
        partitions = self._by_group[group]
        producers = partitions[topic, partition]
        del producers[producer_id]
        if not producers:
            del partitions[topic, partition]
            if not partitions:
                del self._by_group[group]
