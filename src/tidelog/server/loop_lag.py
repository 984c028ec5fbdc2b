"""How late the event loop is: the one figure that says whether something holds it.

A timer is set for every ``INTERVAL_SECONDS``; how much later than that it runs is the lag. Kept as counts in buckets that
double, from 1 ms, and as the maximum.
"""

import asyncio

INTERVAL_SECONDS = 0.1
BUCKETS_MS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class LoopLag:
    """``counts[i]`` observations were at most ``BUCKETS_MS[i]`` late, the last one more than all of them."""

    __slots__ = ("_due", "_loop", "_timer", "counts", "last_ms", "max_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.counts = [0] * (len(BUCKETS_MS) + 1)
        self.last_ms = 0.0
        self.max_ms = 0.0

    def start(self) -> None:
        self._due = self._loop.time() + INTERVAL_SECONDS
        self._timer = self._loop.call_later(INTERVAL_SECONDS, self._observe)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _observe(self) -> None:
        lag_ms = max(0.0, (self._loop.time() - self._due) * 1000)
        self.last_ms = lag_ms
        self.max_ms = max(self.max_ms, lag_ms)
        index = 0
        while index < len(BUCKETS_MS) and lag_ms > BUCKETS_MS[index]:
            index += 1
        self.counts[index] += 1
        self.start()
