"""Checks whether a partition is sound. Verification reads everything, writes nothing and takes no lock, so it may run next to a
broker.

One pass checks the batches (structure, CRC, rising offsets and leader epochs) together with the indexes; then come the
snapshots, the leader epochs and the durable mark.

What damage means depends on the durable mark, exactly as in recovery (log_recovery.py): below it acknowledged bytes are lost;
at or above it the next start cuts. The next start also rebuilds everything that is derived from the offsets it checks, so an
index that is wrong there is only a note.

Beside a running broker the end of the log moves: a batch that is just being written looks like a torn tail, and a segment that
retention removes disappears while it is read. Both are notes.

Each index check goes through its index file in step with the batches, both in order, so that neither has to be in memory. It
stops at the first fault: after one wrong entry nothing can be said about the others.

    offset index       an entry (offset, position): a batch begins at this position, and this batch, or a later one of the same
                       append, ends at this offset
    time index         an entry (timestamp, offset): the batch that holds this offset carries this timestamp, and no earlier
                       batch carries a later one
    transaction index  an entry is the abort marker at its last offset; every marker that aborted records still in the log has one

``verify_file`` checks a single small file: a snapshot, a checkpoint, or the journal of durable marks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.log import names
from tidelog.log.durability.checkpoints import read_meta_properties, read_offset_checkpoint, read_partition_metadata, read_whole
from tidelog.log.durability.durable_marks import decode_journal
from tidelog.log.durability.sync_plan import drop_cached_pages, has_failed_sync_mark
from tidelog.log.errors import CorruptCheckpoint, CorruptLog, CorruptSnapshot
from tidelog.log.inspection.directory_facts import (
    CHECKPOINTS,
    FileTarget,
    Finding,
    OnBytes,
    OnFinding,
    PartitionFacts,
    SegmentFiles,
    Severity,
    find_segments,
)
from tidelog.log.inspection.file_contents import ENTRY_BY_KIND, Fault, IndexEntry, WalkedBatch, read_entries, walk_batches
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.producers.producer_snapshot import decode_snapshot
from tidelog.log.producers.producer_state import NO_TRANSACTION
from tidelog.log.segments.indexes import NO_TIMESTAMP
from tidelog.ports.disk import Disk, DiskFile
from tidelog.records.control import ControlType, read_control_type
from tidelog.records.errors import RecordError
from tidelog.records.header import NO_LEADER_EPOCH, BatchHeader


class IndexCheck:
    """The check of one index. ``fault`` is the first thing that is wrong."""

    KIND: str

    def __init__(self, file: DiskFile | None, base_offset: int) -> None:
        self.base_offset = base_offset
        self.is_missing = file is None
        self.fault: Fault | None = None
        self._entries: Iterator[IndexEntry | Fault] = iter(()) if file is None else read_entries(file, ENTRY_BY_KIND[self.KIND])
        self._next: IndexEntry | None = None
        self._advance()

    @classmethod
    def open(cls, disk: Disk, path: str, base_offset: int) -> "IndexCheck":
        try:
            return cls(disk.open(path, "read"), base_offset)
        except FileNotFoundError:
            return cls(None, base_offset)

    def _advance(self) -> None:
        before, self._next = self._next, None
        found = next(self._entries, None)
        if isinstance(found, Fault):
            self.fault = found
        elif found is not None:
            if before is not None and not self._comes_after(before.fields, found.fields):
                self._fail(found, "it does not come after the entry before it")
            else:
                self._next = found

    def _fail(self, entry: IndexEntry, reason: str) -> None:
        self.fault = Fault(
            entry.position, self._offset(entry.fields), f"entry {entry.number} ({self._text(entry.fields)}): {reason}"
        )
        self._next = None

    def finish(self) -> None:
        """Called when the segment has ended: there must be no entry left."""
        if self.fault is None and self._next is not None:
            self._fail(self._next, "it points beyond the end of the segment")

    def _comes_after(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        raise NotImplementedError

    def _offset(self, fields: tuple[int, ...]) -> int:
        raise NotImplementedError

    def _text(self, fields: tuple[int, ...]) -> str:
        raise NotImplementedError

    def on_batch(self, position: int, header: BatchHeader, /) -> None:
        raise NotImplementedError


class OffsetIndexCheck(IndexCheck):
    KIND = names.INDEX_SUFFIX

    def __init__(self, file: DiskFile | None, base_offset: int) -> None:
        # An entry's batch was not the last one of its append: the batch that ends at its offset must follow.
        self._open: IndexEntry | None = None
        super().__init__(file, base_offset)

    def on_batch(self, position: int, header: BatchHeader, /) -> None:
        if self._open is not None:
            self._close(self._open, header)
        entry = self._next
        if entry is None or entry.fields[1] > position:
            return
        offset = self._offset(entry.fields)
        if entry.fields[1] < position:
            self._fail(entry, "no batch begins at this position")
        elif offset < header.last_offset:
            self._fail(entry, f"the batch at this position has offsets {header.base_offset} to {header.last_offset}")
        else:
            if offset > header.last_offset:
                self._open = entry
            self._advance()

    def _close(self, entry: IndexEntry, header: BatchHeader) -> None:
        offset = self._offset(entry.fields)
        if header.last_offset >= offset:
            self._open = None
            if header.last_offset > offset:
                self._fail(entry, "no batch ends at this offset")

    def finish(self) -> None:
        super().finish()
        if self.fault is None and self._open is not None:
            self._fail(self._open, "no batch ends at this offset")

    def _comes_after(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return after[0] > before[0] and after[1] > before[1]

    def _offset(self, fields: tuple[int, ...]) -> int:
        return self.base_offset + fields[0]

    def _text(self, fields: tuple[int, ...]) -> str:
        return f"offset {self._offset(fields)}, position {fields[1]}"


class TimeIndexCheck(IndexCheck):
    KIND = names.TIME_INDEX_SUFFIX

    def __init__(self, file: DiskFile | None, base_offset: int) -> None:
        self._max_timestamp = NO_TIMESTAMP
        super().__init__(file, base_offset)

    def on_batch(self, _: int, header: BatchHeader, /) -> None:
        while (entry := self._next) is not None and (offset := self._offset(entry.fields)) <= header.last_offset:
            timestamp = entry.fields[0]
            if offset < header.base_offset:
                self._fail(entry, "no batch holds this offset")
            elif timestamp < self._max_timestamp:
                self._fail(entry, f"an earlier batch has timestamp {self._max_timestamp}")
            # Older Kafka versions name the record that carries the timestamp, not the end of its batch.
            elif timestamp > header.max_timestamp or (offset == header.last_offset and timestamp != header.max_timestamp):
                self._fail(entry, f"the batch of this offset has timestamp {header.max_timestamp}")
            else:
                self._advance()
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)

    def _comes_after(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return after[0] > before[0] and after[1] >= before[1]

    def _offset(self, fields: tuple[int, ...]) -> int:
        return self.base_offset + fields[1]

    def _text(self, fields: tuple[int, ...]) -> str:
        return f"timestamp {fields[0]}, offset {self._offset(fields)}"


class TransactionIndexCheck(IndexCheck):
    KIND = names.TRANSACTION_INDEX_SUFFIX

    def on_batch(self, _: int, header: BatchHeader, /) -> None:
        entry = self._next
        if entry is not None and self._offset(entry.fields) <= header.last_offset:
            self._fail(entry, "there is no abort marker at its last offset")

    def on_abort(self, header: BatchHeader, first_offset: int | None, expected: tuple[int, int] | None) -> None:
        """Check the entry of an abort marker. ``first_offset`` is the offset of the first record in the log that it aborts; None
        if no such record is left. ``expected`` holds the exact first offset and last stable offset of the entry, if they are
        known."""
        entry = self._next
        offset = header.base_offset
        if entry is not None and self._offset(entry.fields) < offset:
            self._fail(entry, "there is no abort marker at its last offset")
        elif entry is not None and self._offset(entry.fields) == offset:
            version, producer_id, entry_first_offset, _, last_stable_offset = entry.fields
            if version != 0:
                self._fail(entry, f"its version is {version}, but only 0 is known")
            elif producer_id != header.producer_id:
                self._fail(entry, f"the marker at its last offset belongs to producer {header.producer_id}")
            elif entry_first_offset > (offset if first_offset is None else first_offset):
                self._fail(entry, f"the transaction begins at offset {first_offset} already")
            elif expected is not None and expected != (entry_first_offset, last_stable_offset):
                said = f"{entry_first_offset} and {last_stable_offset}"
                self._fail(
                    entry, f"first offset and last stable offset are {said}, but should be {expected[0]} and {expected[1]}"
                )
            else:
                self._advance()
        elif self.fault is None and first_offset is not None:
            reason = f"the transaction of producer {header.producer_id} that was aborted at offset {offset} has no entry"
            self.fault = Fault(0 if entry is None else entry.position, offset, reason)

    def _comes_after(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return after[3] > before[3] and after[4] >= before[4]

    def _offset(self, fields: tuple[int, ...]) -> int:
        return fields[3]

    def _text(self, fields: tuple[int, ...]) -> str:
        return f"producer {fields[1]}, offsets {fields[2]} to {fields[3]}"


REPAIR_HINT = "the partition cannot be opened; see: tidelog log repair"
REBUILD_HINT = "lookups go astray; rebuild it: tidelog log repair --rebuild-indexes"
_DERIVED_HINT = "the next start rebuilds it from the log"


@dataclass(slots=True)
class PartitionSummary:
    name: str
    segments: int = 0
    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    start_offset: int = 0
    end_offset: int = 0
    durable_mark: int | None = None
    damage_count: int = 0
    note_count: int = 0

    @property
    def is_sound(self) -> bool:
        return not self.damage_count


def verify_partition(
    disk: Disk, directory: str, facts: PartitionFacts, on_finding: OnFinding, on_bytes: OnBytes, only_segment: int | None = None
) -> PartitionSummary:
    """``only_segment``: the base offset of the only segment to check."""
    return _PartitionVerification(disk, directory, facts, on_finding, on_bytes).run(only_segment)


class _PartitionVerification:
    def __init__(self, disk: Disk, directory: str, facts: PartitionFacts, on_finding: OnFinding, on_bytes: OnBytes) -> None:
        self._disk = disk
        self._directory = directory
        self._facts = facts
        self._on_finding = on_finding
        self._on_bytes = on_bytes
        self._summary = PartitionSummary(facts.name, durable_mark=facts.durable_mark)
        self._next_offset = 0
        self._first_base_offset = 0
        # False after a damaged batch: its end is unknown.
        self._end_is_known = True
        self._leader_epoch = NO_LEADER_EPOCH
        # For each producer, the first offset in the log of its open transaction.
        self._open_transactions: dict[int, int] = {}
        self._epochs: LeaderEpochs | None = None
        # Records are missing between or within batches: only compaction removes single records.
        self._is_compacted = False
        # A damaged batch may have been a marker, or the beginning of a transaction.
        self._transactions_are_known = True

    def run(self, only_segment: int | None) -> PartitionSummary:
        disk, directory, summary = self._disk, self._directory, self._summary
        if has_failed_sync_mark(disk, directory):
            drop_cached_pages(disk, directory)
            self._note(
                names.join(directory, names.FAILED_SYNC_MARK),
                "a sync failed here",
                "the next start checks what the disk itself holds",
            )
        self._load_epochs()
        segments = find_segments(disk, directory)
        if only_segment is not None:
            segments = [segment for segment in segments if segment.base_offset == only_segment]
        summary.segments = len(segments)
        summary.start_offset = max(self._facts.log_start_offset, segments[0].base_offset if segments else 0)
        self._next_offset = segments[0].base_offset if segments else summary.start_offset
        self._first_base_offset = self._next_offset
        for number, segment in enumerate(segments):
            if number and segment.base_offset != self._next_offset and self._is_damaging_gap(segments[number - 1], segment):
                break
            if not self._verify_segment(segment):
                self._report_uncut(segments[number + 1 :])
                break
        summary.end_offset = max(self._next_offset, summary.start_offset)
        if only_segment is None:
            self._verify_end(segments)
            self._verify_snapshots()
            self._verify_topic_id()
        return summary

    # -- findings ------------------------------------------------------------------------------------------------------------

    def _find(self, severity: Severity, path: str, position: int | None, offset: int | None, problem: str, meaning: str) -> None:
        if severity is Severity.DAMAGE:
            self._summary.damage_count += 1
        else:
            self._summary.note_count += 1
        self._on_finding(Finding(severity, self._facts.name, path, position, offset, problem, meaning))

    def _note(self, path: str, problem: str, meaning: str) -> None:
        self._find(Severity.NOTE, path, None, None, problem, meaning)

    def _report_damage(self, path: str, position: int, offset: int, problem: str) -> bool:
        """Report damage in the log. Returns False when it is a torn tail, so that everything after it is cut too."""
        mark = self._facts.durable_mark
        if mark is None:
            self._find(
                Severity.DAMAGE,
                path,
                position,
                offset,
                problem,
                "nothing says whether this was durable: the file lies in no data directory",
            )
            return True
        if offset >= mark:
            self._find(
                Severity.NOTE,
                path,
                position,
                offset,
                problem,
                f"a torn tail, above the durable mark {mark}: the next start will cut it",
            )
            return False
        meaning = f"corruption: everything below offset {mark} was durable"
        is_seen = offset >= self._facts.recovery_point or self._facts.rebuilt_from <= offset
        hint = REPAIR_HINT if is_seen else "the partition opens, but readers fail here; see: tidelog log repair --deep"
        self._find(Severity.DAMAGE, path, position, offset, problem, f"{meaning}; {hint}")
        return True

    def _report_uncut(self, later: list[SegmentFiles]) -> None:
        for segment in later:
            self._note(segment.log_path, "a segment behind the torn tail", "the next start removes it")

    # -- the log -------------------------------------------------------------------------------------------------------------

    def _is_damaging_gap(self, before: SegmentFiles, segment: SegmentFiles) -> bool:
        """Report two segments that do not meet. Returns True when everything from here on is a torn tail."""
        facts, path = self._facts, before.log_path
        problem = f"the segment ends at offset {self._next_offset}, but the next one begins at {segment.base_offset}"
        position = self._disk.file_size(path)
        if segment.base_offset < self._next_offset:
            return not self._report_damage(segment.log_path, 0, segment.base_offset, problem)
        if self._next_offset >= facts.rebuilt_from and facts.has_marks:
            return not self._report_damage(path, position, self._next_offset, problem)
        if self._is_compacted:
            self._find(
                Severity.NOTE, path, position, self._next_offset, problem, "as compaction leaves it: this log was compacted"
            )
        else:
            meaning = "a segment is missing (or Kafka has compacted all of it away)"
            self._find(Severity.DAMAGE, path, position, self._next_offset, problem, meaning)
        self._next_offset = segment.base_offset
        return False

    def _verify_segment(self, segment: SegmentFiles) -> bool:
        """Returns False when the segment ends in a torn tail."""
        disk, path = self._disk, segment.log_path
        try:
            file = disk.open(path, "read")
        except FileNotFoundError:
            self._note(path, "the segment went away while it was read", "retention or compaction of a running broker removed it")
            return True
        size = file.size()
        self._summary.size_bytes += size
        checks = _index_checks(disk, segment)
        goes_on, is_whole = True, True
        try:
            for batch in walk_batches(file, 0, size):
                self._on_bytes(batch.header.size)
                problem = self._batch_problem(batch)
                if problem is None:
                    self._take(path, batch, checks if is_whole else [])
                    continue
                is_whole = self._transactions_are_known = False
                # A batch whose offsets fall back shows that an earlier one went too far: the CRC does not cover offsets.
                offset = min(self._next_offset, max(batch.header.base_offset, segment.base_offset))
                goes_on = self._report_damage(path, batch.position, offset, problem)
                if not goes_on:
                    break
                self._step_over(batch)
        except CorruptLog as error:
            is_whole = self._transactions_are_known = False
            goes_on = self._report_damage(path, error.position, self._next_offset, error.reason)
        self._finish_indexes(segment, checks, is_whole)
        return goes_on

    def _batch_problem(self, batch: WalkedBatch) -> str | None:
        header = batch.header
        if not batch.crc_is_valid:
            return "a batch's CRC does not match its bytes"
        if header.last_offset_delta < 0 or header.base_offset < self._next_offset:
            return f"a batch has offsets {header.base_offset} to {header.last_offset} after {self._next_offset - 1}"
        if NO_LEADER_EPOCH < header.leader_epoch < self._leader_epoch:
            return f"a batch has leader epoch {header.leader_epoch} after {self._leader_epoch}"
        return None

    def _step_over(self, batch: WalkedBatch) -> None:
        """The fields of a damaged batch mean nothing; only its position in the order is kept, if it has one."""
        self._next_offset = max(self._next_offset, batch.header.base_offset) + 1
        self._end_is_known = False

    def _take(self, path: str, batch: WalkedBatch, checks: list[IndexCheck]) -> None:
        header, summary = batch.header, self._summary
        if header.record_count <= header.last_offset_delta or (header.base_offset > self._next_offset and self._end_is_known):
            self._is_compacted = True
        self._end_is_known = True
        summary.batches += 1
        summary.records += max(0, header.record_count)
        self._take_epoch(batch)
        self._take_transaction(path, batch, checks)
        for check in checks:
            check.on_batch(batch.position, header)
        self._next_offset = header.next_offset

    def _take_epoch(self, batch: WalkedBatch) -> None:
        epoch, offset = batch.header.leader_epoch, batch.header.base_offset
        if epoch in (NO_LEADER_EPOCH, self._leader_epoch):
            return
        self._leader_epoch = epoch
        epochs = self._epochs
        if epochs is None or not epochs.entries or offset < self._summary.start_offset:
            return
        known = epochs.epoch_for_offset(offset)
        if known != epoch and offset < self._facts.rebuilt_from:
            problem = f"offset {offset} has leader epoch {epoch}, but the checkpoint says {known}"
            self._find(
                Severity.DAMAGE, epochs.path, None, offset, problem, "followers may part from this log at the wrong offset"
            )

    def _take_transaction(self, path: str, batch: WalkedBatch, checks: list[IndexCheck]) -> None:
        header = batch.header
        if header.producer_id < 0:
            return
        if not header.is_control:
            if header.is_transactional and header.record_count > 0:
                self._open_transactions.setdefault(header.producer_id, header.base_offset)
            return
        try:
            control_type = read_control_type(batch.data or b"", 0, header)
        except RecordError as error:
            self._find(
                Severity.DAMAGE,
                path,
                batch.position,
                header.base_offset,
                f"a control batch that cannot be read: {error}",
                REPAIR_HINT,
            )
            return
        first_offset = self._open_transactions.pop(header.producer_id, None)
        if control_type is ControlType.ABORT:
            for check in checks:
                if isinstance(check, TransactionIndexCheck):
                    check.on_abort(header, first_offset, self._expected_transaction(header, first_offset))

    def _expected_transaction(self, header: BatchHeader, first_offset: int | None) -> tuple[int, int] | None:
        """The (first offset, last stable offset) of an aborted transaction; None when compaction or retention removed the
        evidence."""
        if first_offset is None or self._is_compacted or self._first_base_offset or not self._transactions_are_known:
            return None
        return first_offset, min(self._open_transactions.values(), default=header.base_offset + 1)

    def _finish_indexes(self, segment: SegmentFiles, checks: list[IndexCheck], is_whole: bool) -> None:
        for check in checks:
            path = segment.path(check.KIND)
            if is_whole:
                check.finish()
            if check.is_missing and check.KIND != names.TRANSACTION_INDEX_SUFFIX:
                if self._next_offset > segment.base_offset < self._facts.recovery_point:
                    self._note(path, "the index is missing", _DERIVED_HINT)
                continue
            fault = check.fault
            if fault is None or (check.KIND == names.TRANSACTION_INDEX_SUFFIX and not self._transactions_are_known):
                continue
            at = segment.base_offset if fault.offset is None else max(fault.offset, segment.base_offset)
            is_rebuilt = at >= self._facts.rebuilt_from or (fault.offset is None and self._next_offset > self._facts.rebuilt_from)
            if is_rebuilt:
                self._find(Severity.NOTE, path, fault.position, fault.offset, fault.reason, _DERIVED_HINT)
            else:
                self._find(Severity.DAMAGE, path, fault.position, fault.offset, fault.reason, REBUILD_HINT)

    # -- beside the log ------------------------------------------------------------------------------------------------------

    def _load_epochs(self) -> None:
        epochs = LeaderEpochs(self._disk, names.join(self._directory, names.LEADER_EPOCH_CHECKPOINT))
        try:
            epochs.load()
            self._epochs = epochs
        except CorruptCheckpoint as error:
            self._find(Severity.DAMAGE, epochs.path, None, None, str(error), _DERIVED_HINT)

    def _verify_end(self, segments: list[SegmentFiles]) -> None:
        facts, end_offset = self._facts, self._next_offset
        mark = facts.durable_mark
        path = segments[-1].log_path if segments else self._directory
        if mark is not None and end_offset < mark and (segments or mark > facts.log_start_offset):
            position = self._disk.file_size(path) if segments else None
            problem = f"the log ends at offset {end_offset}"
            meaning = f"everything below offset {mark} was durable: {mark - end_offset} offsets are missing; {REPAIR_HINT}"
            self._find(Severity.DAMAGE, path, position, end_offset, problem, meaning)
        elif facts.was_stopped_cleanly and segments and end_offset != max(facts.recovery_point, segments[0].base_offset):
            problem = f"the log ends at offset {end_offset}, but was stopped cleanly at {facts.recovery_point}"
            self._find(
                Severity.DAMAGE, path, None, end_offset, problem, "something wrote to it since, or damaged its last offset"
            )
        if (
            self._epochs is not None
            and self._epochs.entries
            and self._epochs.entries[-1].start_offset > max(end_offset, facts.log_start_offset)
        ):
            epoch, start_offset = self._epochs.entries[-1]
            problem = f"leader epoch {epoch} begins at offset {start_offset}, but the log ends at {end_offset}"
            self._note(self._epochs.path, problem, "the next start forgets this epoch")

    def _verify_snapshots(self) -> None:
        disk, facts = self._disk, self._facts
        for offset in names.base_offsets_of(disk.list_directory(self._directory), names.SNAPSHOT_SUFFIX):
            path = names.segment_path(self._directory, offset, names.SNAPSHOT_SUFFIX)
            data = read_whole(disk, path)
            if data is None:
                continue  # A running broker removes the old snapshots.
            problem = snapshot_problem(data, path, offset)
            if problem is None and offset > max(self._next_offset, facts.log_start_offset):
                problem = f"the snapshot was taken at offset {offset}, but the log ends at {self._next_offset}"
            if problem is not None:
                severity = Severity.NOTE if offset > facts.rebuilt_from else Severity.DAMAGE
                meaning = "the next start discards it and rebuilds the producers' state from an older one and the log"
                self._find(severity, path, None, offset, problem, meaning)

    def _verify_topic_id(self) -> None:
        path = names.join(self._directory, names.PARTITION_METADATA)
        try:
            topic_id = read_partition_metadata(self._disk, path)
        except CorruptCheckpoint as error:
            self._find(Severity.DAMAGE, path, None, None, str(error), "the topic's id is lost, and with it the durable mark")
            return
        if topic_id is None and self._next_offset > self._summary.start_offset:
            self._note(
                path, "the file is missing", "nothing says of which topic this log is, and its durable mark does not count"
            )


def snapshot_problem(data: bytes, path: str, offset: int) -> str | None:
    try:
        entries = decode_snapshot(data, path)
    except CorruptSnapshot as error:
        return str(error)
    for entry in entries:
        last_known = max(entry.last_offset, entry.current_transaction_first_offset)
        if last_known >= offset and last_known != NO_TRANSACTION:
            return f"it has offset {last_known} of producer {entry.producer_id}, but was taken at offset {offset}"
    return None


def _index_checks(disk: Disk, segment: SegmentFiles) -> list[IndexCheck]:
    kinds: tuple[type[IndexCheck], ...] = (OffsetIndexCheck, TimeIndexCheck, TransactionIndexCheck)
    return [kind.open(disk, segment.path(kind.KIND), segment.base_offset) for kind in kinds]


def verify_file(disk: Disk, target: FileTarget) -> Finding | None:
    """Check a small file; None when it is sound. A segment's files cannot be checked alone."""
    path = target.path
    try:
        problem = _problem(disk, target)
    except CorruptCheckpoint as error:
        problem = str(error)
    if problem is None:
        return None
    return Finding(Severity.DAMAGE, "", path, None, None, problem, "verify its directory to learn what that means")


def _problem(disk: Disk, target: FileTarget) -> str | None:
    path, kind = target.path, target.kind
    if kind == names.SNAPSHOT_SUFFIX:
        return snapshot_problem(read_whole(disk, path) or b"", path, target.base_offset)
    if kind == names.DURABLE_MARKS:
        return decode_journal(read_whole(disk, path) or b"", path)[1]
    if kind == names.LEADER_EPOCH_CHECKPOINT:
        LeaderEpochs(disk, path).load()
    elif kind == names.META_PROPERTIES:
        read_meta_properties(disk, path)
    elif kind == names.PARTITION_METADATA:
        read_partition_metadata(disk, path)
    elif kind in CHECKPOINTS:
        read_offset_checkpoint(disk, path)
    return None
