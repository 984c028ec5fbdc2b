from collections.abc import Callable

from tidelog.server.deadline_wheel import SLOT_COUNT, DeadlineWheel


class Loop:
    """A clock and one timer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        assert self.timer is None, "one timer is enough"
        self.timer = self.now + seconds, callback

    def run_until(self, end: float) -> None:
        while self.timer is not None and self.timer[0] <= end:
            self.now, callback = self.timer
            self.timer = None
            callback()
        self.now = max(self.now, end)


class Deadline:
    def __init__(self, at: float) -> None:
        self.at = at
        self.asked: list[float] = []

    def check(self, now: float) -> float | None:
        self.asked.append(now)
        return self.at if now < self.at else None


def test_a_deadline_is_seen_within_a_slot() -> None:
    loop = Loop()
    wheel = DeadlineWheel(loop.time, loop.call_later, shortest_seconds=64.0)
    deadlines = [Deadline(at) for at in (31.0, 40.0, 40.5, 64.0, 100.0, 1000.0)]
    for deadline in deadlines:
        wheel.watch(deadline)
    loop.run_until(2000.0)
    assert [deadline.asked[-1] - deadline.at for deadline in deadlines] == [0.0, 0.0, 0.5, 0.0, 0.0, 0.0]
    # A far deadline is asked once a turn, not once a slot.
    assert len(deadlines[-1].asked) <= 1000 / (SLOT_COUNT - 1) + 2


def test_the_timer_runs_only_while_something_is_watched() -> None:
    loop = Loop()
    wheel = DeadlineWheel(loop.time, loop.call_later, shortest_seconds=1.0)
    assert loop.timer is None
    wheel.watch(Deadline(0.1))
    assert len(wheel) == 1
    loop.run_until(10.0)
    assert len(wheel) == 0
    assert loop.timer is None
    later = Deadline(11.0)
    wheel.watch(later)
    loop.run_until(20.0)
    assert later.asked


def test_a_deadline_that_came_nearer_is_seen_within_a_turn() -> None:
    loop = Loop()
    wheel = DeadlineWheel(loop.time, loop.call_later, shortest_seconds=64.0)
    deadline = Deadline(10_000.0)
    wheel.watch(deadline)
    loop.run_until(500.0)
    deadline.at = 501.0
    loop.run_until(501.0 + SLOT_COUNT)
    assert len(wheel) == 0


def test_the_shortest_limit_decides_how_fine_the_ring_is() -> None:
    loop = Loop()
    wheel = DeadlineWheel(loop.time, loop.call_later, shortest_seconds=0.64)
    deadline = Deadline(0.64)
    wheel.watch(deadline)
    loop.run_until(1.0)
    assert 0.64 <= deadline.asked[-1] <= 0.66
