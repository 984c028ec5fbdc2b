"""How far every group is behind, kept up to date by walking over all committed offsets.

A walk begins every ``WALK_MS`` and goes in slices of ``SLICE_OFFSETS`` with ``PAUSE_MS`` between them, so that a hundred thousand
offsets neither hold the loop nor take more than a small part of it. The offsets and the logs' ends are in memory; only the times
of unread records are on disk, and those are looked up on the executor (``lag_lookup``), and only where a group has moved to
another batch. What was found is kept as figures that anybody may read at any time; they are of the last walk.

All of this is soft: it begins empty after a start, and rates are known after two walks. Figures are those of groups that are
coordinated here in partitions whose log is here.

A group about to lose records is reported, and one that has lost some (``lag_warnings``).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.lag_lookup import LagLookup, Wanted, log_deletion_at_ms, segments_of
from tidelog.broker.lag_warnings import LagWarnings
from tidelog.coordinator.machine import Scheduler
from tidelog.coordinator.shard import Shard
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.group import Group
from tidelog.groups.lag import BatchTimes, GroupPartitionLag, RateWindow, measure_lag, next_unread, timestamp_within
from tidelog.groups.records import OffsetCommitValue
from tidelog.log.partition_log import PartitionLog
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.ports.executor import Executor
from tidelog.records.topic_partition import TopicPartition
from tidelog.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

WALK_MS = 5_000
# About a millisecond of the loop.
SLICE_OFFSETS = 100
PAUSE_MS = 30
# What is kept for each is about 700 bytes. Groups beyond that are counted, not followed.
OFFSETS_MAX = 100_000

Shards = Callable[[], Mapping[int, Shard[GroupCoordinator] | None]]


class GroupFigures(NamedTuple):
    """What a group did, beside its partitions' figures. Rebalances are counted since its shard was loaded."""

    group_id: str
    type: str
    state: str
    members: int
    rebalances: int
    rebalance_ms_last: int
    rebalance_ms_total: int


class _Followed:
    """One committed offset: where it was, how fast it moves, the batch that holds the next unread record."""

    __slots__ = ("batch", "batch_of", "consumed", "figures", "walk")

    def __init__(self, monotonic_ms: int, offset: int) -> None:
        self.consumed = RateWindow(monotonic_ms, offset)
        self.batch: BatchTimes | None = None
        # The log, how often it was cut, how far it was compacted, and the offset that was looked for.
        self.batch_of: tuple[PartitionLog, int, int | None, int] | None = None
        self.figures: GroupPartitionLag | None = None
        self.walk = 0


class _GroupTrack:
    __slots__ = ("figures", "offsets", "walk")

    def __init__(self, figures: GroupFigures) -> None:
        self.figures = figures
        self.offsets: dict[TopicPartition, _Followed] = {}
        self.walk = 0


class _Unread(NamedTuple):
    """A partition of a group whose next unread record must be looked up."""

    group_id: str
    log: PartitionLog
    followed: _Followed
    committed_offset: int
    offset: int


