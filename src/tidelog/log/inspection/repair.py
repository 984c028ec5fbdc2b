"""Repairs a partition whose log is damaged below its durable mark. The caller holds the data directory's lock.

    1  what has to be cut is set aside: the tail of the damaged segment is copied, later segments are renamed; synced
    2  the clean-shutdown mark is removed; recovery point, durable mark, high watermark and cleaner offset are lowered; synced
    3  the damaged segment is cut and the log is opened as a start would: indexes, producer state and epochs are rebuilt; synced

Nothing is destroyed: what was cut stays in the partition's directory, in files that end in ``-damaged``.

A crash in step 1 leaves a partition that a start refuses as before, because its mark is still above the damage: repair it
again. A crash in step 2 or 3 leaves a partition whose damage is a torn tail, or one that still has to be repaired: a start, or
another repair, finishes the work, and the bytes have been set aside by then. That is why step 1 comes first: a start between
the two would cut bytes of which there is no copy.

``rebuild_indexes`` rebuilds only the indexes: it lowers the recovery point first, so that a start after a crash rebuilds
whatever is half-built, and raises it again when everything is rebuilt and synced.

``plan_repair`` says in advance where the log would have to end and what would be lost; it changes nothing. A start checks the log
from the recovery point on (log_recovery.py) and refuses it when that check does not reach the durable mark. The plan runs the
same check: structure, CRC, rising offsets, and segments that meet. The log can end where the check ends. Damage further down,
below the recovery point, does not keep the partition from opening, and cutting there would lose everything after it: that happens
only on request (``deep``).
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.log import names
from tidelog.log.compaction.swap import finish_swaps
from tidelog.log.durability.checkpoints import read_offset_checkpoint, remove_clean_shutdown, write_offset_checkpoint
from tidelog.log.durability.disk_reserve import DiskReserve
from tidelog.log.durability.durable_marks import DurableMarks
from tidelog.log.durability.sync_plan import drop_cached_pages, has_failed_sync_mark
from tidelog.log.environment import LogEnvironment, Report
from tidelog.log.errors import CorruptCheckpoint, CorruptLog, DirectoryLocked, DirectoryUnusable, LogError
from tidelog.log.inspection.directory_facts import (
    DAMAGED_SUFFIX,
    DirectoryFacts,
    OnBytes,
    PartitionFacts,
    SegmentFiles,
    Severity,
    find_segments,
    read_directory_facts,
    read_topic_id,
)
from tidelog.log.inspection.file_contents import OFFSET_ENTRY, Fault, WalkedBatch, read_entries, walk_batches
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.partition_log import PartitionLog
from tidelog.log.recovery.directory_opening import sync_all
from tidelog.log.recovery.log_recovery import LogOpening, open_log
from tidelog.log.segments.file_handles import FileHandles
from tidelog.log.segments.indexes import IndexCache
from tidelog.log.settings import LogSettings
from tidelog.ports.clock import Clock
from tidelog.ports.disk import DirectoryLock, Disk
from tidelog.ports.randomness import Randomness
from tidelog.records.control import read_end_transaction_marker
from tidelog.records.errors import RecordError
from tidelog.records.header import NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The changes that a repair would make. ``problem`` is None if a start would not refuse anything."""

    facts: PartitionFacts
    directory: str
    cut_offset: int
    """Where the log will end: at the damage, or where it ends already."""
    problem: str | None = None
    path: str = ""
    position: int = 0
    is_torn_tail: bool = False
    """The damage is at or above the durable mark, so the next start cuts it without a repair."""
    cut_segment: SegmentFiles | None = None
    """The segment that loses its tail, or stays as the last one. None when no segment is left."""
    cut_bytes: int = 0
    """Where ``cut_segment`` is cut."""
    later_segments: tuple[SegmentFiles, ...] = ()
    later_bytes: int = 0

    @property
    def is_needed(self) -> bool:
        return self.problem is not None and not self.is_torn_tail

    @property
    def durable_mark(self) -> int:
        return self.facts.durable_mark or 0

    @property
    def lost_offsets(self) -> int:
        """The number of offsets that were acknowledged as durable and will not be in the log afterwards."""
        return max(0, self.durable_mark - max(self.cut_offset, self.facts.log_start_offset))


