"""Backoff: exponential, jitter below the base, a cap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.errors import InvalidArgument
from tidelog.worker.backoff import Backoff


@given(st.integers(0, 1000), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_between_the_step_and_one_base_above_it(level: int, fraction: float) -> None:
    backoff = Backoff(base=0.5, cap=20)
    step = min(20, 0.5 * 2.0**level)
    assert step <= backoff.delay(level, fraction) <= step + 0.5


def test_the_steps_and_the_longest_way() -> None:
    backoff = Backoff(base=1, cap=60)
    assert [backoff.delay(level, 0) for level in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.window(3) == 1 + 2 + 4 + 3
    assert backoff.window(0) == 0


@pytest.mark.parametrize(("base", "cap"), [(0, 1), (-1, 1), (2, 1), (1, 1e9)])
def test_what_makes_no_sense_is_refused(base: float, cap: float) -> None:
    with pytest.raises(InvalidArgument, match="base"):
        Backoff(base, cap)
