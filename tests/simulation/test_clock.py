"""The simulated clock: time is the scheduler's, and only the wall clock jumps."""

from simulation.clock import EPOCH_MS, SimulatedClock
from simulation.scheduler import Scheduler


def test_time_passes_with_the_scheduler() -> None:
    scheduler = Scheduler()
    clock = SimulatedClock(scheduler)
    assert (clock.now_ms(), clock.monotonic_ms()) == (EPOCH_MS, 0)
    scheduler.run_for(2_999)
    assert (clock.now_ms(), clock.monotonic_ms()) == (EPOCH_MS + 2, 2)


def test_only_the_wall_clock_jumps() -> None:
    scheduler = Scheduler()
    clock = SimulatedClock(scheduler)
    scheduler.run_for(5_000)
    clock.jump(-60_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (EPOCH_MS + 5 - 60_000, 5)
    clock.jump(3_600_000)
    assert clock.now_ms() == EPOCH_MS + 5 - 60_000 + 3_600_000