def plan_repair(disk: Disk, directory: str, facts: PartitionFacts, *, deep: bool, on_bytes: OnBytes) -> RepairPlan:
    segments = find_segments(disk, directory)
    # A start removes the segments that lie wholly below the log start before it checks any.
    while len(segments) > 1 and segments[1].base_offset <= facts.log_start_offset:
        segments.pop(0)
    if not segments:
        cut_offset = facts.log_start_offset
        is_lost = facts.durable_mark is not None and facts.durable_mark > cut_offset
        return RepairPlan(facts, directory, cut_offset, "no segment is left" if is_lost else None, directory)
    start = _Start(0, 0, segments[0].base_offset) if deep else _find_start(disk, segments, facts)
    check = _Check(disk, facts, segments, on_bytes)
    check.run(start, _leader_epoch_before(disk, directory, start.trusted_below))
    mark = facts.durable_mark or 0
    problem = check.problem
    if problem is None and check.next_offset < mark:
        problem = "the log ends here"
    last = segments[check.number]
    later = tuple(segments[check.number + 1 :])
    return RepairPlan(
        facts=facts,
        directory=directory,
        cut_offset=check.next_offset,
        problem=problem,
        path=last.log_path,
        position=check.position,
        is_torn_tail=check.next_offset >= mark,
        cut_segment=last,
        cut_bytes=disk.file_size(last.log_path) - check.position,
        later_segments=later,
        later_bytes=sum(disk.file_size(segment.log_path) for segment in later),
    )


class _Start(NamedTuple):
    """Where a check begins: the index of a segment, a batch boundary in it, and the offset below which everything is trusted."""

    number: int
    position: int
    trusted_below: int


def _find_start(disk: Disk, segments: list[SegmentFiles], facts: PartitionFacts) -> _Start:
    """Begin where a start does: at the recovery point, or at the first segment whose indexes are missing."""
    recovery_point = facts.recovery_point
    for number, segment in enumerate(segments):
        if segment.base_offset < recovery_point and disk.file_size(segment.log_path):
            paths = (segment.path(suffix) for suffix in (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX))
            if not all(disk.exists(path) for path in paths):
                return _Start(number, 0, segment.base_offset)
    number = max((number for number, segment in enumerate(segments) if segment.base_offset <= recovery_point), default=0)
    segment = segments[number]
    position = _indexed_position(disk, segment, recovery_point)
    return _Start(number, 0, segment.base_offset) if position is None else _Start(number, position, recovery_point)


def _indexed_position(disk: Disk, segment: SegmentFiles, recovery_point: int) -> int | None:
    """Where the last index entry below the recovery point points to; None when the index cannot be trusted."""
    if recovery_point <= segment.base_offset or not disk.exists(segment.path(names.INDEX_SUFFIX)):
        return None
    last_offset = position = 0
    for entry in read_entries(disk.open(segment.path(names.INDEX_SUFFIX), "read"), OFFSET_ENTRY):
        if isinstance(entry, Fault):
            return None
        offset = segment.base_offset + entry.fields[0]
        if offset < recovery_point:
            last_offset, position = offset, entry.fields[1]
    file = disk.open(segment.log_path, "read")
    try:
        for batch in walk_batches(file, position, file.size()):
            return position if position == 0 or batch.header.last_offset == last_offset else None
    except CorruptLog:
        pass
    return None


def _leader_epoch_before(disk: Disk, directory: str, offset: int) -> int:
    """The latest leader epoch that begins below ``offset``, by the checkpoint."""
    epochs = LeaderEpochs(disk, names.join(directory, names.LEADER_EPOCH_CHECKPOINT))
    with suppress(CorruptCheckpoint):
        epochs.load()
    epochs.truncate_from_end(offset)
    return epochs.latest_epoch


