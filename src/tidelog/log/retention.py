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
