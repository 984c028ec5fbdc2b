"""Opens a partition's directory: after a clean stop without reading its segments, after a crash by checking them.

After a crash the log is checked batch by batch from the recovery point on. A batch is sound when its structure and CRC are
right and its offsets rise. Indexes, leader epochs and producer state are rebuilt on the way. What the check finds is judged by
the *mark*, the offset below which everything is known to have been synced:

    at or above the mark   a torn tail. Writes that no sync covered reach the disk in any order, so a valid batch after the
                           damage proves nothing: everything from the damage on is cut, and the cut is reported.
    below the mark         corruption. Bytes that were acknowledged as durable are gone, and no cut may hide that: CorruptLog
                           names the file and the byte, the partition stays offline, and an operator decides.

A log that ends below the mark is corrupt too, however well-formed it is.

Two neighbouring segments above the recovery point must meet exactly, because a segment that lost its tail precisely between two
batches looks complete by itself. (Compaction, which leaves gaps, stays below the recovery point.)

The bytes that recovery keeps are in the page cache, and perhaps only there: none of them count as durable before the sync that
ends recovery.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.log import names
from tidelog.log.compaction.swap import finish_swaps
from tidelog.log.durability.sync_plan import drop_cached_pages, has_failed_sync_mark, remove_failed_sync_mark
from tidelog.log.environment import LogEnvironment
from tidelog.log.errors import CorruptCheckpoint, CorruptIndex, CorruptLog
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.partition_log import LogContents, LogIdentity, PartitionLog
from tidelog.log.producers.producer_snapshot import (
    load_newest_snapshot,
    marker_of,
    note_batch_of_producer,
    recall_batches,
    replay_producers,
    write_snapshot,
)
from tidelog.log.producers.producer_state import ProducerState
from tidelog.log.segments.batch_scan import LOOKUP_CHUNK_BYTES, SCAN_CHUNK_BYTES, scan_batches, scan_headers
from tidelog.log.segments.segment import RELATIVE_OFFSET_MAX, LogSegment, Segments
from tidelog.log.settings import LogSettings
from tidelog.ports.disk import Disk, DiskFile
from tidelog.records.errors import RecordError
from tidelog.records.header import MAGIC_POSITION, NO_LEADER_EPOCH, crc_is_valid

# The smallest unit that a disk writes.
SECTOR_BYTES = 512


class Damage(NamedTuple):
    segment: LogSegment
    position: int
    bytes_after: int
    offset: int
    """Nothing is known to be sound from here on."""
    reason: str


class CheckStart(NamedTuple):
    """Where a check begins: a batch boundary, and the offset below which all derived state is trusted."""

    position: int
    offset: int


def find_start(segment: LogSegment, recovery_point: int) -> CheckStart:
    """Start as near to the recovery point as the segment's indexes allow, or at its beginning when they cannot be trusted."""
    if recovery_point <= segment.base_offset:
        return CheckStart(0, segment.base_offset)
    indexes = (segment.offset_index, segment.time_index, segment.transaction_index)
    try:
        for index in indexes:
            index.check()
            index.truncate_to(recovery_point)
        position = segment.offset_index.last_position
        if position == 0 or _ends_at(segment, position, segment.offset_index.last_offset):
            return CheckStart(position, recovery_point)
    except CorruptIndex:
        pass
    return CheckStart(0, segment.base_offset)


def _ends_at(segment: LogSegment, position: int, last_offset: int) -> bool:
    """Whether a batch at this position ends at this offset. Then the index entry that says so can be trusted."""
    try:
        for _, header in scan_headers(segment.file(), position, segment.size, LOOKUP_CHUNK_BYTES):
            return header.last_offset == last_offset
    except CorruptLog:
        pass
    return False


def _is_torn(base_offset: int, position: int, next_offset: int) -> bool:
    """Whether this is the next offset, minus the bytes in the previous sector. A power cut may lose one sector and keep the
    next."""
    lost_bytes = -position % SECTOR_BYTES
    return 0 < lost_bytes <= MAGIC_POSITION and base_offset == next_offset & ((1 << 8 * max(0, 8 - lost_bytes)) - 1)