class LagMonitor:
    __slots__ = (
        "_clock",
        "_compacted",
        "_compacted_offset",
        "_count",
        "_groups",
        "_is_running",
        "_logs",
        "_lookup",
        "_losing",
        "_lost",
        "_produced",
        "_scheduler",
        "_shards",
        "_steps",
        "_unread",
        "_walk",
        "_warning_seconds",
        "groups_behind_compaction",
        "groups_behind_log_start",
        "groups_losing",
        "not_followed",
        "walks",
        "warnings",
    )

    def __init__(
        self,
        shards: Shards,
        logs: Mapping[TopicPartition, PartitionLog],
        compacted_offset: Callable[[PartitionLog], int | None],
        lookup: LagLookup,
        warnings: LagWarnings,
        warning_seconds: int,
        *,
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        """``compacted_offset``: below it a log was compacted, None when it never was."""
        self._shards = shards
        self._logs = logs
        self._compacted_offset = compacted_offset
        self._lookup = lookup
        self.warnings = warnings
        self._warning_seconds = warning_seconds
        self._clock = clock
        self._scheduler = scheduler
        self._is_running = False
        self._groups: dict[str, _GroupTrack] = {}
        self._produced: dict[PartitionLog, tuple[RateWindow, int]] = {}
        self._steps: Iterator[None] = iter(())
        self._unread: list[_Unread] = []
        self._walk = 0
        self._count = 0
        self._losing: dict[str, list[GroupPartitionLag]] = {}
        self._lost: dict[str, list[GroupPartitionLag]] = {}
        self._compacted: dict[str, None] = {}
        self.groups_losing: tuple[str, ...] = ()
        """Of the last walk, as the next two: groups with unread records that retention deletes within the threshold."""
        self.groups_behind_log_start: tuple[str, ...] = ()
        self.groups_behind_compaction: tuple[str, ...] = ()
        self.not_followed = 0
        self.walks = 0

    # -- what is known -------------------------------------------------------------------------------------------------------

    def figures(self) -> list[GroupPartitionLag]:
        """Of every committed offset whose partition is here, as of the last walk."""
        return [
            followed.figures
            for track in self._groups.values()
            for followed in track.offsets.values()
            if followed.figures is not None
        ]

    def each_group(self) -> Iterator[tuple[GroupFigures, list[GroupPartitionLag]]]:
        """The same group by group; it may be walked over in slices."""
        for track in list(self._groups.values()):
            figures = [followed.figures for followed in track.offsets.values() if followed.figures is not None]
            yield track.figures, figures

    def groups(self) -> list[GroupFigures]:
        return [track.figures for track in self._groups.values()]

    # -- walking -------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._is_running = True
        self._scheduler.schedule(0, self._begin)

    def stop(self) -> None:
        self._is_running = False

    def _begin(self) -> None:
        began_ms = self._clock.monotonic_ms()
        self._walk += 1
        self._count = self.not_followed = 0
        self._losing, self._lost, self._compacted = {}, {}, {}
        self._lookup.begin_round()
        self._steps = self._walk_all()
        self._go_on(began_ms)

    def _go_on(self, began_ms: int) -> None:
        if not self._is_running:
            return
        if next(self._steps, self) is self:
            self._end()
            delay_ms = max(PAUSE_MS, began_ms + WALK_MS - self._clock.monotonic_ms())
            self._scheduler.schedule(delay_ms, self._begin)
            return
        unread, self._unread = self._unread, []
        if not unread:
            self._scheduler.schedule(PAUSE_MS, lambda: self._go_on(began_ms))
            return

        def found(batches: list[BatchTimes | None]) -> None:
            for one, batch in zip(unread, batches, strict=True):
                compacted_offset = self._compacted_offset(one.log)
                one.followed.batch = batch
                one.followed.batch_of = (one.log, one.log.truncations, compacted_offset, one.offset)
                self._measure(one.group_id, one.log, one.followed, one.committed_offset, batch)
            self._scheduler.schedule(PAUSE_MS, lambda: self._go_on(began_ms))

        self._lookup.find([Wanted(one.log, one.offset) for one in unread], found)

    def _walk_all(self) -> Iterator[None]:
        """Stops after each slice. What it holds across a stop may have changed meanwhile, so it holds only copies and names."""
        left = SLICE_OFFSETS
        for index in list(self._shards()):
            shard = self._shards().get(index)
            machine = shard.machine if shard is not None else None
            for group in machine.groups if machine is not None else ():
                assert machine is not None
                track = self._track(group)
                offsets = machine.offsets.of_group(group.group_id)
                for topic in list(offsets):
                    for partition, value in list(offsets.get(topic, {}).items()):
                        self._look_at(group.group_id, track, topic, partition, value)
                        left -= 1
                        if left <= 0:
                            left = SLICE_OFFSETS
                            yield
                self._forget_old_offsets(track)
                left -= 1
                if left <= 0:
                    left = SLICE_OFFSETS
                    yield
        if self._unread:
            yield

    def _track(self, group: Group) -> _GroupTrack:
        figures = GroupFigures(
            group.group_id,
            group.type.value,
            group.state_name,
            group.member_count,
            group.rebalances,
            group.rebalance_ms_last,
            group.rebalance_ms_total,
        )
        track = self._groups.get(group.group_id)
        if track is None:
            track = self._groups[group.group_id] = _GroupTrack(figures)
        track.figures, track.walk = figures, self._walk
        return track

    def _look_at(self, group_id: str, track: _GroupTrack, topic: str, partition: int, value: OffsetCommitValue) -> None:
        log = self._logs.get((topic, partition))
        if log is None or log.offline_reason is not None or value.topic_id not in (ZERO_UUID, log.topic_id):
            return
        if self._count >= OFFSETS_MAX:
            self.not_followed += 1
            return
        self._count += 1
        monotonic_ms = self._clock.monotonic_ms()
        followed = track.offsets.get((topic, partition))
        if followed is None:
            followed = track.offsets[topic, partition] = _Followed(monotonic_ms, value.offset)
        followed.walk = self._walk
        followed.consumed.observe(monotonic_ms, value.offset)
        self._observe_produced(log, monotonic_ms)
        offset = next_unread(value.offset, log.log_start_offset, log.high_watermark)
        if offset is None or self._is_known(followed, log, offset):
            self._measure(group_id, log, followed, value.offset, followed.batch)
        else:
            self._unread.append(_Unread(group_id, log, followed, value.offset, offset))

    def _observe_produced(self, log: PartitionLog, monotonic_ms: int) -> None:
        window, walk = self._produced.get(log, (None, 0))
        if walk == self._walk:
            return
        if window is None:
            window = RateWindow(monotonic_ms, log.high_watermark)
        window.observe(monotonic_ms, log.high_watermark)
        self._produced[log] = window, self._walk

    def _is_known(self, followed: _Followed, log: PartitionLog, offset: int) -> bool:
        """Is the batch of before still the one, and are its segment's times at hand?"""
        if followed.batch is None or followed.batch_of is None:
            return False
        of_log, truncations, compacted_offset, from_offset = followed.batch_of
        is_same = of_log is log and truncations == log.truncations and compacted_offset == self._compacted_offset(log)
        is_within = from_offset <= offset <= followed.batch.last_offset
        return is_same and is_within and all(self._lookup.is_warm(segment) for segment in segments_of(log, offset))

    def _measure(
        self, group_id: str, log: PartitionLog, followed: _Followed, committed_offset: int, batch: BatchTimes | None
    ) -> None:
        now_ms = self._clock.now_ms()
        offset = next_unread(committed_offset, log.log_start_offset, log.high_watermark)
        produced = self._produced[log][0].per_second
        figures = measure_lag(
            group_id,
            log.topic,
            log.partition,
            now_ms=now_ms,
            committed_offset=committed_offset,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            next_timestamp_ms=None if offset is None or batch is None else timestamp_within(batch, offset),
            deletion_at_ms=None if offset is None or batch is None else log_deletion_at_ms(log, offset, batch, produced, now_ms),
            compacted_offset=self._compacted_offset(log) if log.settings.compact else None,
            consumed_per_second=followed.consumed.per_second,
            produced_per_second=produced,
            warning_seconds=self._warning_seconds,
        )
        followed.figures = figures
        if figures.is_losing:
            self._losing.setdefault(group_id, []).append(figures)
        if figures.lost_messages:
            self._lost.setdefault(group_id, []).append(figures)
        if figures.is_behind_compaction:
            self._compacted[group_id] = None

    def _forget_old_offsets(self, track: _GroupTrack) -> None:
        if any(followed.walk != self._walk for followed in track.offsets.values()):
            track.offsets = {key: followed for key, followed in track.offsets.items() if followed.walk == self._walk}

    def _end(self) -> None:
        self._groups = {group_id: track for group_id, track in self._groups.items() if track.walk == self._walk}
        self._produced = {log: seen for log, seen in self._produced.items() if seen[1] == self._walk}
        self.groups_losing = tuple(sorted(self._losing))
        self.groups_behind_log_start = tuple(sorted(self._lost))
        self.groups_behind_compaction = tuple(sorted(self._compacted))
        self.warnings.walked(self._losing, self._lost, self._clock.monotonic_ms())
        self.walks += 1


def make_lag_monitor(broker: "Broker", disk: Disk, executor: Executor) -> LagMonitor:
    return LagMonitor(
        broker.coordinators.groups.shards,
        broker.directory.logs,
        broker.directory.cleaner.first_dirty_offset,
        LagLookup(disk, executor, broker.report),
        LagWarnings(broker.report),
        int(broker.config.values["tidelog.lag.deletion.warning.seconds"]),
        clock=broker.clock,
        scheduler=broker.timers,
    )
