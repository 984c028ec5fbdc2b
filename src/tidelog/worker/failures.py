"""What becomes of a message whose handler failed: another try at some level, or the dead letters.

A try that may help again is a retry; after ``retries`` of them, or at once for poison (what cannot be decoded, whatever the
application says is not retriable, ``Reject``), the message is a dead letter. In-place tries belong to one round: a round is the
first handling or the handling at one backoff level. Pure: time and randomness are handed in.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

from tidelog.client.errors import SerializationError
from tidelog.worker.backoff import Backoff

POISON: tuple[type[BaseException], ...] = (SerializationError, UnicodeDecodeError, json.JSONDecodeError)
"""What decoding fails with: the same bytes fail in the same way for ever."""

Retriable = tuple[type[BaseException], ...] | Callable[[BaseException], bool]


class Reject(Exception):
    """Raise it in a handler to have the message dead-lettered at once, whatever ``retriable`` says."""


class InProgress(Exception):
    """Another worker is at this message, or was when it died. Not an attempt: it is looked at again later."""


class Retry(NamedTuple):
    level: int
    due_ms: int


class Dead(NamedTuple):
    pass


Decision = Retry | Dead


class FailurePolicy:
    __slots__ = ("_backoff", "_in_place_retries", "_retriable", "_retries", "levels")

    def __init__(
        self, *, retries: int, in_place_retries: int, backoff: Backoff, retriable: Retriable | None, levels: int
    ) -> None:
        """``levels``: how many retry topics there are, at least ``retries``."""
        self._retries = retries
        self._in_place_retries = in_place_retries
        self._backoff = backoff
        self._retriable = retriable
        self.levels = levels

    def is_retriable(self, error: BaseException) -> bool:
        if isinstance(error, Reject):
            return False
        if isinstance(error, InProgress):
            return True
        retriable = self._retriable
        if retriable is None:
            return not isinstance(error, POISON)
        return isinstance(error, retriable) if isinstance(retriable, tuple) else bool(retriable(error))

    def decide(self, attempts: int, is_retriable: bool, now_ms: int, fraction: float) -> Decision:
        """``attempts``: how often the handler was tried, this time included. ``fraction``: random, 0 <= fraction < 1."""
        rounds = -(-attempts // (1 + self._in_place_retries))
        if not is_retriable or rounds > self._retries:
            return Dead()
        return self._at(rounds - 1, now_ms, fraction)

    def look_again(self, attempts: int, now_ms: int, fraction: float) -> Retry:
        """For what is not an attempt: the level that it is at, once more."""
        rounds = -(-attempts // (1 + self._in_place_retries))
        return self._at(max(rounds - 1, 0), now_ms, fraction)

    def _at(self, level: int, now_ms: int, fraction: float) -> Retry:
        level = min(level, self.levels - 1)
        return Retry(level, now_ms + round(self._backoff.delay(level, fraction) * 1000))
