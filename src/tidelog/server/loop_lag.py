"""Measures how late the event loop is, and how much of that the broker's background work and the cycle collector cause.

``lag``: a timer is set for every ``INTERVAL_SECONDS``; the lag is how much later it runs, whatever the cause: requests,
background work, or a machine that has no time for this process. ``background``: how long each tick and each completion of the
broker took, which is where retention, expiry, swaps and the creation of logs have their slices. ``collections``: how long each
run of the cycle collector took, in whichever thread, since none of them can do anything meanwhile. All cover the last minute.

A lag above ``REPORT_MS`` is an event in the operator's log. At most one is written every ``REPORT_SECONDS``, with the worst lag
since the last, and the longest background work and collection of the last minute: if both are much shorter, requests, an import
or a machine that is busy with other work held the loop.
"""

import gc
from bisect import bisect_left
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol

from tidelog.metrics.histogram import NANOSECONDS_PER_SECOND, Histogram
from tidelog.server.event_log import ReportEvent, ignore_event

NANOSECONDS_PER_MILLISECOND = 1_000_000
INTERVAL_SECONDS = 0.1
# Clients notice such a lag, and no slice explains it. Smaller ones happen on every machine that has other things to do.
REPORT_MS = 100
REPORT_SECONDS = 10.0

SLOT_COUNT = 6
SLOT_SECONDS = 10.0
BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class RecentHistogram:
    """Values in milliseconds over the last minute: their maximum, and how many fell into each bucket.

    They are kept in ``SLOT_COUNT`` slots of ten seconds each, and the oldest slot is reused. So the histogram remembers between
    fifty seconds and a minute, at a cost that does not depend on the number of values."""

    __slots__ = ("_counts", "_maxima", "_number", "total")

    def __init__(self) -> None:
        self._counts = [[0] * (len(BUCKETS_MS) + 1) for _ in range(SLOT_COUNT)]
        self._maxima = [0.0] * SLOT_COUNT
        # The number of the current slot: the time divided by SLOT_SECONDS.
        self._number = 0
        self.total = 0
        """Values observed since the start."""

    def observe(self, value_ms: float, now_seconds: float) -> None:
        slot = self._current_slot(now_seconds)
        self._counts[slot][bisect_left(BUCKETS_MS, value_ms)] += 1
        if value_ms > self._maxima[slot]:
            self._maxima[slot] = value_ms
        self.total += 1

    def max_ms(self, now_seconds: float) -> float:
        self._current_slot(now_seconds)
        return max(self._maxima)

    def counts(self, now_seconds: float) -> list[int]:
        """``counts[i]`` values were at most ``BUCKETS_MS[i]`` and above the bucket before; the last count is of those above
        all."""
        self._current_slot(now_seconds)
        return [sum(counts) for counts in zip(*self._counts, strict=True)]

    def _current_slot(self, now_seconds: float) -> int:
        """Empty the slots whose time has passed and return the one for now."""
        number = int(now_seconds / SLOT_SECONDS)
        for passed in range(max(self._number + 1, number - SLOT_COUNT + 1), number + 1):
            slot = passed % SLOT_COUNT
            self._counts[slot] = [0] * (len(BUCKETS_MS) + 1)
            self._maxima[slot] = 0.0
        self._number = max(self._number, number)
        return self._number % SLOT_COUNT


class CollectionTimes:
    """How long each run of the cycle collector took over the last minute.

    The collector's list of callbacks refers to this, so this refers to no loop: one that ended without a stop must be freed."""

    __slots__ = ("_began_ns", "_recent")

    def __init__(self) -> None:
        self._began_ns = 0
        self._recent = RecentHistogram()

    def start(self) -> None:
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        gc.callbacks.remove(self._on_collection)

    @property
    def total(self) -> int:
        return self._recent.total

    def max_ms(self) -> float:
        return self._recent.max_ms(perf_counter_ns() / NANOSECONDS_PER_SECOND)

    def counts(self) -> list[int]:
        return self._recent.counts(perf_counter_ns() / NANOSECONDS_PER_SECOND)

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        # Only one collection runs at a time.
        now_ns = perf_counter_ns()
        if phase == "start":
            self._began_ns = now_ns
        elif self._began_ns:
            self._recent.observe((now_ns - self._began_ns) / NANOSECONDS_PER_MILLISECOND, now_ns / NANOSECONDS_PER_SECOND)


class LoopLag:
    """``clock`` and ``schedule(seconds, callback)`` are the loop's ``time`` and ``call_later``."""

    __slots__ = (
        "_clock",
        "_due",
        "_report",
        "_reported_at",
        "_schedule",
        "_timer",
        "_unreported",
        "_unreported_ms",
        "background",
        "background_ns",
        "collections",
        "lag",
        "lag_ns",
    )

    def __init__(
        self,
        clock: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], TimerHandle],
        report: ReportEvent = ignore_event,
    ) -> None:
        self._clock = clock
        self._schedule = schedule
        self._report = report
        self._timer: TimerHandle | None = None
        self._due = 0.0
        self._reported_at: float | None = None
        # Number of lags above REPORT_MS since the last report, and the worst of them.
        self._unreported = 0
        self._unreported_ms = 0.0
        self.lag = RecentHistogram()
        self.background = RecentHistogram()
        self.collections = CollectionTimes()
        # The same figures since the start.
        self.lag_ns = Histogram()
        self.background_ns = Histogram()

    def start(self) -> None:
        self.collections.start()
        self._wait()

    def _wait(self) -> None:
        self._due = self._clock() + INTERVAL_SECONDS
        self._timer = self._schedule(INTERVAL_SECONDS, self._observe)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.collections.stop()

    def observe_background(self, seconds: float) -> None:
        """Record that a slice of background work took this long."""
        self.background.observe(seconds * 1000, self._clock())
        self.background_ns.observe(int(seconds * NANOSECONDS_PER_SECOND))

    def facts(self) -> dict[str, object]:
        """The figures of the last minute."""
        now = self._clock()
        return {
            "lag_ms_max": round(self.lag.max_ms(now), 1),
            "lag_counts": self.lag.counts(now),
            "background_ms_max": round(self.background.max_ms(now), 1),
            "background_counts": self.background.counts(now),
            "collection_ms_max": round(self.collections.max_ms(), 1),
            "collection_counts": self.collections.counts(),
        }

    def _observe(self) -> None:
        now = self._clock()
        lag_ms = max(0.0, (now - self._due) * 1000)
        self.lag.observe(lag_ms, now)
        self.lag_ns.observe(int(lag_ms * NANOSECONDS_PER_MILLISECOND))
        if lag_ms > REPORT_MS:
            self._unreported += 1
            self._unreported_ms = max(self._unreported_ms, lag_ms)
        if self._unreported and (self._reported_at is None or now - self._reported_at >= REPORT_SECONDS):
            facts: dict[str, object] = {"lag_ms": round(self._unreported_ms), "times": self._unreported}
            facts["background_ms_max"] = round(self.background.max_ms(now), 1)
            facts["collection_ms_max"] = round(self.collections.max_ms(), 1)
            self._report("loop_lag", facts)
            self._reported_at = now
            self._unreported, self._unreported_ms = 0, 0.0
        self._wait()
