"""How far a group is behind, how fast its offsets move, and when it loses records."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.groups.lag import (
    MEASURED_MS_MIN,
    UNLIMITED,
    WINDOW_MS,
    BatchTimes,
    GroupPartitionLag,
    RateWindow,
    RetentionFacts,
    SegmentFacts,
    deletion_at_ms,
    drain_seconds,
    measure_lag,
    next_unread,
    timestamp_within,
)

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


def test_nothing_is_known_at_first() -> None:
    window = RateWindow(0, 100)
    assert window.per_second is None
    window.observe(MEASURED_MS_MIN - 1, 200)
    assert window.per_second is None
    window.observe(MEASURED_MS_MIN, 200)
    assert window.per_second == 100


def test_what_is_past_is_forgotten() -> None:
    window = RateWindow(0, 0)
    for second in range(1, 601):
        window.observe(second * 1000, 1000 * min(second, 300))
        if second == 300:
            assert window.per_second == 1000
    assert window.per_second == 0


def test_a_reset_begins_again() -> None:
    window = RateWindow(0, 500)
    window.observe(10_000, 600)
    window.observe(20_000, 0)
    assert window.per_second is None
    window.observe(30_000, 50)
    assert window.per_second == 5


def test_after_a_long_pause_the_old_points_count_no_more() -> None:
    window = RateWindow(0, 0)
    window.observe(10_000, 100)
    window.observe(10_000 + WINDOW_MS + 1, 5_000_000)
    assert window.per_second is None


@given(st.lists(st.tuples(st.integers(1, WINDOW_MS // 2), st.integers(0, 10**6)), min_size=1, max_size=60))
def test_the_rate_is_that_of_at_most_a_window_and_a_step(steps: list[tuple[int, int]]) -> None:
    """At any pace the rate lies between the slowest and the fastest of the steps that a window can cover."""
    window = RateWindow(0, 0)
    now_ms = offset = 0
    for step_ms, more in steps:
        now_ms, offset = now_ms + step_ms, offset + more
        window.observe(now_ms, offset)
    rate = window.per_second
    if rate is None:
        assert now_ms < MEASURED_MS_MIN
        return
    recent: list[float] = []
    at_ms = now_ms
    for step_ms, more in reversed(steps):
        recent.append(more * 1000 / step_ms)
        at_ms -= step_ms
        if now_ms - at_ms >= 2 * WINDOW_MS:
            break
    assert min(recent) * 0.999 <= rate <= max(recent) * 1.001


@given(st.integers(1, 10**6), st.lists(st.integers(1000, WINDOW_MS), min_size=1, max_size=30))
def test_an_even_pace_is_met_exactly(per_second: int, steps_ms: list[int]) -> None:
    window = RateWindow(0, 0)
    now_ms = 0
    for step_ms in steps_ms:
        now_ms += step_ms - step_ms % 1000
        window.observe(now_ms, per_second * now_ms // 1000)
    assert window.per_second == pytest.approx(per_second)


BY_AGE = RetentionFacts(True, 10_000, UNLIMITED)
BY_SIZE = RetentionFacts(True, -1, 1_000)
COMPACTED = RetentionFacts(False, 10_000, 1_000)


def at(
    retention: RetentionFacts,
    first: SegmentFacts,
    holding: SegmentFacts,
    log_bytes: int = 3_000,
    rate: float | None = 100.0,
    horizon_ms: int | None = None,
) -> int | None:
    return deletion_at_ms(NOW_MS, retention, first, holding, log_bytes, rate, horizon_ms)


def test_by_age() -> None:
    first, holding = SegmentFacts(NOW_MS - 9_000, 500), SegmentFacts(NOW_MS - 4_000, 1_500)
    assert at(BY_AGE, first, first) == NOW_MS + 1_000
    assert at(BY_AGE, first, holding) == NOW_MS + 6_000


def test_the_first_segment_keeps_those_behind_it() -> None:
    """Stamped in the future, it stays, and nothing behind it goes."""
    assert at(BY_AGE, SegmentFacts(NOW_MS + 50_000, 500), SegmentFacts(NOW_MS - 4_000, 1_500)) == NOW_MS + 60_000
    assert at(BY_AGE, SegmentFacts(None, 500), SegmentFacts(NOW_MS - 4_000, 1_500)) is None


def test_by_size() -> None:
    first = SegmentFacts(NOW_MS, 500)
    assert at(BY_SIZE, first, SegmentFacts(NOW_MS, 2_000)) == NOW_MS, "the log without it has what it must keep"
    assert at(BY_SIZE, first, SegmentFacts(NOW_MS, 2_001)) == NOW_MS + 10, "a byte more has to come"
    assert at(BY_SIZE, first, SegmentFacts(NOW_MS, 3_000)) == NOW_MS + 10_000
    assert at(BY_SIZE, first, SegmentFacts(NOW_MS, 3_000), rate=0.0) is None
    assert at(BY_SIZE, first, SegmentFacts(NOW_MS, 3_000), rate=None) is None


def test_the_active_segment_goes_by_size_after_a_roll() -> None:
    first = SegmentFacts(NOW_MS, 500)
    assert at(BY_SIZE, first, SegmentFacts(NOW_MS, 3_000, bytes_until_roll=2_000)) == NOW_MS + 20_000
    rolled_by_age = SegmentFacts(NOW_MS, 3_000, bytes_until_roll=2_000, roll_at_ms=NOW_MS + 15_000)
    assert at(BY_SIZE, first, rolled_by_age) == NOW_MS + 15_000
    assert at(BY_SIZE, first, rolled_by_age._replace(roll_at_ms=NOW_MS - 1)) == NOW_MS + 10_000
    assert at(BY_SIZE, first, rolled_by_age, rate=0.0) is None
    nothing_kept = RetentionFacts(True, -1, 0)
    assert at(nothing_kept, first, SegmentFacts(NOW_MS, 3_000, bytes_until_roll=1), rate=0.0) is None


def test_whichever_comes_first() -> None:
    both = RetentionFacts(True, 10_000, 1_000)
    first = SegmentFacts(NOW_MS - 9_999, 500)
    assert at(both, first, SegmentFacts(NOW_MS - 5_000, 2_100)) == NOW_MS + 1_000
    assert at(both, first, SegmentFacts(NOW_MS - 9_500, 2_100)) == NOW_MS + 500


def test_a_compacted_topic_loses_only_tombstones() -> None:
    segment = SegmentFacts(NOW_MS - 9_999, 500)
    assert at(COMPACTED, segment, segment) is None
    assert at(COMPACTED, segment, segment, horizon_ms=NOW_MS + 7) == NOW_MS + 7
    assert at(BY_AGE, segment, segment, horizon_ms=NOW_MS + 7) == NOW_MS + 1


segments = st.lists(st.tuples(st.integers(NOW_MS - 20_000, NOW_MS + 20_000), st.integers(1, 1_000)), min_size=1, max_size=8)


@given(
    segments,
    st.integers(0, 7),
    st.sampled_from([-1, 0, 5_000, 20_000]),
    st.sampled_from([-1, 0, 500, 5_000]),
    st.integers(0, 60_000),
)
def test_retention_never_comes_before(
    of_log: list[tuple[int, int]], index: int, retention_ms: int, retention_bytes: int, wait_ms: int
) -> None:
    """What the broker's own rule would have deleted at a moment was announced for that moment or before. All are closed segments,
    and a byte is written every millisecond behind them."""
    index = min(index, len(of_log) - 1)
    through = [sum(size for _, size in of_log[: number + 1]) for number in range(len(of_log))]
    retention = RetentionFacts(True, retention_ms, retention_bytes)
    facts = [SegmentFacts(newest, size) for (newest, _), size in zip(of_log, through, strict=True)]
    announced = deletion_at_ms(NOW_MS, retention, facts[0], facts[index], through[-1], 1_000.0)
    later_ms = NOW_MS + wait_ms
    excess = through[-1] + wait_ms - retention_bytes if retention_bytes >= 0 else 0
    deleted = 0
    for newest, size in of_log:
        if not ((retention_ms >= 0 and later_ms - newest > retention_ms) or excess >= size):
            break
        excess -= size
        deleted += 1
    if deleted > index:
        assert announced is not None
        assert announced <= later_ms


@pytest.mark.parametrize("rate", [None, 0.0, 5.0])
def test_no_retention_never_deletes(rate: float | None) -> None:
    segment = SegmentFacts(0, 500)
    assert at(RetentionFacts(True, -1, UNLIMITED), segment, segment, rate=rate) is None
