"""Tokens that come at a steady rate, as Kafka meters changes of metadata.

A bucket is full at the start: a burst of a whole window is free. Who takes more than there is goes into debt, and waits until it
is paid. A full bucket is as good as a new one, so forgetting it loses nothing.
"""

_SECOND_MS = 1_000


class TokenBucket:
    __slots__ = ("_filled_ms", "_per_second", "_tokens", "_window_ms")

    def __init__(self, window_ms: int) -> None:
        """``window_ms``: of how long a bucket holds the tokens."""
        self._window_ms = window_ms
        # None: full, whatever the rate.
        self._tokens: float | None = None
        self._filled_ms = 0
        self._per_second = 0.0

    def record(self, tokens: float, per_second: float, now_ms: int) -> None:
        self._tokens = self._left(per_second, now_ms) - tokens
        self._filled_ms = now_ms
        self._per_second = per_second

    def throttle_ms(self, per_second: float, now_ms: int) -> float:
        """Until the debt is paid; 0 when there is none."""
        left = self._left(per_second, now_ms)
        return -left / per_second * _SECOND_MS if left < 0 else 0.0

    def is_over(self, now_ms: int) -> bool:
        """It is full."""
        return self._left(self._per_second, now_ms) >= self._burst(self._per_second)

    def _left(self, per_second: float, now_ms: int) -> float:
        burst = self._burst(per_second)
        if self._tokens is None:
            return burst
        return min(burst, self._tokens + (now_ms - self._filled_ms) * per_second / _SECOND_MS)

    def _burst(self, per_second: float) -> float:
        return per_second * self._window_ms / _SECOND_MS
