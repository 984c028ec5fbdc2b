"""How much background work may do before the loop has its turn: so many things, and so long.

The count is what a slice does on a disk that answers at once. When the file system is busy (a rename waits for the journal, which
another thread's sync is writing) each thing takes a hundred times as long, and the clock ends the slice.
"""

from tidelog.ports.clock import Clock

# Checked between two things, so a slice takes longer by the last one.
SLICE_MS_MAX = 5


class Slice:
    __slots__ = ("_clock", "_end_ms", "left")

    def __init__(self, clock: Clock, count: int) -> None:
        self._clock = clock
        self._end_ms = clock.monotonic_ms() + SLICE_MS_MAX
        self.left = count
        """Things that may still be done, if there is time."""

    @property
    def is_over(self) -> bool:
        return self.left <= 0 or self._clock.monotonic_ms() >= self._end_ms
