"""The circuit breaker: closed until failures say otherwise, then pauses that grow, one probe at a time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.errors import InvalidArgument
from tidelog.worker.breaker import Breaker, BreakerState, CircuitBreaker

OPTIONS = CircuitBreaker(failures=4, share=0.5, window=1.0, pause=2.0, pause_cap=5.0)


def state_of(breaker: Breaker) -> str:
    return breaker.state.value


def opened(now_ms: int = 0) -> Breaker:
    breaker = Breaker(OPTIONS)
    assert [breaker.failed(now_ms) for _ in range(4)] == [False, False, False, True]
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_it_opens_at_the_failure_that_is_enough_and_takes_that_back() -> None:
    breaker = opened()
    assert breaker.failed(1) is True
    assert breaker.opened_count == 1


def test_successes_and_time_keep_it_closed() -> None:
    breaker = Breaker(OPTIONS)
    breaker.succeeded(10, 0)
    assert not any(breaker.failed(0) for _ in range(9))
    later = Breaker(OPTIONS)
    assert not any(later.failed(1_000 * second) for second in range(20))


def test_a_probe_that_is_handled_closes_it_and_one_that_fails_doubles_the_pause() -> None:
    breaker = opened()
    assert not breaker.tick(1_999)
    assert breaker.tick(2_000)
    assert state_of(breaker) == "probing"
    # An ordinary failure: it is not taken back.
    assert breaker.failed(2_000) is False
    assert not breaker.tick(5_999)
    assert breaker.tick(6_000)
    assert breaker.failed(6_000) is False
    # 8 seconds would be above the cap.
    assert breaker.tick(11_000)
    breaker.succeeded(1, 11_000)
    assert state_of(breaker) == "closed"
    assert [breaker.failed(11_000) for _ in range(4)] == [False, False, False, True]
    assert breaker.tick(13_000), "the pause is short again"


def test_which_failures_count() -> None:
    assert Breaker(OPTIONS).counts(OSError(), True)
    assert not Breaker(OPTIONS).counts(OSError(), False)
    by_class = Breaker(OPTIONS._replace(counts=(ConnectionError,)))
    assert by_class.counts(ConnectionResetError(), False)
    assert not by_class.counts(ValueError(), True)
    assert Breaker(OPTIONS._replace(counts=lambda error: "down" in str(error))).counts(OSError("down"), False)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=200))
def test_it_is_never_open_without_enough_failures_in_the_window(steps: list[tuple[bool, int]]) -> None:
    breaker = Breaker(OPTIONS)
    now_ms = 0
    failures: list[int] = []
    for is_success, passed_ms in steps:
        now_ms += passed_ms
        if is_success:
            breaker.succeeded(1, now_ms)
            continue
        failures.append(now_ms)
        if breaker.failed(now_ms):
            # A bucket is a tenth of the window.
            assert sum(at > now_ms - 1_100 for at in failures) >= 4
            return


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"share": 0}, {"share": 2}, {"window": 0}, {"pause": 0}, {"pause": 9}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        OPTIONS._replace(**wrong).check()
