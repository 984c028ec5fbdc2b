"""The figures of one group in one partition, from numbers."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.groups.lag import BatchTimes, GroupPartitionLag, drain_seconds, measure_lag, next_unread, timestamp_within

NOW_MS = 1_000_000


def measured(**changes: Any) -> GroupPartitionLag:
    facts: dict[str, Any] = {
        "now_ms": NOW_MS,
        "committed_offset": 40,
        "log_start_offset": 0,
        "high_watermark": 100,
        "next_timestamp_ms": NOW_MS - 12_500,
        "deletion_at_ms": NOW_MS + 90_000,
        "compacted_offset": None,
        "consumed_per_second": 5.0,
        "produced_per_second": 2.0,
        "warning_seconds": 60,
        **changes,
    }
    return measure_lag("billing", "orders", 3, **facts)


def test_a_group_that_is_behind() -> None:
    assert measured() == GroupPartitionLag(
        "billing", "orders", 3, 40, 0, 100, 60, 12.5, 5.0, 2.0, 20.0, 90.0, 0, False, False
    )  # fmt: skip


def test_a_group_that_has_read_everything() -> None:
    lag = measured(committed_offset=100)
    assert (lag.lag_messages, lag.lag_seconds, lag.drain_seconds, lag.deletion_seconds) == (0, 0.0, 0.0, None)
    assert not lag.is_losing


def test_an_offset_beyond_the_end_is_no_lag() -> None:
    lag = measured(committed_offset=500)
    assert (lag.lag_messages, lag.lag_seconds, lag.lost_messages) == (0, 0.0, 0)


def test_behind_the_log_start() -> None:
    lag = measured(log_start_offset=70)
    assert (lag.lag_messages, lag.lost_messages, lag.is_behind_log_start) == (60, 30, True)
    assert lag.drain_seconds == 10.0, "only what is there can be read"
    assert not measured(log_start_offset=40).is_behind_log_start


def test_everything_unread_was_deleted() -> None:
    lag = measured(log_start_offset=100)
    assert (lag.lost_messages, lag.lag_seconds, lag.deletion_seconds) == (60, 0.0, None)


def test_behind_compaction() -> None:
    assert measured(compacted_offset=41).is_behind_compaction
    assert not measured(compacted_offset=40).is_behind_compaction
    assert not measured(committed_offset=100, compacted_offset=200).is_behind_compaction
    assert not measured(log_start_offset=50, compacted_offset=45).is_behind_compaction


@pytest.mark.parametrize(("seconds", "threshold", "is_losing"), [(60, 60, True), (61, 60, False), (-5, 60, True), (0, 0, False)])
def test_the_threshold(seconds: int, threshold: int, is_losing: bool) -> None:
    lag = measured(deletion_at_ms=NOW_MS + seconds * 1000, warning_seconds=threshold)
    assert lag.is_losing == is_losing
    assert lag.deletion_seconds == max(0, seconds)


def test_what_is_not_known() -> None:
    lag = measured(next_timestamp_ms=None, deletion_at_ms=None, consumed_per_second=None)
    assert (lag.lag_seconds, lag.deletion_seconds, lag.drain_seconds, lag.is_losing) == (None, None, None, False)


def test_records_from_the_future_are_not_late() -> None:
    assert measured(next_timestamp_ms=NOW_MS + 5).lag_seconds == 0.0


def test_draining() -> None:
    assert drain_seconds(0, None, None) == 0.0
    assert drain_seconds(10, 5.0, None) is None
    assert drain_seconds(10, 7.0, 5.0) == 5.0
    assert drain_seconds(10, 5.0, 5.0) == math.inf
    assert drain_seconds(10, 0.0, 5.0) == math.inf


def test_times_within_a_batch() -> None:
    batch = BatchTimes(10, 20, 1_000, 2_000)
    assert [timestamp_within(batch, offset) for offset in (10, 15, 20)] == [1_000, 1_500, 2_000]
    assert timestamp_within(batch, 5) == 1_000, "compaction took the records before it"
    assert timestamp_within(BatchTimes(10, 10, 1_000, 2_000), 10) == 1_000
    assert timestamp_within(BatchTimes(10, 20, -1, -1), 10) is None
    assert timestamp_within(BatchTimes(10, 20, -1, 2_000), 10) == 2_000


offsets = st.integers(0, 2**62)


@given(offsets, offsets, offsets)
def test_counts_add_up(committed: int, start: int, more: int) -> None:
    high_watermark = start + more
    lag = measured(committed_offset=committed, log_start_offset=start, high_watermark=high_watermark)
    offset = next_unread(committed, start, high_watermark)
    unread = 0 if offset is None else high_watermark - offset
    assert lag.lag_messages == max(0, high_watermark - committed)
    assert unread <= more
    assert (offset is None) == (lag.deletion_seconds is None)
    if committed <= high_watermark:
        assert unread + lag.lost_messages == lag.lag_messages


@given(offsets, st.integers(0, 10_000), st.integers(-1, 2**50), st.integers(-1, 2**50), offsets)
def test_a_time_within_a_batch_is_one_of_its_own(first: int, span: int, oldest_ms: int, newest_ms: int, offset: int) -> None:
    found = timestamp_within(BatchTimes(first, first + span, oldest_ms, newest_ms), offset)
    if newest_ms < 0:
        assert found is None
    else:
        assert found is not None
        assert min(oldest_ms if oldest_ms >= 0 else newest_ms, newest_ms) <= found <= newest_ms
