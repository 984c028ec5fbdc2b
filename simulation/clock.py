"""The simulated clock: the scheduler's time, and a wall clock that tests can move."""

from simulation.scheduler import Scheduler

# Where the wall clock stands when a run begins: 2024-01-01T00:00:00Z. Any fixed date would do.
EPOCH_MS = 1_704_067_200_000


class SimulatedClock:
    __slots__ = ("_offset_ms", "_scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._offset_ms = EPOCH_MS

    def now_ms(self) -> int:
        return self._offset_ms + self._scheduler.now_us // 1000

    def monotonic_ms(self) -> int:
        return self._scheduler.now_us // 1000

    def monotonic_ns(self) -> int:
        return self._scheduler.now_us * 1000

    def jump(self, difference_ms: int) -> None:
        """Move the wall clock, forwards or backwards. The monotonic clock does not notice."""
        self._scheduler.record(f"clock jump {difference_ms}")
        self._offset_ms += difference_ms
