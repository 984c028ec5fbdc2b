"""Tracks how far every group is behind, by walking over all committed offsets.

A walk begins every ``WALK_MS`` and goes in slices of ``SLICE_OFFSETS`` with ``PAUSE_MS`` between them, so that a hundred thousand
offsets neither hold the loop nor take more than a small part of it. The offsets and the ends of the logs are in memory. Only the
times of unread records are on disk; ``LagLookup`` looks them up on the executor, and only where a group has moved to another
batch. The results are kept as figures of the last walk, which anybody may read at any time.

Share groups have no committed offsets. In their place is the first message that is not settled, as the share coordinator knows it
whether or not a member is there, so that a group is seen to fall behind when all its workers are gone. If a member is there, the
leader knows which messages are not due yet, and the age is that of the first one that is.

Nothing of this is stored: the figures are empty after a start, and rates are known after two walks. They cover the groups that
this broker coordinates, in partitions whose log is here, and the states of share groups that it keeps: in partitions whose log is
elsewhere, the leaders are asked once in each walk.

``LagWarnings`` reports groups that are about to lose records, or have lost some.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.share_figures import NOTHING_DUE, LeaderFigures, OnLeaderFigures, SharePlace, ask_leaders
from tidelog.coordinator.machine import Scheduler
from tidelog.coordinator.shard import Shard
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.group import Group
from tidelog.groups.lag import (
    UNLIMITED,
    BatchTimes,
    GroupPartitionLag,
    RateWindow,
    RetentionFacts,
    SegmentFacts,
    SettledOffsets,
    deletion_at_ms,
    measure_lag,
    next_unread,
    timestamp_within,
    without_settled,
)
from tidelog.groups.records import OffsetCommitValue
from tidelog.log import names
from tidelog.log.errors import LogError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segments.batch_scan import LOOKUP_CHUNK_BYTES, scan_headers
from tidelog.log.segments.segment import NO_TIMESTAMP, LogSegment
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk, DiskFile
from tidelog.ports.executor import Completion, Executor
from tidelog.queues.records import SharePartitionKey
from tidelog.queues.share_coordinator import ShareCoordinator, ShareProgress
from tidelog.records.header import BatchHeader
from tidelog.records.topic_partition import TopicPartition
from tidelog.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode


# Only a few batches lie between two index entries. A segment whose index was lost has more, and is not scanned as a whole.
HEADERS_MAX = 10_000


class LagQuery(NamedTuple):
    log: PartitionLog
    offset: int


class _Range(NamedTuple):
    """A range of batches in a file."""

    file: DiskFile
    position: int
    end: int


class _Walk(NamedTuple):
    offset: int
    candidates: list[_Range]
    """Where the batch may be: it is the first batch that ends at or above the offset."""
    tails: list[_Range]
    """The ranges after the last index entries."""


OnFound = Callable[[list[BatchTimes | None]], None]
ReportEvent = Callable[[str, dict[str, object]], None]


class LagLookup:
    """Finds the times of the batches at given offsets, without a disk read on the loop.

    A batch is found as a fetch finds it: by the offset index, then by the headers from there on. No record is decoded. Data far
    behind the end is often not in memory, so everything that reads files runs on the executor, for a slice of offsets at a time:

        1. the indexes of a segment that was not used lately are read through, so that loading them on the loop does not wait
        2. on the loop, the index says where to begin
        3. the headers are read from there, and after the last index entry, where the segment's newest timestamp is found

    Afterwards ``segment.max_timestamp`` is known, or found in memory. A batch that is not available (its segment was deleted in
    the meantime, or the disk failed) has no times; the next round tries again."""

    __slots__ = ("_disk", "_executor", "_report", "_round", "_warm")

    def __init__(self, disk: Disk, executor: Executor, report: ReportEvent) -> None:
        self._disk = disk
        self._executor = executor
        self._report = report
        self._warm: dict[LogSegment, int] = {}
        self._round = 0

    def begin_round(self) -> None:
        """Forget the segments that the last round did not use: their pages may have left the page cache."""
        self._warm = {segment: number for segment, number in self._warm.items() if number == self._round}
        self._round += 1

    def is_warm(self, segment: LogSegment) -> bool:
        if segment not in self._warm:
            return False
        self._warm[segment] = self._round
        return True

    def find(self, wanted: Sequence[LagQuery], on_found: OnFound) -> None:
        """Call back in the order of ``wanted``, with None for a batch that is not available; never before this returns."""
        cold = {segment: log for log, offset in wanted for segment in segments_of(log, offset) if segment not in self._warm}
        paths = [
            names.segment_path(log.directory, segment.base_offset, suffix)
            for segment, log in cold.items()
            for suffix in (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
        ]

        def warmed(completion: Completion) -> None:
            self._note_error(completion)
            self._walk(wanted, on_found)

        if paths:
            self._executor.submit(lambda: _read_through(self._disk, paths), warmed)
        else:
            self._walk(wanted, on_found)

    def _walk(self, wanted: Sequence[LagQuery], on_found: OnFound) -> None:
        walks = [self._plan(log, offset) for log, offset in wanted]

        def walked(completion: Completion) -> None:
            self._note_error(completion)
            headers: list[BatchHeader | None] = completion.result or [None] * len(wanted)
            # Do this only now: earlier, it would have read the segment's newest timestamp from disk, on the loop.
            for (log, offset), header in zip(wanted, headers, strict=True):
                if header is not None:
                    self._warm.update(dict.fromkeys(segments_of(log, offset), self._round))
            on_found([None if header is None else batch_times(header) for header in headers])

        self._executor.submit(lambda: [_walk_headers(walk) for walk in walks], walked)

    def _plan(self, log: PartitionLog, offset: int) -> _Walk:
        segments = log.segments
        index = segments.floor_index(offset)
        try:
            holding = segments[index]
            candidates = [_Range(holding.file(), holding.offset_index.lookup(offset)[1], holding.size)]
            if index + 1 < len(segments):
                # Compaction may have removed the end of the segment; then the search continues in the next one.
                candidates.append(_Range(segments[index + 1].file(), 0, segments[index + 1].size))
            tails = [
                _Range(segment.file(), segment.offset_index.last_position, segment.size) for segment in segments_of(log, offset)
            ]
        except (LogError, OSError):
            return _Walk(offset, [], [])
        return _Walk(offset, candidates, tails)

    def _note_error(self, completion: Completion) -> None:
        if completion.error is not None:
            self._report("unexpected_error", {"where": "looking up lag", "error": repr(completion.error)})


def segments_of(log: PartitionLog, offset: int) -> list[LogSegment]:
    """Return the first segment, which retention deletes before any other, and the segment that holds ``offset`` if that is
    another one."""
    segments = log.segments
    index = segments.floor_index(offset)
    return [segments[0], segments[index]] if index else [segments[0]]


def batch_times(header: BatchHeader) -> BatchTimes:
    # If the batch has a delete horizon, the field holds that. Under LogAppendTime every record has the batch's newest time.
    is_of_first = not header.has_delete_horizon and not header.is_log_append_time
    return BatchTimes(
        header.base_offset,
        header.last_offset,
        header.base_timestamp if is_of_first else NO_TIMESTAMP,
        header.max_timestamp,
        header.delete_horizon_ms,
    )


def log_deletion_at_ms(
    log: PartitionLog, offset: int, batch: BatchTimes, produced_per_second: float | None, now_ms: int
) -> int | None:
    """The earliest time at which retention deletes the record at ``offset``, which is in ``batch``. Its segments were looked up
    before."""
    settings = log.settings
    retention = RetentionFacts(settings.delete, settings.retention_ms, settings.retention_bytes)
    log_bytes = 0
    bytes_per_second = None
    if settings.delete and settings.retention_bytes != UNLIMITED:
        log_bytes = log.size
        if produced_per_second is not None:
            bytes_per_second = produced_per_second * log_bytes / max(1, log.log_end_offset - log.log_start_offset)
    try:
        facts = [_segment_facts(log, segment) for segment in segments_of(log, offset)]
    except (LogError, OSError):
        return None
    return deletion_at_ms(now_ms, retention, facts[0], facts[-1], log_bytes, bytes_per_second, batch.delete_horizon_ms)


def _segment_facts(log: PartitionLog, segment: LogSegment) -> SegmentFacts:
    settings, segments = log.settings, log.segments
    newest_ms = segment.max_timestamp
    bytes_through = 0
    if settings.retention_bytes != UNLIMITED:
        bytes_through = sum(segments[index].size for index in range(segments.floor_index(segment.base_offset) + 1))
    if segment is not segments.active:
        return SegmentFacts(newest_ms if newest_ms >= 0 else None, bytes_through)
    return SegmentFacts(
        newest_ms if newest_ms >= 0 else None,
        bytes_through,
        max(1, settings.segment_bytes - segment.size),
        segment.created_ms + settings.segment_ms,
    )


def _read_through(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        # An index without entries has no file.
        with suppress(OSError):
            file = disk.open(path, "read")
            file.read(0, file.size())


def _walk_headers(walk: _Walk) -> BatchHeader | None:
    try:
        for tail in walk.tails:
            for _ in _headers(tail):
                pass
        return next(
            (header for place in walk.candidates for header in _headers(place) if header.last_offset >= walk.offset), None
        )
    except (LogError, OSError):
        return None


def _headers(place: _Range) -> Iterator[BatchHeader]:
    found = scan_headers(place.file, place.position, place.end, LOOKUP_CHUNK_BYTES)
    return (header for _, header in islice(found, HEADERS_MAX))


REPEAT_MS_MIN = 10 * 60_000
REPEAT_MS_MAX = 24 * 60 * 60_000
# The maximum number of reports per walk; the next walk makes the rest.
REPORTS_MAX = 20

FiguresByGroup = Mapping[str, list[GroupPartitionLag]]


class LagWarnings:
    """Tells the operator which groups are about to lose records, or have lost some, without filling the log.

    A group is reported as soon as it is found to be in danger (``group_will_lose_records``), and while it stays so again after
    ten minutes, twenty, forty, up to once a day: an abandoned group would otherwise be reported for as long as its offsets are
    kept. A group that the log start has passed (``group_has_lost_records``) is reported once, and again only if it recovered in
    between."""

    __slots__ = ("_lost", "_repeats", "_report", "reported")

    def __init__(self, report: ReportEvent) -> None:
        self._report = report
        # By group: when it may be reported again, and how long to wait after that report.
        self._repeats: dict[str, tuple[int, int]] = {}
        self._lost: dict[str, None] = {}
        self.reported = 0

    def walked(self, losing: FiguresByGroup, lost: FiguresByGroup, monotonic_ms: int) -> None:
        """Report the groups that the last walk found in danger, and those behind the log start."""
        left = REPORTS_MAX
        repeats: dict[str, tuple[int, int]] = {}
        for group_id, figures in losing.items():
            due_ms, wait_ms = self._repeats.get(group_id, (monotonic_ms, REPEAT_MS_MIN))
            if due_ms <= monotonic_ms and left:
                left -= 1
                self._say("group_will_lose_records", group_id, min(figures, key=_deletion_seconds), len(figures))
                due_ms, wait_ms = monotonic_ms + wait_ms, min(2 * wait_ms, REPEAT_MS_MAX)
            repeats[group_id] = due_ms, wait_ms
        self._repeats = repeats
        still_lost: dict[str, None] = {}
        for group_id, figures in lost.items():
            if group_id not in self._lost:
                if not left:
                    continue
                left -= 1
                self._say("group_has_lost_records", group_id, max(figures, key=_lost_messages), len(figures))
            still_lost[group_id] = None
        self._lost = still_lost

    def _say(self, event: str, group_id: str, worst: GroupPartitionLag, partition_count: int) -> None:
        self.reported += 1
        facts: dict[str, object] = {
            "group": group_id,
            "partitions": partition_count,
            "worst": f"{worst.topic}-{worst.partition}",
            "committed_offset": worst.committed_offset,
            "log_start_offset": worst.log_start_offset,
            "lag_messages": worst.lag_messages,
            "lag_seconds": worst.lag_seconds,
        }
        if event == "group_will_lose_records":
            facts["deletion_seconds"] = worst.deletion_seconds
        else:
            facts["lost_messages"] = worst.lost_messages
        self._report(event, facts)


def _deletion_seconds(figures: GroupPartitionLag) -> float:
    return figures.deletion_seconds or 0.0


def _lost_messages(figures: GroupPartitionLag) -> int:
    return figures.lost_messages


WALK_MS = 5_000
# About a millisecond of the loop.
SLICE_OFFSETS = 100
PAUSE_MS = 30
# Each offset takes about 700 bytes. Offsets beyond this number are counted, not tracked.
OFFSETS_MAX = 100_000
# Share groups in partitions whose logs are elsewhere cost requests to other brokers in each walk, at most one for each partition.
ELSEWHERE_MAX = 1_000

Shards = Callable[[], Mapping[int, Shard[GroupCoordinator] | None]]
ShareShards = Callable[[], Iterable[Shard[ShareCoordinator]]]


class GroupFigures(NamedTuple):
    """The figures of a group as a whole. Rebalances are counted from the time when its shard was loaded."""

    group_id: str
    type: str
    state: str
    members: int
    rebalances: int
    rebalance_ms_last: int
    rebalance_ms_total: int


class ShareSources(NamedTuple):
    """What the monitor must know to follow share groups."""

    shards: ShareShards
    """The shards of the share coordinator here."""
    topic_name: Callable[[bytes], str | None]
    oldest_due_offset: Callable[[SharePartitionKey], int | None]
    """The first offset that is neither settled nor delayed; None while nobody fetches from this broker."""
    ask_leaders: Callable[[str, Sequence[tuple[SharePlace, int]], OnLeaderFigures], None]
    """What the leaders know of a group: see ``share_figures``."""


class _Position(NamedTuple):
    """Where a group is in a partition."""

    committed_offset: int
    next_offset: int
    """The offset whose age counts: the committed one, or a later one of a share group whose first messages are delayed."""
    settled: SettledOffsets | None = None


class _Followed:
    """One committed offset: where it was, how fast it moves, and the batch that holds the next unread record."""

    __slots__ = ("batch", "batch_of", "consumed", "figures", "position", "walk")

    def __init__(self, monotonic_ms: int, position: _Position) -> None:
        self.position = position
        self.consumed = RateWindow(monotonic_ms, _consumed_offset(position))
        self.batch: BatchTimes | None = None
        # Identifies the last lookup: the log, how often it was truncated, how far it was compacted, and the offset.
        self.batch_of: tuple[PartitionLog, int, int | None, int] | None = None
        self.figures: GroupPartitionLag | None = None
        self.walk = 0


def _consumed_offset(position: _Position) -> int:
    """What a rate is measured by: a share group makes progress with what it settles anywhere."""
    return position.committed_offset + (0 if position.settled is None else position.settled.total)


Offsets = dict[TopicPartition, _Followed]


class _GroupTrack:
    __slots__ = ("figures", "offsets", "walk")

    def __init__(self, figures: GroupFigures) -> None:
        self.figures = figures
        self.offsets: Offsets = {}
        self.walk = 0


class _Unread(NamedTuple):
    """A partition of a group whose next unread record must be looked up."""

    group_id: str
    log: PartitionLog
    followed: _Followed
    offset: int


class LagMonitor:
    __slots__ = (
        "_clock",
        "_compacted",
        "_compacted_offset",
        "_count",
        "_elsewhere",
        "_far",
        "_groups",
        "_is_running",
        "_logs",
        "_lookup",
        "_losing",
        "_lost",
        "_produced",
        "_scheduler",
        "_shards",
        "_share_groups",
        "_shares",
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
        shares: ShareSources,
        logs: Mapping[TopicPartition, PartitionLog],
        compacted_offset: Callable[[PartitionLog], int | None],
        lookup: LagLookup,
        warnings: LagWarnings,
        warning_seconds: int,
        *,
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        """``compacted_offset`` returns the offset below which a log was compacted; None if it never was."""
        self._shards = shards
        self._shares = shares
        self._logs = logs
        self._compacted_offset = compacted_offset
        self._lookup = lookup
        self.warnings = warnings
        self._warning_seconds = warning_seconds
        self._clock = clock
        self._scheduler = scheduler
        self._is_running = False
        self._groups: dict[str, _GroupTrack] = {}
        self._share_groups: dict[str, Offsets] = {}
        # Of share groups in partitions whose logs are not here: where they are, and what the leaders have answered.
        self._elsewhere: dict[str, list[tuple[SharePlace, ShareProgress]]] = {}
        self._far: dict[str, list[GroupPartitionLag]] = {}
        self._produced: dict[PartitionLog, tuple[RateWindow, int]] = {}
        self._steps: Iterator[None] = iter(())
        self._unread: list[_Unread] = []
        self._walk = 0
        self._count = 0
        self._losing: dict[str, list[GroupPartitionLag]] = {}
        self._lost: dict[str, list[GroupPartitionLag]] = {}
        self._compacted: dict[str, None] = {}
        self.groups_losing: tuple[str, ...] = ()
        """The groups whose unread records retention will delete within the threshold. This and the next two are as of
        the last walk."""
        self.groups_behind_log_start: tuple[str, ...] = ()
        self.groups_behind_compaction: tuple[str, ...] = ()
        self.not_followed = 0
        self.walks = 0

    # -- what is known -------------------------------------------------------------------------------------------------------

    def figures(self) -> list[GroupPartitionLag]:
        """The figures of every committed offset whose partition is here, as of the last walk."""
        return [
            followed.figures
            for track in self._groups.values()
            for followed in track.offsets.values()
            if followed.figures is not None
        ]

    def each_group(self) -> Iterator[tuple[GroupFigures, list[GroupPartitionLag]]]:
        """The same figures, group by group. The caller may walk over them in slices."""
        for track in list(self._groups.values()):
            figures = [followed.figures for followed in track.offsets.values() if followed.figures is not None]
            yield track.figures, figures

    def each_share_group(self) -> Iterator[tuple[str, list[GroupPartitionLag]]]:
        """The figures of share groups in the partitions whose state this broker keeps, with or without members."""
        for group_id in [*self._share_groups, *(each for each in self._far if each not in self._share_groups)]:
            here = self._share_groups.get(group_id, {}).values()
            figures = [followed.figures for followed in here if followed.figures is not None]
            yield group_id, figures + self._far.get(group_id, [])

    def groups(self) -> list[GroupFigures]:
        return [track.figures for track in self._groups.values()]

    def find_times(self, wanted: Sequence[tuple[PartitionLog, int]], on_found: OnFound) -> None:
        """Look up the times of batches for somebody else: see ``LagLookup.find``."""
        self._lookup.find([LagQuery(*each) for each in wanted], on_found)

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
        self._elsewhere = {}
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
                self._measure(one.group_id, one.log, one.followed)
            self._scheduler.schedule(PAUSE_MS, lambda: self._go_on(began_ms))

        self._lookup.find([LagQuery(one.log, one.offset) for one in unread], found)

    def _walk_all(self) -> Iterator[None]:
        """Walk over all offsets, pausing after each slice. What it holds across a pause may have changed, so it holds only copies
        and names."""
        yield from self._walk_groups()
        yield from self._walk_share_groups()
        if self._unread:
            yield

    def _walk_share_groups(self) -> Iterator[None]:
        left = SLICE_OFFSETS
        for shard in list(self._shares.shards()):
            for key in shard.machine.keys() if shard.machine is not None else ():
                if shard.machine is not None:
                    self._look_at_share(shard.machine, key)
                left -= 1
                if left <= 0:
                    left = SLICE_OFFSETS
                    yield
        self._share_groups = {
            group_id: kept for group_id, offsets in self._share_groups.items() if (kept := self._walked(offsets))
        }

    def _walk_groups(self) -> Iterator[None]:
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
        if log is not None and value.topic_id in (ZERO_UUID, log.topic_id):
            self._follow(group_id, track.offsets, log, _Position(value.offset, value.offset))

    def _look_at_share(self, machine: ShareCoordinator, key: SharePartitionKey) -> None:
        topic = self._shares.topic_name(key.topic_id)
        if topic is None:
            return
        log = self._logs.get((topic, key.partition))
        if log is None or log.topic_id != key.topic_id:
            self._note_elsewhere(machine, key, SharePlace(topic, key.topic_id, key.partition))
            return
        progress = machine.progress(key, log.log_start_offset)
        if progress is None:
            return
        start_offset, settled, settled_lost = progress
        oldest = self._shares.oldest_due_offset(key)
        position = _Position(start_offset, start_offset if oldest is None else oldest, SettledOffsets(settled, settled_lost))
        self._follow(key.group_id, self._share_groups.setdefault(key.group_id, {}), log, position)

    def _note_elsewhere(self, machine: ShareCoordinator, key: SharePartitionKey, place: SharePlace) -> None:
        progress = machine.progress(key, 0)
        if progress is None:
            return
        if sum(map(len, self._elsewhere.values())) >= ELSEWHERE_MAX:
            self.not_followed += 1
            return
        self._elsewhere.setdefault(key.group_id, []).append((place, progress))

    def _ask_elsewhere(self) -> None:
        """The answers come later, and are shown until those of the next walk have come."""
        self._far = {group_id: figures for group_id, figures in self._far.items() if group_id in self._elsewhere}
        for group_id, places in self._elsewhere.items():
            asked = [(place, progress.start_offset) for place, progress in places]
            self._shares.ask_leaders(group_id, asked, partial(self._answered, group_id, places))

    def _answered(
        self,
        group_id: str,
        places: Sequence[tuple[SharePlace, ShareProgress]],
        answers: Sequence[LeaderFigures | Exception],
    ) -> None:
        self._far[group_id] = [
            _measure_elsewhere(group_id, place, progress, answer, self._clock.now_ms())
            for (place, progress), answer in zip(places, answers, strict=True)
            if isinstance(answer, LeaderFigures)
        ]

    def _follow(self, group_id: str, offsets: Offsets, log: PartitionLog, position: _Position) -> None:
        if log.offline_reason is not None:
            return
        if self._count >= OFFSETS_MAX:
            self.not_followed += 1
            return
        self._count += 1
        monotonic_ms = self._clock.monotonic_ms()
        which = log.topic, log.partition
        followed = offsets.get(which)
        if followed is None:
            followed = offsets[which] = _Followed(monotonic_ms, position)
        followed.walk = self._walk
        followed.position = position
        followed.consumed.observe(monotonic_ms, _consumed_offset(position))
        self._observe_produced(log, monotonic_ms)
        offset = next_unread(position.next_offset, log.log_start_offset, log.high_watermark)
        if offset is None or self._is_known(followed, log, offset):
            self._measure(group_id, log, followed)
        else:
            self._unread.append(_Unread(group_id, log, followed, offset))

    def _observe_produced(self, log: PartitionLog, monotonic_ms: int) -> None:
        window, walk = self._produced.get(log, (None, 0))
        if walk == self._walk:
            return
        if window is None:
            window = RateWindow(monotonic_ms, log.high_watermark)
        window.observe(monotonic_ms, log.high_watermark)
        self._produced[log] = window, self._walk

    def _is_known(self, followed: _Followed, log: PartitionLog, offset: int) -> bool:
        """Whether the batch found before is still the right one and its segment's times are in memory."""
        if followed.batch is None or followed.batch_of is None:
            return False
        of_log, truncations, compacted_offset, from_offset = followed.batch_of
        is_same = of_log is log and truncations == log.truncations and compacted_offset == self._compacted_offset(log)
        is_within = from_offset <= offset <= followed.batch.last_offset
        return is_same and is_within and all(self._lookup.is_warm(segment) for segment in segments_of(log, offset))

    def _measure(self, group_id: str, log: PartitionLog, followed: _Followed) -> None:
        now_ms = self._clock.now_ms()
        position, batch = followed.position, followed.batch
        offset = next_unread(position.next_offset, log.log_start_offset, log.high_watermark)
        produced = self._produced[log][0].per_second
        figures = measure_lag(
            group_id,
            log.topic,
            log.partition,
            now_ms=now_ms,
            committed_offset=position.committed_offset,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            next_timestamp_ms=None if offset is None or batch is None else timestamp_within(batch, offset),
            deletion_at_ms=None if offset is None or batch is None else log_deletion_at_ms(log, offset, batch, produced, now_ms),
            compacted_offset=self._compacted_offset(log) if log.settings.compact else None,
            consumed_per_second=followed.consumed.per_second,
            produced_per_second=produced,
            warning_seconds=self._warning_seconds,
        )
        if position.settled is not None:
            figures = without_settled(figures, position.settled)
            if offset is None:
                figures = figures._replace(lag_seconds=0.0)
        followed.figures = figures
        if figures.is_losing:
            self._losing.setdefault(group_id, []).append(figures)
        if figures.lost_messages:
            self._lost.setdefault(group_id, []).append(figures)
        if figures.is_behind_compaction:
            self._compacted[group_id] = None

    def _forget_old_offsets(self, track: _GroupTrack) -> None:
        track.offsets = self._walked(track.offsets)

    def _walked(self, offsets: Offsets) -> Offsets:
        """Those that this walk has come by."""
        if all(followed.walk == self._walk for followed in offsets.values()):
            return offsets
        return {key: followed for key, followed in offsets.items() if followed.walk == self._walk}

    def _end(self) -> None:
        self._ask_elsewhere()
        self._groups = {group_id: track for group_id, track in self._groups.items() if track.walk == self._walk}
        self._produced = {log: seen for log, seen in self._produced.items() if seen[1] == self._walk}
        self.groups_losing = tuple(sorted(self._losing))
        self.groups_behind_log_start = tuple(sorted(self._lost))
        self.groups_behind_compaction = tuple(sorted(self._compacted))
        self.warnings.walked(self._losing, self._lost, self._clock.monotonic_ms())
        self.walks += 1


