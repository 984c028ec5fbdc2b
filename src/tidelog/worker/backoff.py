"""How long a message that failed waits before its next try: exponential, with jitter and a cap.

Level n waits ``min(cap, base * 2**n) + random(0, base)`` seconds. The random part spreads what failed together; it is never
longer than ``base``, so that within one level (one retry topic) nobody waits much longer for a neighbour than for itself.
"""

from tidelog.client.errors import InvalidArgument
from tidelog.deadletters.topics import LEVELS_MAX

# A week: what waits longer is no retry.
CAP_SECONDS_MAX = 7 * 24 * 3600.0


class Backoff:
    """``Backoff(base=1.0, cap=60.0)``: seconds. ``delay(level, fraction)`` is the wait before the try after failure ``level``."""

    __slots__ = ("base", "cap")

    def __init__(self, base: float = 1.0, cap: float = 60.0) -> None:
        if not 0 < base <= cap <= CAP_SECONDS_MAX:
            raise InvalidArgument(f"a backoff has 0 < base <= cap <= {CAP_SECONDS_MAX:.0f} seconds: not base={base}, cap={cap}")
        self.base = base
        self.cap = cap

    def __repr__(self) -> str:
        return f"Backoff(base={self.base}, cap={self.cap})"

    def delay(self, level: int, fraction: float) -> float:
        """Seconds. ``fraction`` is random, 0 <= fraction < 1."""
        return min(self.cap, self.base * 2.0 ** min(level, LEVELS_MAX)) + fraction * self.base

    def window(self, retries: int) -> float:
        """The longest that all the waits of a message take together, in seconds."""
        return sum(self.delay(level, 1.0) for level in range(retries))
