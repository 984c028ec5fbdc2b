"""A limit of letters per second: each batch waits until those before it had their time. Pure; the clock is handed in."""

import math

from tidelog.client.errors import InvalidArgument


class Pacer:
    """``rate`` None is no limit."""

    __slots__ = ("_free_at", "_rate")

    def __init__(self, rate: float | None) -> None:
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise InvalidArgument(f"a rate is letters per second, more than 0: not {rate}")
        self._rate = rate
        self._free_at: float | None = None

    def batch_letters(self, letters_max: int) -> int:
        """How many letters may go in one transaction: those of a second, so that the stream is even."""
        return letters_max if self._rate is None else max(1, min(letters_max, int(self._rate)))

    def delay(self, letters: int, now: float) -> float:
        """How long to wait from ``now`` on before so many are sent. They are counted as sent then."""
        if self._rate is None:
            return 0.0
        # Time that nobody used is not saved up: a pause must not end in a burst.
        starts_at = now if self._free_at is None else max(now, self._free_at)
        self._free_at = starts_at + letters / self._rate
        return starts_at - now
