"""How fast an offset moves, over a sliding window, from no more than two remembered points.

A point is a time and the offset seen then. ``earlier`` and ``later`` lie half a window apart; the rate is taken from ``earlier``
to the newest observation, so it covers between a half and a whole window. There is one of these for every committed offset and
every partition, hence two points and not a list of them.

An offset that goes back (a reset, a truncation) or a clock that stands still says nothing about a rate: the window begins anew.
"""

WINDOW_MS = 60_000
# Shorter than this, one commit more or less would be all of the rate.
MEASURED_MS_MIN = 1_000


class RateWindow:
    __slots__ = ("_earlier_ms", "_earlier_offset", "_later_ms", "_later_offset", "newest_ms", "newest_offset", "window_ms")

    def __init__(self, now_ms: int, offset: int, window_ms: int = WINDOW_MS) -> None:
        self.window_ms = window_ms
        self._begin(now_ms, offset)

    def _begin(self, now_ms: int, offset: int) -> None:
        self._earlier_ms = self._later_ms = self.newest_ms = now_ms
        self._earlier_offset = self._later_offset = self.newest_offset = offset

    def observe(self, now_ms: int, offset: int) -> None:
        """``now_ms`` is of a clock that does not go back."""
        if offset < self.newest_offset or now_ms - self.newest_ms > self.window_ms:
            self._begin(now_ms, offset)
            return
        self.newest_ms, self.newest_offset = now_ms, offset
        if now_ms - self._later_ms >= self.window_ms // 2:
            self._earlier_ms, self._earlier_offset = self._later_ms, self._later_offset
            self._later_ms, self._later_offset = now_ms, offset

    @property
    def per_second(self) -> float | None:
        """None until it was watched for long enough."""
        measured_ms = self.newest_ms - self._earlier_ms
        if measured_ms < MEASURED_MS_MIN:
            return None
        return (self.newest_offset - self._earlier_offset) * 1000 / measured_ms
