"""Removes what nobody needs any more: offsets of deleted topics, offsets past their retention, groups that are left with nothing.

Retention (``offsets.retention.minutes``) counts only while a group has no members: from the moment the last one left, or from the
commit if that is later. An offset with an expiry of its own goes by that. Checked every ``offsets.retention.check.interval.ms``,
first after one interval: who was down for longer than the retention gets this long to come back. Deleted topics are looked for
when topics are deleted, and after a load: the shard may have been somewhere else, or nowhere, when they were.

A pass goes through the groups in slices, each a decision of its own, so nobody waits long and every batch is small.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import Group, GroupTable
from tidelog.groups.records import NO_TIMESTAMP_MS, OffsetCommitRecord, OffsetCommitValue

if TYPE_CHECKING:
    from tidelog.groups.offsets.store import OffsetStore

MS_PER_MINUTE = 60_000
# A slice ends after this many offsets, about a millisecond, or this many bytes of tombstones, well below the size of a batch. A
# topic is looked at in one go.
SLICE_OFFSETS = 5_000
SLICE_BYTES = 32 << 10
# What a tombstone takes beside its names, which take at most three bytes a character in UTF-8.
TOMBSTONE_BYTES = 64
CHARACTER_BYTES_MAX = 3
# Looking at a group without any offsets counts as this many.
GROUP_OFFSETS = 5

EXPIRY_TIMER = "offset expiry"
SLICE_TIMER = "offset sweep"


class OffsetSweep:
    __slots__ = (
        "_environment",
        "_expires",
        "_groups",
        "_groups_left",
        "_next_expires",
        "_offsets",
        "_topics_left",
        "expirations",
    )

    def __init__(self, environment: GroupEnvironment, groups: GroupTable, offsets: "OffsetStore") -> None:
        self._environment = environment
        self._groups = groups
        self._offsets = offsets
        self._groups_left: deque[str] = deque()
        # Of the first of them, once it was begun.
        self._topics_left: list[str] | None = None
        self._expires = False
        # Whether the pass after this one expires; None: there is none.
        self._next_expires: bool | None = None
        self.expirations = 0
        """Offsets that were removed because they were too old."""

    def start(self) -> None:
        self._schedule_expiry()
        self.remove_deleted_topics()

    def remove_deleted_topics(self) -> None:
        self._request(False)

    def _schedule_expiry(self) -> None:
        interval_ms: int = self._environment.settings["offsets.retention.check.interval.ms"]
        self._environment.timers.schedule(EXPIRY_TIMER, interval_ms, self._expire)

    def _expire(self) -> CoordinatorResult:
        self._schedule_expiry()
        self._request(True)
        return CoordinatorResult()

    def _request(self, expires: bool) -> None:
        """A pass, after the one that is under way: begun again each time, that might never end."""
        if self._groups_left:
            self._next_expires = expires or bool(self._next_expires)
            return
        self._expires = expires
        self._groups_left = deque(group.group_id for group in self._groups)
        if self._groups_left:
            self._environment.timers.schedule(SLICE_TIMER, 0, self._slice)

    def _slice(self) -> CoordinatorResult:
        slice_ = _Slice()
        while self._groups_left and not slice_.is_full:
            self._advance(slice_)
        if self._groups_left:
            self._environment.timers.schedule(SLICE_TIMER, 0, self._slice)
        else:
            self._offsets.forget_topic_ids()
            if self._next_expires is not None:
                expires, self._next_expires = self._next_expires, None
                self._request(expires)
        return CoordinatorResult(slice_.records)

    def _advance(self, slice_: "_Slice") -> None:
        """One topic of the first group, or the end of the group."""
        group_id = self._groups_left[0]
        group = self._groups.find(group_id)
        if group is None:
            self._next_group()
            return
        if self._topics_left is None:
            topics = [*self._offsets.of_group(group_id), *self._offsets.pending.topics_of(group_id)]
            self._topics_left = list(dict.fromkeys(topics))
            slice_.begin_group()
        if self._topics_left:
            if self._sweep_topic(group, self._topics_left[-1], slice_):
                self._topics_left.pop()
            return
        left = sum(map(len, self._offsets.of_group(group_id).values())) - slice_.group_tombstones
        if self._expires and left == 0 and not group.has_members and not self._offsets.pending.has_group(group_id):
            slice_.add_all(group.tombstones(), group_id)
        self._next_group()

    def _next_group(self) -> None:
        self._groups_left.popleft()
        self._topics_left = None

    def _sweep_topic(self, group: Group, topic: str, slice_: "_Slice") -> bool:
        """False when the slice was full before the topic was done; the next one begins it again, without what is gone by then."""
        group_id = group.group_id
        offsets = self._offsets
        committed = offsets.of_group(group_id).get(topic, {})
        slice_.look_at(len(committed))
        can_expire = self._expires and not group.has_members
        empty_since_ms = (group.empty_since_ms() if can_expire else None) or 0
        for partition, value in committed.items():
            if slice_.is_full_of_bytes:
                return False
            if offsets.is_of_deleted_topic(topic, value.topic_id):
                slice_.add_tombstone(group_id, topic, partition)
            elif can_expire and self._is_expired(value, empty_since_ms) and not offsets.pending.has(group_id, topic, partition):
                self.expirations += 1
                slice_.add_tombstone(group_id, topic, partition)
        for partition, value in offsets.pending.values_of(group_id, topic):
            if partition not in committed and offsets.is_of_deleted_topic(topic, value.topic_id):
                slice_.add_all([OffsetCommitRecord(group_id, topic, partition, None)], group_id)
        return True

    def _is_expired(self, value: OffsetCommitValue, empty_since_ms: int) -> bool:
        now_ms = self._environment.clock.now_ms()
        if value.expire_timestamp != NO_TIMESTAMP_MS:
            return now_ms >= value.expire_timestamp
        retention_minutes: int = self._environment.settings["offsets.retention.minutes"]
        return now_ms - max(value.commit_timestamp, empty_since_ms) >= retention_minutes * MS_PER_MINUTE


class _Slice:
    __slots__ = ("_bytes", "_looked_at", "group_tombstones", "records")

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.group_tombstones = 0
        """Of the current group, within this slice: replayed only after it."""
        self._bytes = 0
        self._looked_at = 0

    @property
    def is_full(self) -> bool:
        return self._looked_at >= SLICE_OFFSETS or self.is_full_of_bytes

    @property
    def is_full_of_bytes(self) -> bool:
        return self._bytes >= SLICE_BYTES

    def look_at(self, offsets: int) -> None:
        self._looked_at += offsets

    def begin_group(self) -> None:
        self.group_tombstones = 0
        self._looked_at += GROUP_OFFSETS

    def add_tombstone(self, group_id: str, topic: str, partition: int) -> None:
        """For a committed offset."""
        self.records.append(OffsetCommitRecord(group_id, topic, partition, None))
        self.group_tombstones += 1
        self._bytes += TOMBSTONE_BYTES + CHARACTER_BYTES_MAX * (len(group_id) + len(topic))

    def add_all(self, records: Any, group_id: str) -> None:
        self.records += records
        self._bytes += len(records) * (TOMBSTONE_BYTES + CHARACTER_BYTES_MAX * len(group_id))
