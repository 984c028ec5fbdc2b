"""When an unread record is deleted: by age, by size, by its delete horizon, and never before retention itself would."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.groups.lag import UNLIMITED, RetentionFacts, SegmentFacts, deletion_at_ms

NOW_MS = 1_000_000
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