class SegmentCheck:
    """Checks segments, and carries the state from batch to batch and segment to segment."""

    def __init__(self, settings: LogSettings, producers: ProducerState, epochs: LeaderEpochs, trusted_below: int) -> None:
        self._index_interval_bytes = settings.index_interval_bytes
        self._producers = producers
        self._epochs = epochs
        self._trusted_below = trusted_below
        self.next_offset = trusted_below

    def run(self, segment: LogSegment, position: int) -> Damage | None:
        """Check from ``position``, which is 0 except in the first segment. Returns None when the segment is sound to its end."""
        end = segment.size
        if position == 0:
            # The check does not meet transactions again that ended where the state is trusted: their entries stay.
            segment.reset_indexes(with_transactions=segment.base_offset >= self._trusted_below)
            self.next_offset = segment.base_offset
        segment.count_bytes_below(position)
        sound_end = position
        try:
            for at, header, batch in scan_batches(segment.file(), position, end):
                base_offset = header.base_offset
                last_offset = base_offset + header.last_offset_delta
                if at == position and position:
                    self.next_offset = base_offset
                if not crc_is_valid(batch, 0, header):
                    return Damage(segment, at, end - at, self.next_offset, "a batch's CRC does not match its bytes")
                if base_offset < self.next_offset or header.last_offset_delta < 0:
                    # The CRC does not cover the base offset. Either this one is wrong, or an earlier one that looked sound.
                    is_wrong = base_offset < segment.base_offset or _is_torn(base_offset, at, self.next_offset)
                    sound_below = self.next_offset if is_wrong else min(base_offset, self.next_offset)
                    reason = f"a batch has offsets {base_offset} to {last_offset} after {self.next_offset - 1}"
                    return Damage(segment, at, end - at, sound_below, reason)
                if base_offset >= self._trusted_below:
                    if NO_LEADER_EPOCH < header.leader_epoch < self._epochs.latest_epoch:
                        # A truncation was not synced: the end of the old history is back, after the new one.
                        reason = f"a batch of leader epoch {header.leader_epoch} after one of {self._epochs.latest_epoch}"
                        return Damage(segment, at, end - at, self.next_offset, reason)
                    if header.leader_epoch > self._epochs.latest_epoch:
                        self._epochs.assign(header.leader_epoch, base_offset)
                    if header.producer_id >= 0:
                        marker = marker_of(batch, 0, header)
                        note_batch_of_producer(self._producers, segment, header, base_offset, marker)
                segment.note_batch(at, len(batch), last_offset, header.max_timestamp, self._index_interval_bytes)
                sound_end = at + len(batch)
                self.next_offset = last_offset + 1
        except CorruptLog as error:
            return Damage(segment, error.position, end - error.position, self.next_offset, error.reason)
        except RecordError as error:
            return Damage(segment, sound_end, end - sound_end, self.next_offset, str(error))
        finally:
            segment.count_bytes_below(sound_end)
        return None


@dataclass(frozen=True, slots=True)
class LogOpening:
    """The data directory's knowledge about a partition, before the partition's files are read."""

    topic: str
    partition: int
    topic_id: bytes
    directory: str
    settings: LogSettings
    recovery_point: int
    log_start_offset: int
    durable_mark: int
    """Everything below this offset was synced. At least the recovery point."""
    was_stopped_cleanly: bool
    has_marks: bool
    """Whether Tidelog wrote the directory, so that segments above the recovery point meet exactly. Kafka's compaction leaves gaps
    there."""
    lower_recovery_point: Callable[[int], None] = lambda _: None
    """Called before anything below the recovery point is rebuilt: a start after a crash in between must not trust what is
    half-built."""
    high_watermark: int = 0
    """Producers may send again what lies above it, also after a clean stop: nobody has acknowledged it."""


