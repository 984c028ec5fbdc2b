"""The circuit breaker: when failures say that a dependency is down, wait and probe instead of failing everything.

    closed --(failures >= failures and share of them >= share, within window)--> open
    open --(pause is over)--> probing: one message is tried
    probing --(it is handled)--> closed      probing --(it fails)--> open, twice as long, up to pause_cap

While it is open no message is begun, and a message that fails in the meantime goes back to where it was, without using up an
attempt. A probe is an ordinary attempt, and its failure an ordinary failure, so that a message that always fails cannot keep the
breaker open forever.

Pure: the time is passed in. Counts are kept in a few buckets of the window, not per message.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from tidelog.client.errors import InvalidArgument

BUCKETS = 10
ExceptionTest = Callable[[BaseException], bool]


class CircuitBreaker(NamedTuple):
    """When to open and for how long. Times are in seconds.

    ``failures`` within ``window`` open it, if they are at least ``share`` of all attempts. It stays open for ``pause``, and twice
    as long after each probe that fails, up to ``pause_cap``. ``counts`` selects the failures that indicate a broken dependency:
    exception classes or a function; by default all that are retriable. Only first attempts open it: a message that failed before
    says more about itself than about the dependency.
    """

    failures: int = 20
    share: float = 0.5
    window: float = 10.0
    pause: float = 5.0
    pause_cap: float = 60.0
    counts: tuple[type[BaseException], ...] | ExceptionTest | None = None

    def check(self) -> None:
        """Raise InvalidArgument if a value is out of range."""
        if self.failures < 1 or not 0 < self.share <= 1:
            raise InvalidArgument(f"a circuit breaker has failures >= 1 and 0 < share <= 1: not {self.failures} and {self.share}")
        if not self.window > 0 or not 0 < self.pause <= self.pause_cap:
            raise InvalidArgument(
                f"a circuit breaker has window > 0 and 0 < pause <= pause_cap: not {self.window}, {self.pause}, {self.pause_cap}"
            )


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Breaker:
    """The circuit breaker of one handler. The times that are passed in never go back."""

    __slots__ = ("_buckets", "_failed", "_options", "_pause_ms", "_retry_at_ms", "_tried", "opened_count", "state")

    def __init__(self, options: CircuitBreaker) -> None:
        self._options = options
        # (number of the bucket, tried, failed), oldest first.
        self._buckets: deque[tuple[int, int, int]] = deque()
        self._tried = 0
        self._failed = 0
        self._pause_ms = options.pause * 1000
        self._retry_at_ms = 0.0
        self.state = BreakerState.CLOSED
        self.opened_count = 0

    def counts(self, error: BaseException, is_retriable: bool) -> bool:
        """Whether this failure indicates a broken dependency."""
        counts = self._options.counts
        if counts is None:
            return is_retriable
        return isinstance(error, counts) if isinstance(counts, tuple) else bool(counts(error))

    def succeeded(self, count: int, now_ms: int) -> None:
        if self.state is BreakerState.PROBING:
            self._close()
        elif self.state is BreakerState.CLOSED:
            self._record(count, 0, now_ms)

    def failed(self, now_ms: int) -> bool:
        """Record one failure that counts. Returns True if the breaker is open, so that the message goes back to where it was."""
        if self.state is BreakerState.OPEN:
            return True
        if self.state is BreakerState.PROBING:
            self._pause_ms = min(self._pause_ms * 2, self._options.pause_cap * 1000)
            self._open(now_ms)
            return False
        self._record(1, 1, now_ms)
        if self._failed < self._options.failures or self._failed < self._options.share * self._tried:
            return False
        self._open(now_ms)
        return True

    def failed_otherwise(self, now_ms: int) -> None:
        """Record a failure that does not count: the attempt reached the handler's own judgement, so the dependency works."""
        self.succeeded(1, now_ms)

    def tick(self, now_ms: int) -> bool:
        """Returns True when it is time to probe."""
        if self.state is not BreakerState.OPEN or now_ms < self._retry_at_ms:
            return False
        self.state = BreakerState.PROBING
        return True

    def _open(self, now_ms: int) -> None:
        self.state = BreakerState.OPEN
        self.opened_count += 1
        self._retry_at_ms = now_ms + self._pause_ms

    def _close(self) -> None:
        self.state = BreakerState.CLOSED
        self._pause_ms = self._options.pause * 1000
        self._buckets.clear()
        self._tried = self._failed = 0

    def _record(self, tried: int, failed: int, now_ms: int) -> None:
        number = int(now_ms * BUCKETS // (self._options.window * 1000))
        buckets = self._buckets
        while buckets and buckets[0][0] <= number - BUCKETS:
            _, old_tried, old_failed = buckets.popleft()
            self._tried -= old_tried
            self._failed -= old_failed
        if buckets and buckets[-1][0] == number:
            _, before_tried, before_failed = buckets.pop()
            buckets.append((number, before_tried + tried, before_failed + failed))
        else:
            buckets.append((number, tried, failed))
        self._tried += tried
        self._failed += failed
