"""How far a group is behind in a partition: in messages, in seconds, until it has caught up, until it loses records.

Numbers in, figures out. What is unread begins at the committed offset, or at the log start if that has passed it, and ends at the
high watermark.

    lag_messages      as Kafka's tools count it: high watermark minus committed offset, deleted records and all
    lost_messages     deleted before they were read: log start minus committed offset
    lag_seconds       the age of the next unread record; 0 when there is none
    drain_seconds     until the group has caught up, if both rates stay as they are; infinite when it does not come closer
    deletion_seconds  until retention takes the next unread record, at the earliest; None when nothing known does

A figure that is not known (yet) is None.
"""

import math
from typing import NamedTuple

MS_PER_SECOND = 1000


class BatchTimes(NamedTuple):
    """What a batch's header says of its records."""

    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    """Of its first record; -1 when it carries none."""
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
    """Records that it has not read may have been compacted away: it will not see every version of a key."""
    is_losing: bool
    """Within the threshold retention deletes records that it has not read."""

    @property
    def is_behind_log_start(self) -> bool:
        return self.lost_messages > 0


def next_unread(committed_offset: int, log_start_offset: int, high_watermark: int) -> int | None:
    """The offset that the group reads next; None when it has read everything."""
    offset = max(committed_offset, log_start_offset)
    return offset if offset < high_watermark else None


def timestamp_within(batch: BatchTimes, offset: int) -> int | None:
    """When the record at ``offset`` was stamped, as near as a header tells: the first record's time is exact, those behind it lie
    between that and the newest, taken as evenly spread."""
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


def _seconds_from(earlier_ms: int, later_ms: int) -> float:
    """Never negative: records may be stamped in the future, and deletion may be overdue."""
    return max(0, later_ms - earlier_ms) / MS_PER_SECOND
