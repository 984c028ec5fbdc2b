"""The throttle of replication: what passes in a period is the rate, plus one second's worth and one response."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.clock import SimulatedClock
from simulation.scheduler import Scheduler
from tidelog.replication.throttle import UNLIMITED, WAIT_MS_MAX, ReplicationThrottle


class Limited:
    def __init__(self, rate: int) -> None:
        self.scheduler = Scheduler()
        self.throttle = ReplicationThrottle(SimulatedClock(self.scheduler))
        self.throttle.change_rate(rate)

    def pass_time(self, milliseconds: int) -> None:
        self.scheduler.run_for(milliseconds * 1000)


def test_without_a_rate_everything_passes_and_nothing_is_counted() -> None:
    limited = Limited(UNLIMITED)
    limited.throttle.record(1 << 40)
    assert (limited.throttle.available(), limited.throttle.wait_ms(), limited.throttle.throttled_bytes) == (UNLIMITED, 0, 0)


def test_a_second_passes_at_once_and_a_debt_is_paid_with_time() -> None:
    limited = Limited(1_000)
    assert limited.throttle.available() == 1_000
    limited.throttle.record(1_500)
    assert (limited.throttle.available(), limited.throttle.wait_ms()) == (0, 502)
    limited.pass_time(502)
    assert limited.throttle.available() > 0
    limited.pass_time(60_000)
    assert limited.throttle.available() == 1_000, "no more than a second is saved up"


def test_another_rate_holds_at_once_and_forgives_no_debt() -> None:
    limited = Limited(1_000)
    limited.throttle.record(11_000)
    limited.throttle.change_rate(10_000)
    limited.pass_time(1_000)
    assert (limited.throttle.available(), limited.throttle.wait_ms()) == (0, 1)
    limited.throttle.change_rate(UNLIMITED)
    assert limited.throttle.available() == UNLIMITED
    limited.throttle.change_rate(10)
    assert limited.throttle.available() == 10


def test_at_a_rate_of_nothing_nothing_passes_but_somebody_looks_again() -> None:
    limited = Limited(0)
    limited.pass_time(3_600_000)
    assert (limited.throttle.available(), limited.throttle.wait_ms()) == (0, WAIT_MS_MAX)


@settings(max_examples=30)
@given(
    rate=st.integers(1, 10**6), steps=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 10**6)), min_size=1, max_size=40)
)
def test_no_more_than_the_rate_passes(rate: int, steps: list[tuple[int, int]]) -> None:
    limited, sent, passed_ms = Limited(rate), 0, 0
    for milliseconds, wanted in steps:
        limited.pass_time(milliseconds)
        passed_ms += milliseconds
        if not limited.throttle.wait_ms():
            limited.throttle.record(wanted)
            sent += wanted
    assert sent <= rate * (passed_ms / 1000 + 1) + 10**6
