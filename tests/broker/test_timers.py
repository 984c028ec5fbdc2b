from simulation.clock import SimulatedClock
from simulation.scheduler import Scheduler
from tidelog.broker.timers import REBUILD_TIMERS_MIN, Timers


class World:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.timers = Timers(SimulatedClock(self.scheduler))
        self.ran: list[str] = []

    def schedule(self, delay_ms: int, name: str) -> "object":
        return self.timers.schedule(delay_ms, lambda: self.ran.append(name))

    def pass_time(self, duration_ms: int) -> None:
        self.scheduler.run_for(duration_ms * 1000)
        self.timers.run_due()


def test_timers_run_in_the_order_of_their_deadlines_and_those_of_the_same_in_that_of_their_making() -> None:
    world = World()
    for delay_ms, name in ((20, "c"), (10, "a"), (10, "b")):
        world.schedule(delay_ms, name)
    assert world.timers.next_deadline_ms() == 10
    world.pass_time(9)
    assert world.ran == []
    world.pass_time(1)
    assert world.ran == ["a", "b"]
    world.pass_time(100)
    assert world.ran == ["a", "b", "c"]
    assert world.timers.next_deadline_ms() is None


def test_a_cancelled_timer_does_not_run_and_wakes_nobody() -> None:
    world = World()
    timer = world.timers.schedule(10, lambda: world.ran.append("no"))
    world.schedule(30, "yes")
    timer.cancel()
    timer.cancel()
    assert len(world.timers) == 1
    assert world.timers.next_deadline_ms() == 30
    world.pass_time(40)
    assert world.ran == ["yes"]


def test_a_timer_may_cancel_another_and_schedule_more() -> None:
    world = World()

    def first() -> None:
        world.ran.append("first")
        second.cancel()
        world.schedule(0, "third")

    world.timers.schedule(10, first)
    second = world.timers.schedule(10, lambda: world.ran.append("second"))
    world.pass_time(10)
    assert world.ran == ["first"], "what a timer schedules is for the next time"
    assert world.timers.next_deadline_ms() == 10
    world.timers.run_due()
    assert world.ran == ["first", "third"]
    assert len(world.timers) == 0


def test_cancelled_timers_do_not_pile_up() -> None:
    world = World()
    kept = world.schedule(1_000_000, "kept")
    for _ in range(10 * REBUILD_TIMERS_MIN):
        world.timers.schedule(500_000, lambda: None).cancel()
    assert kept is not None
    assert len(world.timers) == 1
    assert len(world.timers._heap) <= REBUILD_TIMERS_MIN
    world.pass_time(1_000_000)
    assert world.ran == ["kept"]


def test_many_cancelled_timers_within_one_that_runs_do_not_disturb_the_others() -> None:
    world = World()
    doomed = [world.timers.schedule(50, lambda: world.ran.append("no")) for _ in range(2 * REBUILD_TIMERS_MIN)]

    def cancel_all() -> None:
        for timer in doomed:
            timer.cancel()

    world.timers.schedule(10, cancel_all)
    world.schedule(60, "yes")
    world.pass_time(100)
    assert world.ran == ["yes"]
    assert len(world.timers) == 0
