"""The lag of groups as a command sees it: from outside, by measuring twice where a rate is wanted.

The figures are those of ``tidelog.groups.lag``. Lag is counted as Kafka's tools do. Its age in seconds is that of the first
unread record, which is fetched by its offset. When unread records will be deleted is known from outside only by ``retention.ms``
and the record's own time: not before that, and later by as much as its segment is younger.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import KafkaCluster, existing_bounds
from tidelog.cli.share_groups import SHARE, ShareGroups
from tidelog.client.admin import Admin, CommittedOffset, GroupDescription, GroupMember, PartitionBounds
from tidelog.client.raw_consumer import EndOfPartition
from tidelog.client.topic_partition import TopicPartition
from tidelog.groups.lag import GroupPartitionLag, RateWindow, measure_lag, next_unread

# How long to wait for the records whose age is needed; the age of those that have not arrived by then is unknown.
FETCH_SECONDS_MAX = 10.0
POLL_SECONDS = 0.2
# This is as little as possible: brokers send at least one batch, whatever the limit.
FETCH_BYTES = 1024


class LagRow(NamedTuple):
    """One partition of a group. Without a committed offset, or without the topic, it has no lag."""

    topic: str
    partition: int
    committed: CommittedOffset | None
    bounds: PartitionBounds | None
    lag: GroupPartitionLag | None
    member: GroupMember | None


class GroupLag(NamedTuple):
    group: GroupDescription
    rows: tuple[LagRow, ...]

    @property
    def lags(self) -> list[GroupPartitionLag]:
        return [row.lag for row in self.rows if row.lag is not None]

    @property
    def messages(self) -> int:
        return sum(lag.lag_messages for lag in self.lags)

    @property
    def seconds(self) -> float | None:
        """The lag of the partition that is furthest behind; None if no lag is known."""
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


class FoundGroup(NamedTuple):
    group: GroupDescription
    offsets: dict[TopicPartition, CommittedOffset]
    unsettled: Mapping[TopicPartition, int | None] = {}
    """The number of messages that a share group has not settled."""

    @property
    def is_shared(self) -> bool:
        return self.group.type == SHARE


def find_group(admin: Admin, shares: ShareGroups, group_id: str) -> FoundGroup:
    """A group and where it is. It exists if it has members, or at least offsets."""
    shared = shares.find(group_id)
    if shared is not None:
        return FoundGroup(*shared)
    group = admin.describe_groups([group_id])[group_id]
    offsets = admin.committed_offsets(group_id)
    if group.state == "DEAD" and not offsets:
        raise no_such_group(admin, group_id)
    return FoundGroup(group, offsets)


def no_such_group(admin: Admin, group_id: str) -> CommandFailed:
    return CommandFailed(f"there is no group {group_id} at {admin.addresses}; to see the groups: tidelog groups list")


class LagMeter:
    """Measures the lag of groups, and remembers between two measurements what rates and ages need."""

    def __init__(self, cluster: KafkaCluster, admin: Admin, shares: ShareGroups) -> None:
        self._admin = admin
        self._shares = shares
        self._times = RecordTimes(cluster)
        self._consumed: dict[tuple[str, TopicPartition], RateWindow] = {}
        self._produced: dict[TopicPartition, RateWindow] = {}

    def measure(self, group_id: str) -> GroupLag:
        found_group = find_group(self._admin, self._shares, group_id)
        group, offsets, unsettled = found_group
        owners = {partition: member for member in group.members for partition in member.partitions}
        partitions = sorted({*offsets, *owners})
        bounds = existing_bounds(self._admin, partitions)
        for partition in unsettled:
            if partition in bounds and unsettled[partition] is None:
                unsettled = {**unsettled, partition: max(0, bounds[partition].end - offsets[partition].offset)}
        self._observe(found_group, bounds, unsettled)
        unread = {}
        for partition, found in bounds.items():
            at = next_unread(offsets[partition].offset, *found) if partition in offsets else None
            if at is not None:
                unread[partition] = at
        times = self._times.find(unread)
        retentions = {topic: _retention_ms(self._admin, topic) for topic in sorted({topic for topic, _ in unread})}
        rows = []
        for partition in partitions:
            row = LagRow(*partition, offsets.get(partition), bounds.get(partition), None, owners.get(partition))
            kept_ms = retentions.get(partition[0], math.inf)
            lag = self._lag(group_id, row, times.get(partition), kept_ms)
            count = unsettled.get(partition)
            if lag is not None and count is not None:
                lag = lag._replace(lag_messages=count)
            rows.append(row._replace(lag=lag))
        return GroupLag(group, tuple(rows))

    def _observe(
        self,
        found: FoundGroup,
        bounds: Mapping[TopicPartition, PartitionBounds],
        unsettled: Mapping[TopicPartition, int | None],
    ) -> None:
        now_ms = int(time.monotonic() * 1000)
        for partition, (_, end) in bounds.items():
            self._produced.setdefault(partition, RateWindow(now_ms, end)).observe(now_ms, end)
        for partition, at in found.offsets.items():
            position = at.offset
            left = unsettled.get(partition)
            if left is not None and partition in bounds:
                # What a share group has settled behind the first message that it has not counts as well.
                position = bounds[partition].end - left
            key = found.group.name, partition
            self._consumed.setdefault(key, RateWindow(now_ms, position)).observe(now_ms, position)

    def _lag(self, group_id: str, row: LagRow, timestamp_ms: int | None, kept_ms: float) -> GroupPartitionLag | None:
        if row.committed is None or row.bounds is None:
            return None
        partition = TopicPartition(row.topic, row.partition)
        return measure_lag(
            group_id,
            row.topic,
            row.partition,
            now_ms=int(time.time() * 1000),
            committed_offset=row.committed.offset,
            log_start_offset=row.bounds.start,
            high_watermark=row.bounds.end,
            next_timestamp_ms=timestamp_ms,
            deletion_at_ms=None if timestamp_ms is None or math.isinf(kept_ms) else timestamp_ms + int(kept_ms),
            compacted_offset=None,
            consumed_per_second=self._consumed[group_id, partition].per_second,
            produced_per_second=self._produced[partition].per_second,
            warning_seconds=0,
        )


def _retention_ms(admin: Admin, topic: str) -> float:
    """How long the topic keeps its records; infinite if nothing is deleted by age."""
    settings = admin.describe_configs("topic", topic)
    milliseconds = int(settings["retention.ms"].value or -1)
    is_deleting = "delete" in (settings["cleanup.policy"].value or "")
    return float(milliseconds) if is_deleting and milliseconds >= 0 else math.inf


class RecordTimes:
    """The timestamps of single records. Remembers them, so that a group that does not move causes no more fetches."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._known: dict[TopicPartition, tuple[int, int | None]] = {}

    def find(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the timestamps in milliseconds since 1970; None if no record arrived, or one without a timestamp."""
        missing = {partition: offset for partition, offset in offsets.items() if self._known.get(partition, (-1, 0))[0] != offset}
        if missing:
            fetched = self._fetch(missing)
            for partition, offset in missing.items():
                if partition in fetched:
                    self._known[partition] = offset, fetched[partition]
        return {partition: self._known[partition][1] if partition in self._known else None for partition in offsets}

    def _fetch(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """One consumer is assigned all of them at once. Where an offset holds no record, because compaction removed it or a
        transaction's marker is there, the next record answers, as it would for a consumer."""
        found: dict[TopicPartition, int | None] = {}
        deadline = time.monotonic() + FETCH_SECONDS_MAX
        settings = {"fetch.message.max.bytes": FETCH_BYTES, "queued.min.messages": 1}
        with self._cluster.errors(), self._cluster.consumer(settings) as consumer:
            consumer.assign(offsets)
            while len(found) < len(offsets) and time.monotonic() < deadline:
                for each in consumer.consume(len(offsets), POLL_SECONDS):
                    timestamp = None if isinstance(each, EndOfPartition) else each.timestamp
                    found.setdefault(TopicPartition(each.topic, each.partition), timestamp)
        return found
