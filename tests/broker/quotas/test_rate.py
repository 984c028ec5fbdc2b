import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.quotas.rate import Rate

WINDOW_MS, SAMPLES_MAX = 1_000, 11
T0 = 5_000_000


def make() -> Rate:
    return Rate(WINDOW_MS, SAMPLES_MAX)


def test_one_value_is_spread_over_ten_windows() -> None:
    rate = make()
    rate.record(1_000, T0)
    assert rate.per_second(T0) == 100
    assert rate.per_second(T0 + 500) == pytest.approx(1_000 / 10.5)


def test_over_the_bound_by_half_means_waiting_for_half_a_window() -> None:
    """Kafka's own example: (rate - bound) / bound x window."""
    rate = make()
    rate.record(1_500, T0)
    assert rate.throttle_ms(100, T0) == 5_000
    assert rate.throttle_ms(150, T0) == 0


def test_after_the_wait_the_rate_is_within_the_bound() -> None:
    rate = make()
    rate.record(1_500, T0)
    wait_ms = round(rate.throttle_ms(100, T0))
    assert rate.throttle_ms(100, T0 + wait_ms - 1) >= 0
    # Of the first ten seconds none is counted as passed: the wait is as long as Kafka's, which ends when the value is gone.
    assert rate.throttle_ms(100, T0 + SAMPLES_MAX * WINDOW_MS) == 0


def test_a_window_that_is_full_moves_on_with_time() -> None:
    rate = make()
    for second in range(30):
        rate.record(100, T0 + second * 1_000)
    # Twelve samples, the last of which has just begun.
    assert rate.total(T0 + 29_000) == 1_100
    assert rate.per_second(T0 + 29_000) == pytest.approx(110)
    assert rate.per_second(T0 + 29_999) == pytest.approx(100, rel=0.02)


def test_what_is_older_than_the_window_is_forgotten_sample_by_sample() -> None:
    rate = make()
    rate.record(500, T0)
    rate.record(300, T0 + 4_000)
    assert rate.total(T0 + 10_999) == 800
    assert rate.total(T0 + 11_000) == 300
    assert rate.total(T0 + 15_000) == 0
    assert rate.per_second(T0 + 15_000) == 0


def test_what_is_taken_back_never_was() -> None:
    rate = make()
    rate.record(100, T0)
    before = rate.per_second(T0 + 700)
    rate.record(5_000, T0 + 700)
    rate.record(-5_000, T0 + 700)
    assert rate.per_second(T0 + 700) == before


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 10_000)), min_size=1, max_size=60), st.integers(0, 20_000))
def test_a_rate_that_is_over_is_as_good_as_a_new_one(values: list[tuple[int, int]], rest_ms: int) -> None:
    used, now_ms = make(), T0
    for delay_ms, value in values:
        now_ms += delay_ms
        used.record(value, now_ms)
        assert len(used._samples) <= SAMPLES_MAX + 1
    now_ms += rest_ms
    if used.is_over(now_ms):
        fresh = make()
        for each in (used, fresh):
            each.record(77, now_ms)
        assert used.per_second(now_ms + 10) == fresh.per_second(now_ms + 10)
    else:
        assert rest_ms < WINDOW_MS * SAMPLES_MAX


def test_one_sample_at_its_beginning_divides_by_something() -> None:
    rate = Rate(1_000, 1)
    rate.record(5, T0)
    assert rate.per_second(T0) == 5_000
