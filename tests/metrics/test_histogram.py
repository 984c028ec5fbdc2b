"""Buckets by length in bits: what Prometheus is told must be what was noted."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.metrics.histogram import BITS_MAX, COUNTS, NANOSECONDS_PER_SECOND, SECONDS, SECONDS_COARSE, Histogram, Scale

VALUES = st.lists(st.integers(0, 2**BITS_MAX - 1), max_size=50)
SCALES = st.sampled_from([SECONDS, SECONDS_COARSE, COUNTS, Scale(1, BITS_MAX, 1, 1)])


@given(VALUES, SCALES)
def test_each_bound_counts_what_is_not_above_it(values: list[int], scale: Scale) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    shown = histogram.value(scale)
    for bits, bound, count in zip(
        range(scale.bits_min, scale.bits_max + 1, scale.bits_step), shown.bounds, shown.cumulated, strict=True
    ):
        assert bound == (2**bits - 1) / scale.unit
        assert count == sum(value <= 2**bits - 1 for value in values)
    assert shown.total == histogram.count == len(values)
    assert shown.sum == sum(values) / scale.unit


@given(VALUES, VALUES, SCALES)
def test_two_joined_are_one_of_all(left: list[int], right: list[int], scale: Scale) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for value in left:
        one.observe(value)
        both.observe(value)
    for value in right:
        other.observe(value)
        both.observe(value)
    joined = one.value(scale).joined(other.value(scale))
    assert joined.cumulated == both.value(scale).cumulated
    assert joined.total == both.count


def test_the_scale_of_seconds_reaches_from_a_turn_of_the_loop_to_a_time_out() -> None:
    bounds = SECONDS.bounds()
    assert bounds[0] < 50e-6
    assert bounds[-1] > 15
    assert SECONDS.unit == NANOSECONDS_PER_SECOND
    assert len(SECONDS_COARSE.bounds()) < len(bounds) * 0.6


def test_one_that_stands_for_several() -> None:
    one, several = Histogram(), Histogram()
    one.observe(1000, 3)
    for _ in range(3):
        several.observe(1000)
    assert one.value(SECONDS) == several.value(SECONDS)


def test_counts_have_a_bound_of_one() -> None:
    histogram = Histogram()
    histogram.observe(1)
    assert COUNTS.bounds()[0] == 1
    assert histogram.value(COUNTS).cumulated[0] == 1
