"""Decides which part of a log may be compacted, and whether it is time.

    log start ........... first dirty ............... upper ........ log end
    clean: cleaned before        dirty: not yet          not cleanable yet

``upper`` is where the last cleanable segment ends. A segment is cleanable when it is closed, wholly below the last stable
offset (its transactions are decided and its records cannot be truncated), below the recovery point (recovery never scans what
compaction has put there), and older than ``min.compaction.lag.ms``.

A log is due when the dirty part of what is cleanable reaches ``min.cleanable.dirty.ratio``, or its oldest dirty record is
older than ``max.compaction.lag.ms``, or a tombstone's horizon has passed.
"""

from typing import NamedTuple

from tidelog.log.partition_log import PartitionLog
from tidelog.log.segments.segment import LogSegment
from tidelog.log.settings import LONG_MAX


class CleaningPlan(NamedTuple):
    first_dirty_offset: int
    upper_offset: int
    segments: list[LogSegment]
    """Every closed segment below the upper offset."""
    clean_bytes: int
    dirty_bytes: int
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0


def plan_cleaning(
    log: PartitionLog, first_dirty_offset: int | None, recovery_point: int, horizon_ms: int | None, now_ms: int
) -> CleaningPlan:
    """``first_dirty_offset`` comes from the checkpoint; ``horizon_ms`` is when the first of the log's tombstones may be
    removed."""
    first_dirty_offset = _valid_first_dirty(log, first_dirty_offset)
    segments, upper_offset = _cleanable(log, first_dirty_offset, recovery_point, now_ms)
    clean_bytes = dirty_bytes = 0
    first_dirty: LogSegment | None = None
    for number, segment in enumerate(segments):
        end_offset = segments[number + 1].base_offset if number + 1 < len(segments) else upper_offset
        if end_offset <= first_dirty_offset:
            clean_bytes += segment.size
        else:
            dirty_bytes += segment.size
            first_dirty = first_dirty or segment
    plan = CleaningPlan(first_dirty_offset, upper_offset, segments, clean_bytes, dirty_bytes, False)
    return plan._replace(is_due=_is_due(log, plan, first_dirty, horizon_ms, now_ms))


def _valid_first_dirty(log: PartitionLog, first_dirty_offset: int | None) -> int:
    """The first dirty offset. A checkpoint that does not fit the log is ignored; cleaning the whole log again is always
    correct."""
    if first_dirty_offset is None or not log.log_start_offset <= first_dirty_offset <= log.log_end_offset:
        return log.log_start_offset
    return first_dirty_offset


def _cleanable(log: PartitionLog, first_dirty_offset: int, recovery_point: int, now_ms: int) -> tuple[list[LogSegment], int]:
    """Return the segments that may be cleaned, and where the last of them ends."""
    bound = min(log.last_stable_offset, recovery_point, log.segments.active.base_offset)
    lag_ms = log.settings.min_compaction_lag_ms
    segments: list[LogSegment] = []
    upper_offset = log.segments[0].base_offset
    for segment in log.segments.closed:
        end_offset = log.segments.base_offset_after(segment)
        assert end_offset is not None, "a closed segment has one after it"
        if end_offset > bound or (lag_ms > 0 and end_offset > first_dirty_offset and segment.max_timestamp > now_ms - lag_ms):
            break
        segments.append(segment)
        upper_offset = end_offset
    return segments, upper_offset


def _is_due(log: PartitionLog, plan: CleaningPlan, first_dirty: LogSegment | None, horizon_ms: int | None, now_ms: int) -> bool:
    settings = log.settings
    if not settings.compact or not plan.segments:
        return False
    if horizon_ms is not None and horizon_ms <= now_ms:
        return True
    if first_dirty is None:
        return False
    if plan.dirty_ratio >= settings.min_cleanable_dirty_ratio:
        return True
    return settings.max_compaction_lag_ms < LONG_MAX and _first_timestamp(first_dirty) < now_ms - settings.max_compaction_lag_ms


def _first_timestamp(segment: LogSegment) -> int:
    """The timestamp of the first batch, as in Kafka; without a timestamp the age is unknown."""
    found = segment.find_batch(segment.base_offset)
    timestamp = found[1].max_timestamp if found is not None else -1
    return timestamp if timestamp > 0 else LONG_MAX
