"""What a repair of a partition would do: where its log has to end, and what is lost by that. Reads, and changes nothing.

A start checks the log from the recovery point on (recovery.py) and refuses it when that check does not reach the durable mark.
The same check runs here, without changing anything: structure, CRC, rising offsets, and segments that meet. Where it ends is
where the log can end. Damage further down, below the recovery point, does not keep the partition from opening, and to cut there
costs everything behind it: that is done only when it is asked for (``deep``).
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.log import names
from tidelog.log.errors import CorruptCheckpoint, CorruptLog
from tidelog.log.inspection.batch_walk import WalkedBatch, walk_batches
from tidelog.log.inspection.directory_facts import PartitionFacts
from tidelog.log.inspection.findings import OnBytes
from tidelog.log.inspection.index_entries import OFFSET_ENTRY, Fault, read_entries
from tidelog.log.inspection.layout import SegmentFiles, find_segments
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.ports.disk import Disk
from tidelog.records.control import read_end_transaction_marker
from tidelog.records.errors import RecordError
from tidelog.records.header import NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """``problem`` is None when there is nothing that a start would refuse."""

    facts: PartitionFacts
    directory: str
    cut_offset: int
    """The log ends here: at the damage, or where it ends already."""
    problem: str | None = None
    path: str = ""
    position: int = 0
    is_torn_tail: bool = False
    """The damage is at or above the durable mark: the next start cuts it by itself."""
    cut_segment: SegmentFiles | None = None
    """The segment that loses its tail, or stays as the last one. None when none is left."""
    cut_bytes: int = 0
    """Of ``cut_segment``."""
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
        """Acknowledged as durable, and not in the log afterwards."""
        return max(0, self.durable_mark - max(self.cut_offset, self.facts.log_start_offset))


def plan_repair(disk: Disk, directory: str, facts: PartitionFacts, *, deep: bool, on_bytes: OnBytes) -> RepairPlan:
    segments = find_segments(disk, directory)
    # A start removes segments wholly below the log start before it looks at any.
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
    """Where a check begins: the number of a segment, a batch boundary in it, and the offset below which the rest is trusted."""

    number: int
    position: int
    trusted_below: int


def _find_start(disk: Disk, segments: list[SegmentFiles], facts: PartitionFacts) -> _Start:
    """As a start does: from the recovery point, or from the first segment whose indexes are missing."""
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
    """Recovery's check, read-only. ``number``, ``position`` and ``next_offset`` say how far it came."""

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
        # How far it had come before the last batch, if that one did not follow directly.
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
        """Below the recovery point compaction may have left one."""
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
        """Offsets fall. If the batch before had jumped ahead, that one is the damaged one: offsets lie outside of the CRC."""
        if self._jump is not None:
            self.position, self.next_offset = self._jump
