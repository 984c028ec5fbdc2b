"""The clock port.

There are two clocks, because they answer different questions: the wall clock stamps records and may jump; the monotonic clock
measures how long something took and never goes back. Cores take a ``Clock`` and never ask the operating system themselves, so
that a simulated clock can jump, stop and skip.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch. May go backwards."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary point. Never goes backwards."""
        ...

    def monotonic_ns(self) -> int:
        """Like ``monotonic_ms``, for times that are too short for it: it is for measuring, not for waiting."""
        ...


class RealClock:
    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    # This is not wrapped in a function, because it is read several times for each request.
    monotonic_ns = staticmethod(time.monotonic_ns)
