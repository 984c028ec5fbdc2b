"""Which delayed records become due when: what is due soon by record, what is due later by stretch of the log.

A delayed record is on disk, with the time at which it is due. What is kept here only says when to look at it again:

- A record that is due within the horizon of 15 minutes is an entry of 16 bytes (time, offset) in the bucket of its minute. When
  the minute begins, its entries go to a wheel with buckets of a tenth of a second.
- Records that are due later have no entries of their own. A *stretch* of up to a thousand neighbouring offsets has one, with the
  earliest of their times. A minute before that time the stretch is looked at again: its records are read once more, and those
  that are then within the horizon get entries. Stretches come back one at a time, so that a million of them hold nobody up.

A record is never reported early, and at most a bucket's width late. An entry may be there twice, or for a record that was settled
long ago: whoever takes it looks at the record's state.
"""

import heapq
from array import array
from collections.abc import Iterator
from itertools import islice

from tidelog.queues.lock_wheel import LockWheel

MINUTE_MS = 60_000
HORIZON_MS = 15 * MINUTE_MS
LOOK_AHEAD_MS = MINUTE_MS
STRETCH_OFFSETS_MAX = 1_024
# So many are taken in one turn: each may split the table of states or join it, which takes up to 50 microseconds in a large one.
TAKEN_MAX = 500


class DelayWheel:
    __slots__ = ("_has_more", "_minutes", "_numbers", "_soon", "_stretch", "_stretches", "_taking")

    def __init__(self) -> None:
        self._soon = LockWheel()
        # Pairs of (due time, offset), by minute.
        self._minutes: dict[int, array[int]] = {}
        self._numbers: list[int] = []
        # (when to look again, first offset, last offset), as a heap; and the one that still grows.
        self._stretches: list[tuple[int, int, int]] = []
        self._stretch: tuple[int, int, int] | None = None
        # What is due and was too much for one turn.
        self._taking: Iterator[tuple[int, int]] = iter(())
        self._has_more = False

    @property
    def entry_count(self) -> int:
        """The number of records that have entries of their own."""
        return len(self._soon) + sum(len(minute) for minute in self._minutes.values()) // 2

    @property
    def stretch_count(self) -> int:
        return len(self._stretches) + (self._stretch is not None)

    def add(self, due_ms: int, offset: int, now_ms: int) -> None:
        if due_ms - now_ms > HORIZON_MS:
            self._add_later(due_ms - LOOK_AHEAD_MS, offset)
            return
        number = due_ms // MINUTE_MS
        if number <= now_ms // MINUTE_MS:
            self._soon.add(due_ms, offset, offset)
            return
        minute = self._minutes.get(number)
        if minute is None:
            minute = self._minutes[number] = array("q")
            heapq.heappush(self._numbers, number)
        minute.append(due_ms)
        minute.append(offset)

    def _add_later(self, look_ms: int, offset: int) -> None:
        if self._stretch is not None:
            at_ms, first, last = self._stretch
            if first <= offset < first + STRETCH_OFFSETS_MAX:
                self._stretch = min(at_ms, look_ms), first, max(last, offset)
                return
            heapq.heappush(self._stretches, self._stretch)
        self._stretch = look_ms, offset, offset

    def next_ms(self) -> int | None:
        """When ``take_due`` has something, or may have; None if there is nothing to wait for."""
        if self._has_more:
            return 0
        times = []
        soon_ms = self._soon.next_deadline_ms()
        if soon_ms is not None:
            times.append(soon_ms)
        if self._numbers:
            times.append(self._numbers[0] * MINUTE_MS)
        if self._stretches:
            times.append(self._stretches[0][0])
        if self._stretch is not None:
            times.append(self._stretch[0])
        return min(times, default=None)

    def take_due(self, now_ms: int) -> list[tuple[int, int]]:
        """Remove what is due and return its offsets: records that may be handed out, and at most one stretch to look at. What is
        too much for one turn comes with the next calls."""
        taken = list(islice(self._taking, TAKEN_MAX))
        if len(taken) < TAKEN_MAX:
            self._taking = self._due(now_ms)
            taken += islice(self._taking, TAKEN_MAX - len(taken))
        self._has_more = len(taken) == TAKEN_MAX
        return taken

    def _due(self, now_ms: int) -> Iterator[tuple[int, int]]:
        while self._numbers and self._numbers[0] * MINUTE_MS <= now_ms:
            minute = self._minutes.pop(heapq.heappop(self._numbers))
            for due_ms, offset in zip(minute[::2], minute[1::2], strict=True):
                self._soon.add(due_ms, offset, offset)
        yield from self._soon.take_due(now_ms)
        if self._stretch is not None and self._stretch[0] <= now_ms:
            heapq.heappush(self._stretches, self._stretch)
            self._stretch = None
        if self._stretches and self._stretches[0][0] <= now_ms:
            yield heapq.heappop(self._stretches)[1:]
