"""Make a partition usable again whose log is damaged below its durable mark. The data directory's lock is held meanwhile.

    1  what is to be cut is put aside: the damaged segment's tail is copied, later segments are renamed; synced
    2  the clean-shutdown mark goes; recovery point, durable mark, high watermark and cleaner's offset come down; synced
    3  the damaged segment is cut, the log is opened as a start would: indexes, producers' state and epochs are rebuilt; synced

Nothing is destroyed: what was cut stays in the partition's directory, in files that end in ``-damaged``.

A crash in 1 leaves a partition that a start refuses as before, for its mark is still above the damage: repair it again. A crash
from 2 on leaves one whose damage is a torn tail, or which still has to be repaired: a start, or another repair, finishes the
work, and the bytes are aside by then. That is why 1 comes before 2: a start between the two would cut what nobody has kept.

Indexes alone (``rebuild_indexes``): the recovery point comes down first, so that a start after a crash rebuilds what is
half-built; when all is rebuilt and synced it goes up again.
"""

from collections.abc import Callable

from tidelog.log import names
from tidelog.log.checkpoints import read_offset_checkpoint, remove_clean_shutdown, write_offset_checkpoint
from tidelog.log.directory_opening import sync_all
from tidelog.log.durable_marks import DurableMarks
from tidelog.log.environment import LogEnvironment, Report
from tidelog.log.errors import CorruptCheckpoint, DirectoryLocked, DirectoryUnusable, LogError
from tidelog.log.failed_sync import drop_cached_pages, has_failed_sync_mark
from tidelog.log.file_handles import FileHandles
from tidelog.log.index_cache import IndexCache
from tidelog.log.inspection.directory_facts import DirectoryFacts, PartitionFacts, read_directory_facts, read_topic_id
from tidelog.log.inspection.findings import OnBytes, Severity
from tidelog.log.inspection.layout import DAMAGED_SUFFIX
from tidelog.log.inspection.repair_plan import RepairPlan, plan_repair
from tidelog.log.partition_log import PartitionLog
from tidelog.log.recovery import LogOpening, open_log
from tidelog.log.settings import LogSettings
from tidelog.log.swap import finish_swaps
from tidelog.ports.clock import Clock
from tidelog.ports.disk import DirectoryLock, Disk
from tidelog.ports.randomness import Randomness

_COPY_BYTES = 1 << 20
_OPEN_FILES_MAX = 64
_INDEX_CACHE_BYTES = 64 << 20
# A repair syncs one log: file by file, whatever their number.
_NEVER_SYNCFS = 1 << 30


class RepairImpossible(LogError):
    """What is wrong is nothing that cutting or rebuilding mends."""


def lock_directory(disk: Disk, path: str) -> DirectoryLock:
    try:
        return disk.lock(names.join(path, names.LOCK_FILE))
    except BlockingIOError as error:
        raise DirectoryLocked(f"{path} is used by a running broker: stop it before repairing") from error
    except OSError as error:
        raise DirectoryUnusable(f"{path} cannot be locked for a repair: {error.strerror or error}") from error


def read_facts_for_repair(disk: Disk, path: str) -> DirectoryFacts:
    """RepairImpossible when the directory's own files are so damaged that no broker would start here."""
    facts = read_directory_facts(disk, path)
    for problem in facts.problems:
        if problem.severity is Severity.DAMAGE and "will not start" in problem.meaning:
            raise RepairImpossible(f"{problem.problem}: {problem.meaning}")
    return facts


class Repair:
    """Of one partition, whose data directory is locked by the caller. ``report`` hears what recovery does."""

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
        """Where the bytes are that were taken out of the log."""

    def plan(self, facts: PartitionFacts, *, deep: bool = False) -> RepairPlan:
        """What ``cut`` would do; changes nothing."""
        if has_failed_sync_mark(self._disk, self._directory):
            drop_cached_pages(self._disk, self._directory)
        return plan_repair(self._disk, self._directory, facts, deep=deep, on_bytes=self._on_bytes)

    def cut(self, facts: PartitionFacts, *, deep: bool = False) -> PartitionLog:
        """Do it. Blocks until the repaired log is durable."""
        # Compaction's swaps first, as a start does: a plan made before says the same, for it looks at the swap files.
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
        """Blocks until they are durable. RepairImpossible when the log itself is damaged."""
        finish_swaps(self._disk, self._directory)
        plan = self.plan(facts, deep=True)
        if plan.is_needed:
            raise RepairImpossible(
                f"{plan.path} is damaged at byte {plan.position}: {plan.problem}; the log comes before its indexes"
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
        """The recovery point comes down to the segment's beginning: all that is derived from it is to be rebuilt."""
        self._lower_checkpoints((names.RECOVERY_POINT_CHECKPOINT,), min(base_offset, offset))
        self._lower_checkpoints((names.HIGH_WATERMARK_CHECKPOINT, names.CLEANER_CHECKPOINT), offset)
        marks = DurableMarks.open(self._disk, self._data_directory)
        topic_id = read_topic_id(self._disk, self._directory)
        mark = marks.mark(self._name, topic_id)
        if mark is not None and mark > offset:
            marks.record(self._name, topic_id, offset)
            marks.flush()

    def _lower_checkpoints(self, file_names: tuple[str, ...], offset: int) -> None:
        # It says that recovery points are log ends, which is about to become untrue.
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
            return  # A start takes it for empty, and to write it would make one offset of it look like all that there ever was.
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
            # The plan has found the gaps that count; the others are compaction's.
            has_marks=False,
        )
        log = open_log(environment, opening)
        sync_all(disk, disk.open_filesystem(self._data_directory), [log], _NEVER_SYNCFS)
        log.check_online()
        return log
