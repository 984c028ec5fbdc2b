"""Measures how far a group is behind in a partition: in messages, in seconds, until it has caught up, and until it loses records.

Numbers go in, figures come out. The unread part begins at the committed offset, or at the log start if that has passed it, and
ends at the high watermark.

    lag_messages      as Kafka's tools count it: high watermark minus committed offset, including deleted records
    lost_messages     deleted before they were read: log start minus committed offset
    lag_seconds       the age of the next unread record; 0 when there is none
    drain_seconds     until the group has caught up, if both rates stay as they are; infinite when it does not come closer
    deletion_seconds  until retention deletes the next unread record, at the earliest; None when nothing known does

A figure that is not known (yet) is None.

**Rates** come from two remembered points per offset, half a window apart (``RateWindow``): there is one window for every
committed offset and every partition.

**Deletion**: records go by whole segments, the oldest first (``log``): a segment goes when its newest record is older than
``retention.ms``, or when the log without it still has ``retention.bytes``. So the segment that holds the record matters, and the
first segment of the log, which must go before it. Those between are not examined: they could only make it later, and the result
is a lower bound. By size a segment is due once enough more bytes were written, and the rate of writing is measured. The active
segment goes by age like the others; by size only after a roll. On a compacted topic a batch that was cleaned carries its delete
horizon: from then on its tombstones may go, and a reader that has not seen them never learns that their keys were deleted.
"""

import math
from typing import NamedTuple

MS_PER_SECOND = 1000


class BatchTimes(NamedTuple):
    """The offsets and times in a batch's header."""

    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    """The first record's timestamp; -1 when it has none."""
    newest_timestamp_ms: int
    delete_horizon_ms: int | None = None


class GroupPartitionLag(NamedTuple):
    group_id: str
    topic: str
    partition: int
    committed_offset: int
    log_start_offset: int
    high_watermark: int
    lag_messages: int
    lag_seconds: float | None
    consumed_per_second: float | None
    produced_per_second: float | None
    drain_seconds: float | None
    deletion_seconds: float | None
    lost_messages: int
    is_behind_compaction: bool
    """Whether unread records may have been compacted away, so that the group will not see every version of a key."""
    is_losing: bool
    """Whether retention will delete unread records within the warning threshold."""

    @property
    def is_behind_log_start(self) -> bool:
        return self.lost_messages > 0


def next_unread(committed_offset: int, log_start_offset: int, high_watermark: int) -> int | None:
    """The offset that the group reads next; None when it has read everything."""
    offset = max(committed_offset, log_start_offset)
    return offset if offset < high_watermark else None


def timestamp_within(batch: BatchTimes, offset: int) -> int | None:
    """The timestamp of the record at ``offset``, as precisely as a header can tell: the first record's is exact, and the others
    are assumed to be spread evenly between that and the newest."""
    newest_ms = batch.newest_timestamp_ms
    if newest_ms < 0:
        return None
    first_ms = batch.first_timestamp_ms
    if first_ms < 0 or first_ms >= newest_ms:
        return newest_ms
    span = batch.last_offset - batch.first_offset
    position = min(max(offset - batch.first_offset, 0), span)
    return first_ms + (newest_ms - first_ms) * position // span if span else first_ms


def drain_seconds(unread: int, consumed_per_second: float | None, produced_per_second: float | None) -> float | None:
    if not unread:
        return 0.0
    if consumed_per_second is None or produced_per_second is None:
        return None
    gained = consumed_per_second - produced_per_second
    return unread / gained if gained > 0 else math.inf


def measure_lag(
    group_id: str,
    topic: str,
    partition: int,
    *,
    now_ms: int,
    committed_offset: int,
    log_start_offset: int,
    high_watermark: int,
    next_timestamp_ms: int | None,
    deletion_at_ms: int | None,
    compacted_offset: int | None,
    consumed_per_second: float | None,
    produced_per_second: float | None,
    warning_seconds: int,
) -> GroupPartitionLag:
    """``next_timestamp_ms`` and ``deletion_at_ms`` are those of the next unread record. ``compacted_offset``: everything below it
    was compacted. ``warning_seconds``: 0 never warns."""
    next_offset = next_unread(committed_offset, log_start_offset, high_watermark)
    lag_seconds: float | None = 0.0
    deletion_seconds: float | None = None
    if next_offset is not None:
        lag_seconds = None if next_timestamp_ms is None else _seconds_from(next_timestamp_ms, now_ms)
        deletion_seconds = None if deletion_at_ms is None else _seconds_from(now_ms, deletion_at_ms)
    unread = 0 if next_offset is None else high_watermark - next_offset
    return GroupPartitionLag(
        group_id,
        topic,
        partition,
        committed_offset,
        log_start_offset,
        high_watermark,
        max(0, high_watermark - committed_offset),
        lag_seconds,
        consumed_per_second,
        produced_per_second,
        drain_seconds(unread, consumed_per_second, produced_per_second),
        deletion_seconds,
        max(0, log_start_offset - committed_offset),
        next_offset is not None and compacted_offset is not None and next_offset < compacted_offset,
        bool(warning_seconds) and deletion_seconds is not None and deletion_seconds <= warning_seconds,
    )


