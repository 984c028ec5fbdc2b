"""A figure in milliseconds over the last minute: its maximum, and how often it fell into which range.

Kept in ``SLOT_COUNT`` slots of ten seconds each, the oldest of which is emptied when its time comes round again: between fifty
seconds and a minute are remembered, at a cost that does not depend on how much happens.
"""

from bisect import bisect_left

SLOT_COUNT = 6
SLOT_SECONDS = 10.0
BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class MinuteFigure:
    __slots__ = ("_counts", "_maxima", "_number", "total")

    def __init__(self) -> None:
        self._counts = [[0] * (len(BUCKETS_MS) + 1) for _ in range(SLOT_COUNT)]
        self._maxima = [0.0] * SLOT_COUNT
        # Of the slot that is being filled: its time divided by SLOT_SECONDS.
        self._number = 0
        self.total = 0
        """Values noted since the start."""

    def note(self, value_ms: float, now_seconds: float) -> None:
        slot = self._turn(now_seconds)
        self._counts[slot][bisect_left(BUCKETS_MS, value_ms)] += 1
        if value_ms > self._maxima[slot]:
            self._maxima[slot] = value_ms
        self.total += 1

    def max_ms(self, now_seconds: float) -> float:
        self._turn(now_seconds)
        return max(self._maxima)

    def counts(self, now_seconds: float) -> list[int]:
        """``counts[i]`` values were at most ``BUCKETS_MS[i]`` and more than the bucket before; the last ones more than all."""
        self._turn(now_seconds)
        return [sum(counts) for counts in zip(*self._counts, strict=True)]

    def _turn(self, now_seconds: float) -> int:
        """Empty the slots whose time has passed; returns the one for now."""
        number = int(now_seconds / SLOT_SECONDS)
        for passed in range(max(self._number + 1, number - SLOT_COUNT + 1), number + 1):
            slot = passed % SLOT_COUNT
            self._counts[slot] = [0] * (len(BUCKETS_MS) + 1)
            self._maxima[slot] = 0.0
        self._number = max(self._number, number)
        return self._number % SLOT_COUNT
