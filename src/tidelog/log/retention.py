"""Which segments have outlived their topic's retention, and taking them out of the log.

Deleting has three steps, and the order is what keeps a crash harmless: the log start offset rises in memory (readers stop
seeing the records at once), it is written to the ``log-start-offset-checkpoint``, and only then are the segments below it
renamed to ``.deleted`` and, a while later, removed. A crash may undo any of the renames; the checkpoint says that those
segments are gone all the same.

The active segment is deleted like the others when all of it has expired: it is rolled first. Nothing at or above the high
watermark goes.
"""

import sys
from contextlib import suppress

from tidelog.log import names
from tidelog.log.errors import StorageError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segment import LogSegment
from tidelog.log.settings import UNLIMITED


def retained_start_offset(log: PartitionLog, now_ms: int, segments_max: int = sys.maxsize) -> int:
    """Where the log should start by time and by size; its present start when nothing has to go. May roll the active segment.

    ``segments_max``: so many more go at most, since the age of each may have to be read from the disk; then ask again."""
    settings = log.settings
    if not settings.delete:
        return log.log_start_offset
    limit = min(log.high_watermark, log.durable.offset)
    if settings.retention_ms >= 0:
        # Without room for a new segment the closed ones must go all the same: that makes room.
        with suppress(StorageError):
            _roll_expired(log, now_ms, limit)
    excess_bytes = log.size - settings.retention_bytes if settings.retention_bytes != UNLIMITED else 0
    start_offset = log.log_start_offset
    for segment in log.segments.closed:
        end_offset = log.segments.base_offset_after(segment)
        assert end_offset is not None, "a closed segment has one after it"
        is_below_start = end_offset <= log.log_start_offset
        is_excess = excess_bytes >= segment.size > 0
        is_expired = (
            not is_below_start
            and not is_excess
            and settings.retention_ms >= 0
            and _age_ms(log, segment, now_ms) > settings.retention_ms
        )
        if end_offset > limit or not (is_expired or is_excess or is_below_start):
            break
        excess_bytes -= segment.size
        if not is_below_start:
            if not segments_max:
                break
            segments_max -= 1
            start_offset = end_offset
    return start_offset


def _roll_expired(log: PartitionLog, now_ms: int, limit: int) -> None:
    active = log.segments.active
    if active.size and log.log_end_offset <= limit and _age_ms(log, active, now_ms) > log.settings.retention_ms:
        log.roll()


def _age_ms(log: PartitionLog, segment: LogSegment, now_ms: int) -> int:
    newest = segment.max_timestamp
    return now_ms - (newest if newest >= 0 else log.environment.disk.modified_ms(segment.path))


def raise_log_start(log: PartitionLog, offset: int) -> None:
    """Readers no longer see records below ``offset``. Durable once the log start offsets are checkpointed."""
    if offset > log.log_start_offset:
        log.log_start_offset = offset
        log.epochs.truncate_from_start(offset)
        log.producers.on_high_watermark(min(offset, log.high_watermark))


def has_segment_below(log: PartitionLog, start_offset: int) -> bool:
    """Does the first segment lie wholly below ``start_offset``?"""
    following = log.segments.base_offset_after(log.segments[0])
    return following is not None and following <= start_offset


def take_out_below(log: PartitionLog, start_offset: int, segments_max: int = sys.maxsize) -> list[LogSegment]:
    """Rename the segments that lie wholly below ``start_offset``, the log start as the disk has it, and drop them from the log;
    the caller removes them later. At most ``segments_max`` at once: each is four files to rename."""
    gone: list[LogSegment] = []
    for segment in log.segments.closed:
        end_offset = log.segments.base_offset_after(segment)
        if end_offset is None or end_offset > start_offset or len(gone) == segments_max:
            break
        segment.rename(names.DELETED_SUFFIX)
        _remove_snapshot(log, segment.base_offset, end_offset)
        gone.append(segment)
    if gone:
        log.segments.drop_first(len(gone))
        log.unsynced.forget_segments(gone)
        log.recovery_point = max(log.recovery_point, log.segments[0].base_offset)
        log.note_directory_change(log.directory)
        if not has_segment_below(log, start_offset):
            _remove_snapshots_below(log, log.segments[0].base_offset)
    return gone


def _remove_snapshot(log: PartitionLog, offset: int, following_offset: int) -> None:
    """That of a deleted segment, once a newer one is there: the newest may be all that is left of a producer whose batches are
    gone."""
    disk = log.environment.disk
    path = names.segment_path(log.directory, offset, names.SNAPSHOT_SUFFIX)
    if disk.exists(path) and disk.exists(names.segment_path(log.directory, following_offset, names.SNAPSHOT_SUFFIX)):
        disk.remove(path)


def _remove_snapshots_below(log: PartitionLog, offset: int) -> None:
    """Those that were written between two segments, or whose successor was missing. The newest stays."""
    disk = log.environment.disk
    offsets = names.base_offsets_of(disk.list_directory(log.directory), names.SNAPSHOT_SUFFIX)
    for snapshot_offset in offsets[:-1]:
        if snapshot_offset < offset:
            disk.remove(names.segment_path(log.directory, snapshot_offset, names.SNAPSHOT_SUFFIX))