def _measure_elsewhere(
    group_id: str, place: SharePlace, progress: ShareProgress, leader: LeaderFigures, now_ms: int
) -> GroupPartitionLag:
    """What the leader does not say is not known: rates, and what retention is about to delete."""
    start_offset = max(progress.start_offset, 0)
    written_ms = leader.oldest_timestamp_ms
    figures = measure_lag(
        group_id,
        place.topic,
        place.partition,
        now_ms=now_ms,
        committed_offset=start_offset,
        log_start_offset=leader.log_start_offset,
        high_watermark=leader.end_offset,
        next_timestamp_ms=written_ms if written_ms >= 0 else None,
        deletion_at_ms=None,
        compacted_offset=None,
        consumed_per_second=None,
        produced_per_second=None,
        warning_seconds=0,
    )
    figures = without_settled(figures, SettledOffsets(progress.settled, 0))
    # What was lost may have been settled, and only the log's own broker knows.
    figures = figures._replace(lost_messages=0)
    return figures._replace(lag_seconds=0.0) if written_ms == NOTHING_DUE else figures


def make_lag_monitor(broker: "BrokerNode", disk: Disk, executor: Executor) -> LagMonitor:
    def topic_name(topic_id: bytes) -> str | None:
        topic = broker.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def oldest_due_offset(key: SharePartitionKey) -> int | None:
        leader = broker.share_sessions.share_partitions.find_existing(*key)
        engine = None if leader is None else leader.engine
        return None if engine is None else engine.oldest_due_offset

    return LagMonitor(
        broker.coordinators.groups.shards,
        ShareSources(
            lambda: broker.coordinators.share_states.service.runtime, topic_name, oldest_due_offset, partial(ask_leaders, broker)
        ),
        broker.directory.logs,
        broker.directory.cleaner.first_dirty_offset,
        LagLookup(disk, executor, broker.report),
        LagWarnings(broker.report),
        int(broker.config.values["tidelog.lag.deletion.warning.seconds"]),
        clock=broker.clock,
        scheduler=broker.timers,
    )
