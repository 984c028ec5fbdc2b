"""How late the event loop is: the figure that says whether something holds it, and the one that says what.

``late``: a timer is set for every ``INTERVAL_SECONDS``; how much later than that it runs is the lag, whoever caused it: requests,
background work, or a machine that has no time for this process. ``background``: how long each tick and each completion of the
broker took, which is where retention, expiry, swaps and the making of logs have their slices. Both are of the last minute.

A lag above ``REPORT_MS`` is an event in the operator's log, at most one every ``REPORT_SECONDS`` with the worst since the last.
"""

from collections.abc import Callable
from typing import Protocol

from tidelog.metrics.histogram import NANOSECONDS_PER_SECOND, Histogram
from tidelog.server.minute_figure import MinuteFigure

NANOSECONDS_PER_MILLISECOND = 1_000_000
INTERVAL_SECONDS = 0.1
# Clients notice it, and no slice explains it. Less than that happens on every machine with other things to do.
REPORT_MS = 100
REPORT_SECONDS = 10.0

Report = Callable[[str, dict[str, object]], None]


class Timer(Protocol):
    def cancel(self) -> None: ...


def report_nothing(event: str, facts: dict[str, object]) -> None:
    """For a server without an operator."""


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
        "late",
        "late_ns",
    )

    def __init__(
        self, clock: Callable[[], float], schedule: Callable[[float, Callable[[], None]], Timer], report: Report = report_nothing
    ) -> None:
        self._clock = clock
        self._schedule = schedule
        self._report = report
        self._timer: Timer | None = None
        self._due = 0.0
        self._reported_at: float | None = None
        # Lags above REPORT_MS since the last report, and the worst of them.
        self._unreported = 0
        self._unreported_ms = 0.0
        self.late = MinuteFigure()
        self.background = MinuteFigure()
        # The same since the start.
        self.late_ns = Histogram()
        self.background_ns = Histogram()

    def start(self) -> None:
        self._due = self._clock() + INTERVAL_SECONDS
        self._timer = self._schedule(INTERVAL_SECONDS, self._observe)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def held(self, seconds: float) -> None:
        """A slice of background work took so long."""
        self.background.note(seconds * 1000, self._clock())
        self.background_ns.observe(int(seconds * NANOSECONDS_PER_SECOND))

    def facts(self) -> dict[str, object]:
        """For whoever asks: the last minute's figures."""
        now = self._clock()
        return {
            "lag_ms_max": round(self.late.max_ms(now), 1),
            "lag_counts": self.late.counts(now),
            "background_ms_max": round(self.background.max_ms(now), 1),
            "background_counts": self.background.counts(now),
        }

    def _observe(self) -> None:
        now = self._clock()
        lag_ms = max(0.0, (now - self._due) * 1000)
        self.late.note(lag_ms, now)
        self.late_ns.observe(int(lag_ms * NANOSECONDS_PER_MILLISECOND))
        if lag_ms > REPORT_MS:
            self._unreported += 1
            self._unreported_ms = max(self._unreported_ms, lag_ms)
        if self._unreported and (self._reported_at is None or now - self._reported_at >= REPORT_SECONDS):
            facts = {"lag_ms": round(self._unreported_ms), "times": self._unreported}
            self._report("loop_lag", {**facts, "background_ms_max": round(self.background.max_ms(now), 1)})
            self._reported_at = now
            self._unreported, self._unreported_ms = 0, 0.0
        self.start()
