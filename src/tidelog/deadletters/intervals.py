"""Offsets of one partition as intervals: what was handled is mostly one long run, so thousands of offsets are a few numbers.

Two arrays of 64 bit numbers, ``_starts`` and ``_ends``: interval i holds the offsets from ``_starts[i]`` up to and without
``_ends[i]``. They are sorted, and never touch: neighbours are one interval. 16 bytes an interval, so that even a million letters
of which every second one was handled need 8 MB.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator


class OffsetIntervals:
    """A set of offsets. ``add`` in rising order is fast; any order is right."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")

    def add(self, offset: int) -> bool:
        """False when it was there already."""
        starts, ends = self._starts, self._ends
        at = bisect_right(starts, offset)
        if at and offset < ends[at - 1]:
            return False
        joins_left = bool(at) and ends[at - 1] == offset
        joins_right = at < len(starts) and starts[at] == offset + 1
        if joins_left and joins_right:
            ends[at - 1] = ends[at]
            del starts[at], ends[at]
        elif joins_left:
            ends[at - 1] = offset + 1
        elif joins_right:
            starts[at] = offset
        else:
            starts.insert(at, offset)
            ends.insert(at, offset + 1)
        return True

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset)
        return bool(at) and offset < self._ends[at - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals, each as its first offset and the one after its last."""
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """How many intervals there are; not how many offsets."""
        return len(self._starts)

    def first_missing(self, offset: int) -> int:
        """The first offset from this one on that is not there."""
        at = bisect_right(self._starts, offset)
        return max(offset, self._ends[at - 1]) if at else offset

    def count(self, start: int, end: int) -> int:
        """How many offsets of ``start`` up to and without ``end`` are there."""
        return sum(max(0, min(last, end) - max(first, start)) for first, last in self)
