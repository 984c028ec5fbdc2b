"""The lag of groups as a command sees it: from outside, by asking twice where a rate is wanted.

``LagMeter`` remembers between two looks what a rate needs and which records' times it knows. The figures are those of
``tidelog.groups.lag``. When unread records are deleted is known from outside only by ``retention.ms`` and the record's own time:
not before that, and later by as much as its segment is young.
"""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tidelog.cli.groups_ages import RecordTimes
from tidelog.cli.groups_facts import Committed, Group, Member, Partition, Span, committed, retention_ms, spans
from tidelog.cli.kafka import Cluster
from tidelog.groups.lag import GroupPartitionLag, RateWindow, measure_lag, next_unread


class Row(NamedTuple):
    """One partition of a group. Without a committed offset, or without the topic, there is no lag."""

    topic: str
    partition: int
    committed: Committed | None
    span: Span | None
    lag: GroupPartitionLag | None
    member: Member | None


class GroupLag(NamedTuple):
    group: Group
    rows: tuple[Row, ...]

    @property
    def lags(self) -> list[GroupPartitionLag]:
        return [row.lag for row in self.rows if row.lag is not None]

    @property
    def messages(self) -> int:
        return sum(lag.lag_messages for lag in self.lags)

    @property
    def seconds(self) -> float | None:
        """Of the partition that is behind most; None when none is known."""
        return max((lag.lag_seconds for lag in self.lags if lag.lag_seconds is not None), default=None)

    @property
    def consumed_per_second(self) -> float | None:
        return _sum([lag.consumed_per_second for lag in self.lags])

    @property
    def produced_per_second(self) -> float | None:
        return _sum([lag.produced_per_second for lag in self.lags])


def _sum(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


class LagMeter:
    def __init__(self, cluster: Cluster, admin: Any, *, with_seconds: bool = True) -> None:
        self._cluster = cluster
        self._admin = admin
        self._times = RecordTimes(cluster) if with_seconds else None
        self._consumed: dict[tuple[str, Partition], RateWindow] = {}
        self._produced: dict[Partition, RateWindow] = {}

    def measure(self, group: Group, offsets: dict[Partition, Committed] | None = None) -> GroupLag:
        """``offsets``: committed, if they were asked for already."""
        if offsets is None:
            offsets = committed(self._cluster, self._admin, group.group_id)
        assigned = [partition for member in group.members for partition in member.partitions]
        partitions = sorted({*offsets, *assigned})
        found = spans(self._cluster, self._admin, partitions)
        monotonic_ms = int(time.monotonic() * 1000)
        self._observe(group.group_id, offsets, found, monotonic_ms)
        unread = {}
        for partition, span in found.items():
            at = next_unread(offsets[partition].offset, *span) if partition in offsets else None
            if at is not None:
                unread[partition] = at
        times = self._times.find(unread) if self._times is not None else {}
        retentions = retention_ms(self._cluster, self._admin, {topic for topic, _ in unread}) if self._times is not None else {}
        rows = []
        for partition in partitions:
            row = Row(*partition, offsets.get(partition), found.get(partition), None, group.owner(partition))
            timestamp = times.get(partition)
            kept_ms = retentions.get(partition[0], math.inf)
            deletion_at_ms = None if timestamp is None or math.isinf(kept_ms) else timestamp + int(kept_ms)
            rows.append(row._replace(lag=self._lag(group.group_id, row, timestamp, deletion_at_ms)))
        return GroupLag(group, tuple(rows))

    def _observe(
        self, group_id: str, offsets: dict[Partition, Committed], found: dict[Partition, Span], monotonic_ms: int
    ) -> None:
        for partition, span in found.items():
            self._produced.setdefault(partition, RateWindow(monotonic_ms, span.end)).observe(monotonic_ms, span.end)
        for partition, at in offsets.items():
            window = self._consumed.setdefault((group_id, partition), RateWindow(monotonic_ms, at.offset))
            window.observe(monotonic_ms, at.offset)

    def _lag(self, group_id: str, row: Row, timestamp_ms: int | None, deletion_at_ms: int | None) -> GroupPartitionLag | None:
        if row.committed is None or row.span is None:
            return None
        partition = row.topic, row.partition
        return measure_lag(
            group_id,
            row.topic,
            row.partition,
            now_ms=int(time.time() * 1000),
            committed_offset=row.committed.offset,
            log_start_offset=row.span.start,
            high_watermark=row.span.end,
            next_timestamp_ms=timestamp_ms,
            deletion_at_ms=deletion_at_ms,
            compacted_offset=None,
            consumed_per_second=self._consumed[group_id, partition].per_second,
            produced_per_second=self._produced[partition].per_second,
            warning_seconds=0,
        )
