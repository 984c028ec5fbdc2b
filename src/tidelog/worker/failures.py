"""Decides what becomes of a message whose handler failed: another attempt at some backoff level, or the dead letters. Pure.

A failure that may pass is retried. After ``retries`` retries the message is a dead letter, and at once if it is poison: it cannot
be decoded, the application says that it is not retriable, or the handler raised ``Reject``. A handler that raises ``Retry``
chooses the delay itself. In-place tries belong to one round; a
round is the first handling, or the handling at one backoff level.

Level n waits ``min(cap, base * 2**n) + random(0, base)`` seconds. The random part spreads messages that failed together. It is
never longer than ``base``, so that within one level (one retry topic) nobody waits much longer for a neighbour than for itself.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

from tidelog.client.errors import InvalidArgument, SerializationError
from tidelog.deadletters.topics import LEVELS_MAX

# A week: a message that waits longer is not being retried.
CAP_SECONDS_MAX = 7 * 24 * 3600.0

POISON: tuple[type[BaseException], ...] = (SerializationError, UnicodeDecodeError, json.JSONDecodeError)
"""The exceptions of decoding: the same bytes fail in the same way forever."""

Retriable = tuple[type[BaseException], ...] | Callable[[BaseException], bool]


class Backoff:
    """``Backoff(base=1.0, cap=60.0)``: seconds. ``delay(level, fraction)`` is the wait before the retry at ``level``."""

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
        """The longest time that all waits of a message take together, in seconds."""
        return sum(self.delay(level, 1.0) for level in range(retries))


class Reject(Exception):
    """Raise it in a handler to dead-letter the message at once, whatever ``retriable`` says."""


class Retry(Exception):
    """Raise it in a handler to have the message back later: ``raise Retry(delay=30)``. It counts as an attempt, and after the
    last of them the message is a dead letter. Without a delay the backoff decides when.

    The message waits in the retry topic whose own wait is the nearest that is not shorter. It comes back no earlier than asked,
    and later by at most the wait of that topic; if no wait is that long, what waits behind it in the last one waits with it.
    """

    def __init__(self, reason: str = "the handler asked for a retry", *, delay: float | None = None) -> None:
        if delay is not None and not 0 <= delay <= CAP_SECONDS_MAX:
            raise InvalidArgument(f"a retry has a delay of 0 to {CAP_SECONDS_MAX:.0f} seconds: not {delay}")
        super().__init__(reason)
        self.delay = delay


class InProgress(Exception):
    """Another worker is handling this message, or was when it died. This is not an attempt: the message is looked at again
    later."""


class ScheduledRetry(NamedTuple):
    """The backoff level at which a message waits, and the time when it is due."""

    level: int
    due_ms: int


class FailurePolicy:
    __slots__ = ("_backoff", "_in_place_retries", "_levels", "_retriable", "_retries")

    def __init__(
        self, *, retries: int, in_place_retries: int, backoff: Backoff, retriable: Retriable | None, levels: int
    ) -> None:
        """``levels`` is the number of retry topics, at least ``retries``."""
        self._retries = retries
        self._in_place_retries = in_place_retries
        self._backoff = backoff
        self._retriable = retriable
        self._levels = levels

    def is_retriable(self, error: BaseException) -> bool:
        if isinstance(error, Reject):
            return False
        if isinstance(error, InProgress | Retry):
            return True
        retriable = self._retriable
        if retriable is None:
            return not isinstance(error, POISON)
        return isinstance(error, retriable) if isinstance(retriable, tuple) else bool(retriable(error))

    def decide(self, attempts: int, is_retriable: bool, now_ms: int, fraction: float) -> ScheduledRetry | None:
        """Return None for a dead letter. ``attempts`` counts the handler's tries, including this one; ``fraction`` is random, 0
        <= fraction < 1."""
        rounds = self._rounds(attempts)
        if not is_retriable or rounds > self._retries:
            return None
        return self._at(rounds - 1, now_ms, fraction)

    def decide_delay(self, attempts: int, delay: float, now_ms: int) -> ScheduledRetry | None:
        """``decide`` for a handler that chose the delay itself, in seconds."""
        if self._rounds(attempts) > self._retries:
            return None
        level = next((level for level in range(self._levels) if self._backoff.delay(level, 0) >= delay), self._levels - 1)
        return ScheduledRetry(level, now_ms + round(delay * 1000))

    def look_again(self, attempts: int, now_ms: int, fraction: float) -> ScheduledRetry:
        """Return the current level once more, for something that is not an attempt."""
        return self._at(max(self._rounds(attempts) - 1, 0), now_ms, fraction)

    def _rounds(self, attempts: int) -> int:
        return -(-attempts // (1 + self._in_place_retries))

    def _at(self, level: int, now_ms: int, fraction: float) -> ScheduledRetry:
        level = min(level, self._levels - 1)
        return ScheduledRetry(level, now_ms + round(self._backoff.delay(level, fraction) * 1000))