class SettledOffsets(NamedTuple):
    """What a share group has settled behind the first message that it has not."""

    total: int
    lost: int
    """How many of them the log has no longer."""


def without_settled(figures: GroupPartitionLag, settled: SettledOffsets) -> GroupPartitionLag:
    """The lag of a share group, which need not read again what it has settled, nor what is gone: its next member skips that."""
    unread = figures.high_watermark - max(figures.committed_offset, figures.log_start_offset)
    unsettled = max(0, unread - (settled.total - settled.lost))
    return figures._replace(
        lag_messages=unsettled,
        drain_seconds=drain_seconds(unsettled, figures.consumed_per_second, figures.produced_per_second),
        lost_messages=max(0, figures.lost_messages - settled.lost),
    )


def _seconds_from(earlier_ms: int, later_ms: int) -> float:
    """The seconds until then. Never negative, although records may have timestamps in the future and deletion may be overdue."""
    return max(0, later_ms - earlier_ms) / MS_PER_SECOND


WINDOW_MS = 60_000
# Over a shorter time a single commit would dominate the rate.
MEASURED_MS_MIN = 1_000


class RateWindow:
    """How fast an offset moves, over a sliding window.

    A point is a time and the offset seen then. The rate is taken from ``earlier`` to the newest observation, so it covers between
    half a window and a whole one. An offset that goes back (a reset, a truncation) or a clock that stands still says nothing
    about a rate: the window starts over.
    """

    __slots__ = ("_earlier_ms", "_earlier_offset", "_later_ms", "_later_offset", "newest_ms", "newest_offset", "window_ms")

    def __init__(self, now_ms: int, offset: int, window_ms: int = WINDOW_MS) -> None:
        self.window_ms = window_ms
        self._begin(now_ms, offset)

    def _begin(self, now_ms: int, offset: int) -> None:
        self._earlier_ms = self._later_ms = self.newest_ms = now_ms
        self._earlier_offset = self._later_offset = self.newest_offset = offset

    def observe(self, now_ms: int, offset: int) -> None:
        """``now_ms`` comes from a monotonic clock."""
        if offset < self.newest_offset or now_ms - self.newest_ms > self.window_ms:
            self._begin(now_ms, offset)
            return
        self.newest_ms, self.newest_offset = now_ms, offset
        if now_ms - self._later_ms >= self.window_ms // 2:
            self._earlier_ms, self._earlier_offset = self._later_ms, self._later_offset
            self._later_ms, self._later_offset = now_ms, offset

    @property
    def per_second(self) -> float | None:
        """None until the offset was observed for long enough."""
        measured_ms = self.newest_ms - self._earlier_ms
        if measured_ms < MEASURED_MS_MIN:
            return None
        return (self.newest_offset - self._earlier_offset) * 1000 / measured_ms


UNLIMITED = -1


class RetentionFacts(NamedTuple):
    """The topic's settings; -1 means unlimited."""

    is_deleting: bool
    retention_ms: int
    retention_bytes: int


class SegmentFacts(NamedTuple):
    newest_timestamp_ms: int | None
    """None when the time is not known; then the segment is not deleted by age."""
    bytes_through: int
    """The size of the log from its first segment to the end of this one."""
    bytes_until_roll: int = 0
    """The number of bytes that the active segment still accepts; 0 for a closed one."""
    roll_at_ms: int | None = None
    """When the active segment is rolled because of its age, if anything is written to it."""


def deletion_at_ms(
    now_ms: int,
    retention: RetentionFacts,
    first: SegmentFacts,
    holding: SegmentFacts,
    log_bytes: int,
    bytes_per_second: float | None,
    delete_horizon_ms: int | None = None,
) -> int | None:
    """The earliest wall clock time at which the record in ``holding`` is deleted: not after ``now_ms`` if it is already due, None
    if nothing known deletes it."""
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
        return None  # Nothing is written, so nothing is rolled.
    if segment.roll_at_ms is not None:
        rolled_at_ms = min(rolled_at_ms, max(now_ms, segment.roll_at_ms))
    return max(at_ms, rolled_at_ms)


def _written_at_ms(now_ms: int, count_bytes: int, bytes_per_second: float | None) -> int | None:
    if count_bytes <= 0:
        return now_ms
    if not bytes_per_second:
        return None
    return now_ms + int(count_bytes * MS_PER_SECOND / bytes_per_second)
