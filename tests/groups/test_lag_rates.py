"""Rates from two remembered points: right for an even pace, close for any, and nothing from a reset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.groups.lag import MEASURED_MS_MIN, WINDOW_MS, RateWindow


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


def test_a_reset_begins_anew() -> None:
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
    """Of any pace: the rate lies between the slowest and the fastest of the steps that a window can cover."""
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
