"""Deadlines of the broker: a heap, driven from outside.

The server asks for ``next_deadline_ms``, sleeps until then, and calls ``run_due``. A cancelled timer stays in the heap until its
time comes; when most of the heap is cancelled it is rebuilt, so that a million answered long polls do not pile up.
"""

import heapq
from collections.abc import Callable

from tidelog.ports.clock import Clock

# Below this size a rebuild is not worth its cost.
REBUILD_TIMERS_MIN = 1024


class Timer:
    __slots__ = ("_timers", "action")

    def __init__(self, timers: "Timers", action: Callable[[], None]) -> None:
        self._timers = timers
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        if self.action is not None:
            self.action = None
            self._timers.note_cancelled()


class Timers:
    __slots__ = ("_cancelled", "_clock", "_heap", "_sequence")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        timer = Timer(self, action)
        self._sequence += 1
        heapq.heappush(self._heap, (self._clock.monotonic_ms() + delay_ms, self._sequence, timer))
        return timer

    def next_deadline_ms(self) -> int | None:
        """The next deadline on the monotonic clock; None when nothing is scheduled."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def run_due(self) -> None:
        """Run what is due now. What these actions schedule runs at the next call, even without a delay: otherwise work that is
        split into slices would run in one piece."""
        now_ms = self._clock.monotonic_ms()
        sequence_last = self._sequence
        heap = self._heap
        while heap and heap[0][0] <= now_ms and heap[0][1] <= sequence_last:
            timer = heapq.heappop(heap)[2]
            action = timer.action
            if action is None:
                self._cancelled -= 1
                continue
            timer.action = None
            action()

    def note_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled * 2 > len(self._heap) >= REBUILD_TIMERS_MIN:
            # Change the list in place: a timer may call this from within ``run_due``.
            self._heap[:] = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
