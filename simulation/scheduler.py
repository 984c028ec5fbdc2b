"""The one event queue that drives a simulated run.

It keeps events ordered by (time, sequence number): two events at the same microsecond run in the order in which they were
scheduled, so that the seed alone determines a run. Time stands still while an event runs and jumps to the next event's time
between events; nothing here waits.

Every event that runs, and every line that a simulated port records, goes into the trace: the last lines as text, to read after a
failure, and a running hash over all of them, to compare two runs.
"""

import hashlib
import heapq
from collections import deque
from collections.abc import Callable

Action = Callable[[], None]

# The number of lines kept as text. The hash covers all lines; the text is for a person who reads the end of a failed run.
TRACE_LINES_MAX = 10_000
# A run that takes more events than this to reach its condition is taken for one that never will.
EVENTS_MAX = 1_000_000


class NeverReachedError(Exception):
    """The condition of ``run_until`` did not come true: no event was left, or too many went by."""


class Event:
    """A scheduled action; ``cancel`` makes the queue skip it."""

    __slots__ = ("action", "label")

    def __init__(self, label: str, action: Action) -> None:
        self.label = label
        self.action: Action | None = action

    def cancel(self) -> None:
        self.action = None


class Scheduler:
    __slots__ = ("_hash", "_heap", "_sequence", "now_us", "trace")

    def __init__(self) -> None:
        self.now_us = 0
        self.trace: deque[str] = deque(maxlen=TRACE_LINES_MAX)
        self._heap: list[tuple[int, int, Event]] = []
        self._sequence = 0
        self._hash = hashlib.sha256()

    def schedule(self, delay_us: int, label: str, action: Action) -> Event:
        """Run ``action`` ``delay_us`` from now; ``label`` is its line in the trace."""
        if delay_us < 0:
            raise ValueError(f"an event cannot be scheduled {-delay_us} us in the past")
        event = Event(label, action)
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._sequence, event))
        return event

    def record(self, line: str) -> None:
        """Add a line to the trace."""
        stamped = f"{self.now_us} {line}"
        self.trace.append(stamped)
        self._hash.update(stamped.encode())
        self._hash.update(b"\n")

    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def step(self) -> bool:
        """Run the next event. Returns False when no event is left."""
        while self._heap:
            time_us, _, event = heapq.heappop(self._heap)
            action = event.action
            if action is None:
                continue
            self.now_us = time_us
            self.record(event.label)
            event.action = None
            action()
            return True
        return False

    def run_until(self, condition: Callable[[], bool], events_max: int = EVENTS_MAX) -> None:
        """Run events until ``condition`` holds, which is checked before each event."""
        for _ in range(events_max):
            if condition():
                return
            if not self.step():
                raise NeverReachedError("no event is left and the condition does not hold")
        if not condition():
            raise NeverReachedError(f"the condition does not hold after {events_max} events")

    def run_for(self, duration_us: int) -> None:
        """Run all events of the next ``duration_us`` and let that time pass."""
        end_us = self.now_us + duration_us
        while (next_us := self._next_us()) is not None and next_us <= end_us:
            self.step()
        self.now_us = max(self.now_us, end_us)

    def run_all(self, events_max: int = EVENTS_MAX) -> None:
        """Run until no event is left."""
        for _ in range(events_max):
            if not self.step():
                return
        raise NeverReachedError(f"events are left after {events_max}")

    def _next_us(self) -> int | None:
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
