"""Limits background work before the event loop gets its turn: by a number of steps, and by time.

The number of steps is what fits on a disk that answers at once. When the file system is busy (a rename waits for the journal,
which another thread's sync is writing) each step takes a hundred times as long, and the clock ends the work.
"""

from tidelog.ports.clock import Clock

# The time is checked between two steps, so the last one may exceed it.
BUDGET_MS_MAX = 5


class TimeBudget:
    __slots__ = ("_clock", "_end_ms", "left")

    def __init__(self, clock: Clock, count: int) -> None:
        self._clock = clock
        self._end_ms = clock.monotonic_ms() + BUDGET_MS_MAX
        self.left = count
        """The number of steps that may still be done, if there is time."""

    def spend(self, count: int = 1) -> None:
        self.left -= count

    @property
    def is_over(self) -> bool:
        return self.left <= 0 or self._clock.monotonic_ms() >= self._end_ms