class _Check:
    """Recovery's check without changes. ``number``, ``position`` and ``next_offset`` say how far it came."""

    def __init__(self, disk: Disk, facts: PartitionFacts, segments: list[SegmentFiles], on_bytes: OnBytes) -> None:
        self._disk = disk
        self._facts = facts
        self._segments = segments
        self._on_bytes = on_bytes
        self.number = 0
        self.position = 0
        self.next_offset = 0
        self.problem: str | None = None
        self._leader_epoch = NO_LEADER_EPOCH
        self._trusted_below = 0
        # How far the check had come before the last batch, if that one did not follow directly.
        self._jump: tuple[int, int] | None = None

    def run(self, start: _Start, leader_epoch: int) -> None:
        self._leader_epoch = leader_epoch
        self._trusted_below = start.trusted_below
        for number in range(start.number, len(self._segments)):
            segment = self._segments[number]
            if number > start.number and self._is_gap(segment):
                self.problem = f"the next segment begins at offset {segment.base_offset}"
                if segment.base_offset < self.next_offset:
                    self._step_back()
                return
            self.number = number
            self._jump = None
            self._run_segment(segment, start.position if number == start.number else 0)
            if self.problem is not None:
                return

    def _is_gap(self, segment: SegmentFiles) -> bool:
        """Whether there is a gap before this segment that is not allowed. Compaction may have left gaps below the recovery
        point."""
        if segment.base_offset > self.next_offset:
            return self._facts.has_marks and self.next_offset >= self._facts.recovery_point
        return segment.base_offset < self.next_offset

    def _run_segment(self, segment: SegmentFiles, position: int) -> None:
        file = self._disk.open(segment.log_path, "read")
        if position == 0:
            self.next_offset = segment.base_offset
        self.position = position
        try:
            for batch in walk_batches(file, position, file.size()):
                header = batch.header
                if batch.position == position and position:
                    self.next_offset = header.base_offset
                self._on_bytes(header.size)
                self.problem = self._problem(batch)
                if self.problem is not None:
                    return
                self._jump = (self.position, self.next_offset) if header.base_offset > self.next_offset else None
                self.position = batch.position + header.size
                self.next_offset = header.next_offset
        except CorruptLog as error:
            self.problem = error.reason

    def _problem(self, batch: WalkedBatch) -> str | None:
        header = batch.header
        if not batch.crc_is_valid:
            return "a batch's CRC does not match its bytes"
        if header.base_offset < self.next_offset or header.last_offset_delta < 0:
            problem = f"a batch has offsets {header.base_offset} to {header.last_offset} after {self.next_offset - 1}"
            self._step_back()
            return problem
        if header.base_offset < self._trusted_below:
            return None
        if NO_LEADER_EPOCH < header.leader_epoch < self._leader_epoch:
            return f"a batch of leader epoch {header.leader_epoch} after one of {self._leader_epoch}"
        self._leader_epoch = max(self._leader_epoch, header.leader_epoch)
        if header.producer_id >= 0 and header.is_control:
            try:
                read_end_transaction_marker(batch.data or b"", 0, header)
            except RecordError as error:
                return str(error)
        return None

    def _step_back(self) -> None:
        """The offsets fall. If the previous batch had jumped ahead, that one is damaged: the CRC does not cover offsets."""
        if self._jump is not None:
            self.position, self.next_offset = self._jump


_COPY_BYTES = 1 << 20
_OPEN_FILES_MAX = 64
_INDEX_CACHE_BYTES = 64 << 20
# A repair syncs a single log: file by file, however many there are.
_NEVER_SYNCFS = 1 << 30


class RepairImpossible(LogError):
    """The problem cannot be solved by cutting or rebuilding."""


def lock_directory(disk: Disk, path: str) -> DirectoryLock:
    try:
        return disk.lock(names.join(path, names.LOCK_FILE))
    except BlockingIOError as error:
        raise DirectoryLocked(f"{path} is used by a running broker: stop it before repairing") from error
    except OSError as error:
        raise DirectoryUnusable(f"{path} cannot be locked for a repair: {error.strerror or error}") from error


def read_facts_for_repair(disk: Disk, path: str) -> DirectoryFacts:
    """Raises RepairImpossible when the directory's own files are so damaged that no broker would start here."""
    facts = read_directory_facts(disk, path)
    for problem in facts.problems:
        if problem.severity is Severity.DAMAGE and "will not start" in problem.meaning:
            raise RepairImpossible(f"{problem.problem}: {problem.meaning}")
    return facts


