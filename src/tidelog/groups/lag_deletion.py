"""When the next unread record is deleted, at the earliest.

Records go by whole segments, the oldest first (``log/retention.py``): a segment goes when its newest record is older than
``retention.ms``, or when the log without it still has ``retention.bytes``. So what counts is the segment that holds the record,
and the first segment of the log, which must go before it. Those between are not looked at: they could only make it later, and
this is a lower bound. A segment is too large by size once so many more bytes were written, and how fast they come is
measured.

The active segment goes by age like the others; by size only after a roll.

On a compacted topic a batch that was cleaned carries its delete horizon: from then on its tombstones may go, and a reader that
has not seen them never learns that their keys were deleted.
"""

from typing import NamedTuple

UNLIMITED = -1
MS_PER_SECOND = 1000


class RetentionFacts(NamedTuple):
    """Of the topic's settings; -1 is without limit."""

    is_deleting: bool
    retention_ms: int
    retention_bytes: int


class SegmentFacts(NamedTuple):
    newest_timestamp_ms: int | None
    """None when it is not known: then its age decides nothing."""
    bytes_through: int
    """The size of the log from its first segment to the end of this one."""
    bytes_until_roll: int = 0
    """How much the active segment still takes; 0 for a closed one."""
    roll_at_ms: int | None = None
    """When the active segment is rolled by age, if it is written to."""


def deletion_at_ms(
    now_ms: int,
    retention: RetentionFacts,
    first: SegmentFacts,
    holding: SegmentFacts,
    log_bytes: int,
    bytes_per_second: float | None,
    delete_horizon_ms: int | None = None,
) -> int | None:
    """The wall clock's time; not after ``now_ms`` when it is due already, None when nothing known deletes it."""
    by_retention = None
    if retention.is_deleting:
        times = [_segment_deletion_at_ms(now_ms, retention, segment, log_bytes, bytes_per_second) for segment in (first, holding)]
        known = [time for time in times if time is not None]
        by_retention = max(known) if len(known) == len(times) else None
    candidates = [time for time in (by_retention, delete_horizon_ms) if time is not None]
    return min(candidates, default=None)


def _segment_deletion_at_ms(
    now_ms: int, retention: RetentionFacts, segment: SegmentFacts, log_bytes: int, bytes_per_second: float | None
) -> int | None:
    candidates = []
    if retention.retention_ms >= 0 and segment.newest_timestamp_ms is not None:
        candidates.append(segment.newest_timestamp_ms + retention.retention_ms)
    if retention.retention_bytes != UNLIMITED:
        by_size = _excess_at_ms(now_ms, retention.retention_bytes, segment, log_bytes, bytes_per_second)
        if by_size is not None:
            candidates.append(by_size)
    return min(candidates, default=None)


def _excess_at_ms(
    now_ms: int, retention_bytes: int, segment: SegmentFacts, log_bytes: int, bytes_per_second: float | None
) -> int | None:
    missing_bytes = segment.bytes_through + retention_bytes - log_bytes
    at_ms = _written_at_ms(now_ms, missing_bytes, bytes_per_second)
    if not segment.bytes_until_roll or at_ms is None:
        return at_ms
    rolled_at_ms = _written_at_ms(now_ms, segment.bytes_until_roll, bytes_per_second)
    if rolled_at_ms is None:
        return None  # Nothing is written: nothing is rolled either.
    if segment.roll_at_ms is not None:
        rolled_at_ms = min(rolled_at_ms, max(now_ms, segment.roll_at_ms))
    return max(at_ms, rolled_at_ms)


def _written_at_ms(now_ms: int, count_bytes: int, bytes_per_second: float | None) -> int | None:
    if count_bytes <= 0:
        return now_ms
    if not bytes_per_second:
        return None
    return now_ms + int(count_bytes * MS_PER_SECOND / bytes_per_second)