def open_log(environment: LogEnvironment, opening: LogOpening) -> PartitionLog:
    """Open a log. Raises CorruptLog when acknowledged bytes are damaged or missing. A recovered log is not durable before its
    first sync."""
    disk, directory = environment.disk, opening.directory
    sync_failed = has_failed_sync_mark(disk, directory)
    if sync_failed:
        drop_cached_pages(disk, directory)
    finish_swaps(disk, directory)
    found = _remove_leftovers(disk, directory)
    segments = _find_segments(environment, opening, found)
    recovery_point = _lowest_unindexed(segments, found, opening.recovery_point)
    if opening.was_stopped_cleanly and not sync_failed and recovery_point == opening.recovery_point:
        log_end_offset = _end_by_index(segments.active)
        if log_end_offset == recovery_point:
            log = _open_clean(environment, opening, segments, log_end_offset)
            if segments.active.dirty_file is not None:
                log.note_directory_change(directory)
            return log
        facts: dict[str, object] = {"directory": directory, "log_end_offset": log_end_offset, "recovery_point": recovery_point}
        environment.report("clean_stop_doubted", facts)
    log = _recover(environment, opening, segments, recovery_point)
    if sync_failed:
        remove_failed_sync_mark(disk, directory)
    return log


def _remove_leftovers(disk: Disk, directory: str) -> frozenset[str]:
    """Remove files that were being deleted, and indexes whose log file is gone: a later segment of the same name must not find
    them."""
    found = disk.list_directory(directory)
    base_offsets = frozenset(names.base_offsets_of(found, names.LOG_SUFFIX))
    kept = []
    for name in found:
        file = names.parse_offset_file_name(name)
        is_orphan = file is not None and file.kind in names.SEGMENT_SUFFIXES and file.base_offset not in base_offsets
        if is_orphan or name.endswith((names.DELETED_SUFFIX, names.TEMPORARY_SUFFIX)):
            disk.remove(names.join(directory, name))
        else:
            kept.append(name)
    return frozenset(kept)


def _find_segments(environment: LogEnvironment, opening: LogOpening, found: frozenset[str]) -> Segments:
    disk, directory = environment.disk, opening.directory

    base_offsets = names.base_offsets_of(found, names.LOG_SUFFIX)
    # Segments that lie wholly below the log start were being deleted; a crash may have kept any of them.
    while len(base_offsets) > 1 and base_offsets[1] <= opening.log_start_offset:
        remove_segment_files(disk, directory, base_offsets.pop(0))
    if opening.has_marks and base_offsets and 0 < base_offsets[0] - opening.log_start_offset <= RELATIVE_OFFSET_MAX:
        _drop_headless(environment, opening, base_offsets)
    segments = []
    for base_offset in base_offsets:
        size = disk.file_size(names.segment_path(directory, base_offset, names.LOG_SUFFIX))
        segments.append(environment.segment(directory, base_offset, size))
    if not segments:
        if opening.durable_mark > opening.log_start_offset:
            reason = f"no segment is left, but offsets below {opening.durable_mark} were durable"
            raise CorruptLog(directory, 0, opening.log_start_offset, reason)
        segments.append(environment.segment(directory, opening.log_start_offset))
        segments[0].create_file()
    return Segments(segments)


def _drop_headless(environment: LogEnvironment, opening: LogOpening, base_offsets: list[int]) -> None:
    """The first segment is missing. It was not deleted, because the log start is written before a segment is removed. Either its
    directory entry was never synced, so nothing after it is durable and all of it is dropped; or the file was lost, and the log
    is corrupt."""
    if opening.durable_mark > opening.log_start_offset:
        path = names.segment_path(opening.directory, opening.log_start_offset, names.LOG_SUFFIX)
        reason = f"the log begins at offset {base_offsets[0]}, but everything below offset {opening.durable_mark} was durable"
        raise CorruptLog(path, 0, opening.log_start_offset, reason)
    facts = {"directory": opening.directory, "segments_removed": len(base_offsets), "next_offset": opening.log_start_offset}
    environment.report("torn_tail_cut", {**facts, "reason": "the first segment is missing"})
    while base_offsets:
        remove_segment_files(environment.disk, opening.directory, base_offsets.pop())