class Repair:
    """The repair of one partition, whose data directory the caller has locked. ``report`` is called with recovery's events."""

    def __init__(
        self, disk: Disk, clock: Clock, randomness: Randomness, data_directory: str, name: str, report: Report, on_bytes: OnBytes
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._randomness = randomness
        self._data_directory = data_directory
        self._name = name
        self._directory = names.join(data_directory, name)
        self._report = report
        self._on_bytes = on_bytes
        self.set_aside: list[str] = []
        """The files that hold the bytes that were cut from the log."""

    def plan(self, facts: PartitionFacts, *, deep: bool = False) -> RepairPlan:
        """Return what ``cut`` would do; changes nothing."""
        if has_failed_sync_mark(self._disk, self._directory):
            drop_cached_pages(self._disk, self._directory)
        return plan_repair(self._disk, self._directory, facts, deep=deep, on_bytes=self._on_bytes)

    def cut(self, facts: PartitionFacts, *, deep: bool = False) -> PartitionLog:
        """Cut the log. Blocks until the repaired log is durable."""
        # Finish compaction's swaps first, as a start does. A plan that was made before stays valid, because it considers swap
        # files.
        finish_swaps(self._disk, self._directory)
        plan = self.plan(facts, deep=deep)
        if not plan.is_needed:
            raise RepairImpossible(f"{self._directory} needs no repair")
        self._put_aside(plan)
        segment = plan.cut_segment
        base_offset = plan.cut_offset if segment is None else segment.base_offset
        self._lower(plan.cut_offset, base_offset)
        if segment is not None and plan.cut_bytes:
            file = self._disk.open(segment.log_path, "write")
            file.truncate(plan.position)
            file.sync()
        return self._open(facts, min(base_offset, facts.recovery_point), plan.cut_offset)

    def rebuild_indexes(self, facts: PartitionFacts) -> PartitionLog:
        """Rebuild the indexes. Blocks until they are durable. Raises RepairImpossible when the log itself is damaged."""
        finish_swaps(self._disk, self._directory)
        plan = self.plan(facts, deep=True)
        if plan.is_needed:
            raise RepairImpossible(
                f"{plan.path} is damaged at byte {plan.position}: {plan.problem}; repair the log before its indexes"
            )
        self._lower_checkpoints((names.RECOVERY_POINT_CHECKPOINT,), 0)
        log = self._open(facts, 0, facts.durable_mark or 0)
        self._change_checkpoint(names.RECOVERY_POINT_CHECKPOINT, lambda _: log.recovery_point)
        return log

    # -- steps ---------------------------------------------------------------------------------------------------------------

    def _put_aside(self, plan: RepairPlan) -> None:
        disk, segment = self._disk, plan.cut_segment
        suffix = f".{self._clock.now_ms()}{DAMAGED_SUFFIX}"
        if segment is not None and plan.cut_bytes:
            self._copy_tail(segment.log_path, plan.position, f"{segment.log_path}.at-{plan.position}{suffix}")
        for later in plan.later_segments:
            for kind in names.SEGMENT_SUFFIXES:
                path = later.path(kind)
                if disk.exists(path):
                    disk.rename(path, path + suffix)
                    self.set_aside.append(path + suffix)
        disk.sync_directory(self._directory)

    def _copy_tail(self, path: str, position: int, copy_path: str) -> None:
        source, copy = self._disk.open(path, "read"), self._disk.open(copy_path, "create")
        at = 0
        while data := source.read(position + at, _COPY_BYTES):
            at += copy.write(at, [data])
        copy.sync()
        self.set_aside.append(copy_path)

    def _lower(self, offset: int, base_offset: int) -> None:
        """Lower the recovery point to the segment's beginning: everything that is derived from it will be rebuilt."""
        self._lower_checkpoints((names.RECOVERY_POINT_CHECKPOINT,), min(base_offset, offset))
        self._lower_checkpoints((names.HIGH_WATERMARK_CHECKPOINT, names.CLEANER_CHECKPOINT), offset)
        marks = DurableMarks.open(self._disk, self._data_directory)
        topic_id = read_topic_id(self._disk, self._directory)
        mark = marks.mark(self._name, topic_id)
        if mark is not None and mark > offset:
            marks.record(self._name, topic_id, offset)
            marks.flush()

    def _lower_checkpoints(self, file_names: tuple[str, ...], offset: int) -> None:
        # The mark says that recovery points are log ends, which is about to become false.
        remove_clean_shutdown(self._disk, self._data_directory)
        for file_name in file_names:
            self._change_checkpoint(file_name, lambda before: min(before, offset))

    def _change_checkpoint(self, file_name: str, change: Callable[[int], int]) -> None:
        path = names.join(self._data_directory, file_name)
        parsed = names.parse_partition_directory_name(self._name)
        assert parsed is not None, self._name
        key = parsed.topic, parsed.partition
        try:
            offsets = read_offset_checkpoint(self._disk, path)
        except CorruptCheckpoint:
            # A start treats this checkpoint as empty. Writing one offset would make it look as if there were no others.
            return
        if key in offsets and change(offsets[key]) != offsets[key]:
            write_offset_checkpoint(self._disk, path, offsets | {key: change(offsets[key])})

    def _open(self, facts: PartitionFacts, recovery_point: int, durable_mark: int) -> PartitionLog:
        disk = self._disk
        parsed = names.parse_partition_directory_name(self._name)
        assert parsed is not None, self._name
        environment = LogEnvironment(
            disk=disk,
            clock=self._clock,
            randomness=self._randomness,
            handles=FileHandles(disk, _OPEN_FILES_MAX),
            index_cache=IndexCache(_INDEX_CACHE_BYTES),
            reserve=DiskReserve(disk, self._data_directory, 0, self._report),
            on_dirty=lambda _: None,
            report=self._report,
        )
        opening = LogOpening(
            topic=parsed.topic,
            partition=parsed.partition,
            topic_id=read_topic_id(disk, self._directory),
            directory=self._directory,
            settings=LogSettings(),
            recovery_point=recovery_point,
            log_start_offset=facts.log_start_offset,
            durable_mark=durable_mark,
            was_stopped_cleanly=False,
            # The plan has found the gaps that matter; compaction left the others.
            has_marks=False,
        )
        log = open_log(environment, opening)
        sync_all(disk, disk.open_filesystem(self._data_directory), [log], _NEVER_SYNCFS)
        log.check_online()
        return log
