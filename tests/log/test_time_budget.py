from tidelog.log.time_budget import BUDGET_MS_MAX, TimeBudget


class HandClock:
    def __init__(self) -> None:
        self.ms = 1000

    def now_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> int:
        return self.ms

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000


def test_a_slice_ends_by_its_count() -> None:
    work = TimeBudget(HandClock(), 2)
    assert not work.is_over
    work.spend()
    assert not work.is_over
    work.spend()
    assert work.is_over


def test_a_slice_ends_by_the_clock() -> None:
    clock = HandClock()
    work = TimeBudget(clock, 1_000_000)
    clock.ms += BUDGET_MS_MAX - 1
    assert not work.is_over
    clock.ms += 1
    assert work.is_over