def remove_segment_files(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in names.SEGMENT_SUFFIXES:
        path = names.segment_path(directory, base_offset, suffix)
        if disk.exists(path):
            disk.remove(path)


def _lowest_unindexed(segments: Segments, found: frozenset[str], recovery_point: int) -> int:
    """Recovery must begin no later than at the first segment whose indexes are missing."""
    for segment in segments:
        if segment.base_offset >= recovery_point:
            break
        index_names = (
            names.offset_file_name(segment.base_offset, suffix) for suffix in (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
        )
        if segment.size and not found.issuperset(index_names):
            return segment.base_offset
    return recovery_point


def _end_by_index(segment: LogSegment) -> int | None:
    """Where the log ends according to the segment's index. None when the index is wrong: it can be rebuilt."""
    try:
        return segment.next_offset()
    except CorruptLog:
        return None


def _open_clean(environment: LogEnvironment, opening: LogOpening, segments: Segments, log_end_offset: int) -> PartitionLog:
    producers = ProducerState(opening.settings.producer_id_expiration_ms)
    snapshot_offset = load_newest_snapshot(
        environment.disk, opening.directory, log_end_offset, producers, environment.report, segments[0].base_offset
    )
    if opening.high_watermark < log_end_offset:
        recall_batches(producers, segments, snapshot_offset)
    replay_producers(producers, segments, snapshot_offset or 0, log_end_offset)
    epochs = load_epochs(environment, opening.directory, segments, log_end_offset)
    contents = LogContents(
        segments,
        producers,
        epochs,
        log_start_offset=_log_start(opening, segments),
        log_end_offset=log_end_offset,
        recovery_point=log_end_offset,
        snapshot_offset=-1 if snapshot_offset is None else snapshot_offset,
    )
    return _new_log(environment, opening, contents)


def _log_start(opening: LogOpening, segments: Segments) -> int:
    return max(opening.log_start_offset, segments[0].base_offset)


def _new_log(environment: LogEnvironment, opening: LogOpening, contents: LogContents) -> PartitionLog:
    contents.epochs.truncate_from_start(contents.log_start_offset)
    identity = LogIdentity(opening.topic, opening.partition, opening.topic_id, opening.directory)
    log = PartitionLog(environment, identity, opening.settings, contents)
    # Recovery has seen transactions that ended below the high watermark with which the log starts: they are decided.
    log.producers.on_high_watermark(log.high_watermark)
    return log


def load_epochs(environment: LogEnvironment, directory: str, segments: Segments, trusted_below: int) -> LeaderEpochs:
    """Load the leader epochs from the checkpoint; when it is missing or unreadable, from the batches below ``trusted_below``."""
    epochs = LeaderEpochs(environment.disk, names.join(directory, names.LEADER_EPOCH_CHECKPOINT))
    if environment.disk.exists(epochs.path):
        try:
            epochs.load()
            return epochs
        except CorruptCheckpoint as error:
            environment.report("leader_epochs_rebuilt", {"directory": directory, "error": str(error)})
    for segment in segments:
        if segment.base_offset >= trusted_below:
            break
        for _, header in scan_headers(segment.file(), 0, segment.size, SCAN_CHUNK_BYTES):
            if header.base_offset >= trusted_below:
                break
            if header.leader_epoch > epochs.latest_epoch:
                epochs.assign(header.leader_epoch, header.base_offset)
            if header.next_offset >= trusted_below:
                break  # The rest is not checked yet, and may be torn.
    return epochs


def _recover(environment: LogEnvironment, opening: LogOpening, segments: Segments, recovery_point: int) -> PartitionLog:
    disk, directory, report = environment.disk, opening.directory, environment.report
    # Start at the last trusted batch: after it, in the same segment, may be bytes that a truncation had cut but not synced.
    unchecked = segments.from_offset(max(0, recovery_point - 1))
    for segment in unchecked:
        # A sync may have failed without leaving its mark: the process was killed first, or the disk could not store the mark.
        disk.drop_cache(segment.path)
    start = find_start(unchecked[0], recovery_point)
    if start.offset < opening.recovery_point:
        opening.lower_recovery_point(start.offset)
    producers = ProducerState(opening.settings.producer_id_expiration_ms)
    snapshot_offset = load_newest_snapshot(disk, directory, start.offset, producers, report, segments[0].base_offset)
    recall_batches(producers, segments, snapshot_offset)
    replay_producers(producers, segments, snapshot_offset or 0, start.offset)
    epochs = load_epochs(environment, directory, segments, start.offset)
    epochs.truncate_from_end(start.offset)

    check = SegmentCheck(opening.settings, producers, epochs, start.offset)
    kept: list[LogSegment] = []
    snapshots: list[DiskFile] = []
    damage: Damage | None = None
    for number, segment in enumerate(unchecked):
        if number and opening.has_marks and not _meet(kept[-1], check.next_offset, segment):
            reason = f"the next segment begins at offset {segment.base_offset}"
            damage = Damage(kept[-1], kept[-1].size, 0, min(segment.base_offset, check.next_offset), reason)
            break
        if number:
            snapshots += _write_snapshot(environment, directory, segment.base_offset, producers)
        damage = check.run(segment, start.position if number == 0 else 0)
        kept.append(segment)
        if damage is not None:
            break
    sound_below = check.next_offset if damage is None else damage.offset
    # When everything durable has been deleted, a crash may bring back some of its segments without the others; that is no loss.
    if sound_below < opening.durable_mark and opening.log_start_offset < opening.durable_mark:
        raise _corrupt(kept[-1], damage, sound_below, opening.durable_mark)
    if damage is not None:
        _cut(environment, segments, damage, unchecked[len(kept) :], check.next_offset)
    if _log_start(opening, segments) >= check.next_offset:
        # There is no record to say of which epoch it is, and the checkpoint may be older than the log: a log that began again
        # behind a snapshot would claim to end with an epoch that it had before.
        epochs.clear()
    contents = LogContents(
        segments,
        producers,
        epochs,
        log_start_offset=_log_start(opening, segments),
        log_end_offset=check.next_offset,
        recovery_point=min(recovery_point, check.next_offset),
    )
    log = _new_log(environment, opening, contents)
    log.note_unsynced(kept)
    for file in snapshots:
        log.note_unsynced_file(file)
    metadata_path = names.join(directory, names.PARTITION_METADATA)
    if disk.exists(metadata_path):
        # This file came from the page cache too, and without it the next start would know neither the topic nor its mark.
        log.note_unsynced_file(disk.open(metadata_path, "write"))
    if log.log_start_offset > log.log_end_offset:
        # A relaxed topic: records were deleted up to an offset that the crash has lost again.
        log.start_over_at(log.log_start_offset)
    return log


def _write_snapshot(environment: LogEnvironment, directory: str, offset: int, producers: ProducerState) -> list[DiskFile]:
    """Write the producers' state at the beginning of a segment, as a roll does: truncation needs it where compaction has removed
    older batches of a producer. Nothing is written on a full disk, as in a roll."""
    try:
        return [write_snapshot(environment.disk, directory, offset, producers)]
    except OSError as error:
        environment.report("segment_close_deferred", {"directory": directory, "error": str(error)})
        return []


def _meet(segment: LogSegment, next_offset: int, following: LogSegment) -> bool:
    """Whether ``following`` begins where ``segment`` ends. The only gap allowed is one that is too large for a segment's
    indexes."""
    return following.base_offset == next_offset or following.base_offset - segment.base_offset > RELATIVE_OFFSET_MAX


def _corrupt(last: LogSegment, damage: Damage | None, next_offset: int, durable_mark: int) -> CorruptLog:
    reason = damage.reason if damage is not None else "the log ends here"
    position = damage.position if damage is not None else last.size
    return CorruptLog(last.path, position, next_offset, f"{reason}, but everything below offset {durable_mark} was durable")


def _cut(environment: LogEnvironment, segments: Segments, damage: Damage, later: list[LogSegment], next_offset: int) -> None:
    """Cut everything from the damage on. The sync that ends recovery also covers the removal of later segments."""
    segment = damage.segment
    environment.report(
        "torn_tail_cut",
        {
            "file": segment.path,
            "position": damage.position,
            "bytes_cut": damage.bytes_after + sum(other.size for other in later),
            "segments_removed": len(later),
            "next_offset": next_offset,
            "reason": damage.reason,
        },
    )
    segment.cut()
    if later:
        segments.replace([segment, *later], [segment])
        for other in later:
            other.remove()
