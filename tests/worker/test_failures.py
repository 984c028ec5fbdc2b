"""Failures: five retries, each at its level; poison and rejects are dead at once. Backoff: exponential, jitter below the base, a
cap."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.errors import InvalidArgument, SerializationError
from tidelog.worker.failures import Backoff, FailurePolicy, InProgress, Reject, Retry, ScheduledRetry

BACKOFF = Backoff(base=1, cap=10)


def policy(retries: int = 5, in_place_retries: int = 0, retriable: object = None) -> FailurePolicy:
    return FailurePolicy(
        retries=retries,
        in_place_retries=in_place_retries,
        backoff=BACKOFF,
        retriable=retriable,  # type: ignore[arg-type]  # several kinds are tried
        levels=max(retries, 1),
    )


def test_five_tries_after_the_first_each_at_its_level() -> None:
    decisions = [policy().decide(attempts, True, 1_000, 0.5) for attempts in range(1, 7)]
    seconds = [1.5, 2.5, 4.5, 8.5, 10.5]
    assert decisions == [*(ScheduledRetry(level, 1_000 + int(each * 1000)) for level, each in enumerate(seconds)), None]


def test_tries_in_place_belong_to_one_level() -> None:
    decide = policy(retries=2, in_place_retries=2).decide
    assert [decide(attempts, True, 0, 0) is None for attempts in (3, 6, 9)] == [False, False, True]
    assert decide(6, True, 0, 0) == ScheduledRetry(1, 2_000)


def test_what_is_not_an_attempt_stays_at_its_level() -> None:
    assert policy().look_again(0, 0, 0) == ScheduledRetry(0, 1_000)
    assert policy().look_again(3, 0, 0) == ScheduledRetry(2, 4_000)
    assert policy(retries=0).look_again(0, 0, 0) == ScheduledRetry(0, 1_000)


@pytest.mark.parametrize(
    "error", [SerializationError("x"), UnicodeDecodeError("utf-8", b"", 0, 1, "x"), json.JSONDecodeError("x", "", 0), Reject()]
)
def test_poison_and_rejects_are_dead_at_once(error: Exception) -> None:
    assert not policy().is_retriable(error)
    assert policy().decide(1, False, 0, 0) is None


def test_the_application_says_what_is_retriable() -> None:
    assert policy().is_retriable(ValueError())
    assert policy(retriable=(OSError,)).is_retriable(ConnectionError())
    assert not policy(retriable=(OSError,)).is_retriable(ValueError())
    assert policy(retriable=lambda error: "again" in str(error)).is_retriable(ValueError("again"))
    assert not policy(retriable=lambda _: True).is_retriable(Reject())
    assert policy(retriable=()).is_retriable(InProgress())


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
def test_a_backoff_out_of_range_is_refused(base: float, cap: float) -> None:
    with pytest.raises(InvalidArgument, match="base"):
        Backoff(base, cap)


def test_a_handler_chooses_the_delay() -> None:
    """It waits where the waits are the nearest that are not shorter, for as long as it asked; it is an attempt as any other."""
    chosen = policy(retries=5)
    assert chosen.is_retriable(Retry(delay=3))
    assert chosen.decide_delay(1, 3.0, 1_000) == ScheduledRetry(2, 4_000)
    assert chosen.decide_delay(1, 0, 1_000) == ScheduledRetry(0, 1_000)
    assert chosen.decide_delay(1, 1e5, 0) == ScheduledRetry(4, 100_000_000)
    assert chosen.decide_delay(5, 3.0, 0) is not None
    assert chosen.decide_delay(6, 3.0, 0) is None


@pytest.mark.parametrize("delay", [-1, float("nan"), 8 * 24 * 3600])
def test_a_delay_that_makes_no_sense(delay: float) -> None:
    with pytest.raises(InvalidArgument, match="a retry has a delay"):
        Retry(delay=delay)
