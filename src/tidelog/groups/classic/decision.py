"""One decision on a classic group: the records that it writes, and the answers that it gives.

An answer is taken from its member when it is decided, and given when the records, and all before them, are committed. So each is
given exactly once: by its decision, or, as long as no decision has taken it, when the shard is dropped.
"""

from collections.abc import Callable
from typing import Any

from tidelog.coordinator.errors import DecisionTooLarge
from tidelog.coordinator.machine import CoordinatorResult, OnDone
from tidelog.groups.classic.member import ClassicMember
from tidelog.ports.clock import Clock
from tidelog.wire.errors import ErrorCode


class Decision:
    __slots__ = ("_answers", "_clock", "on_refused", "records")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.records: list[Any] = []
        self.on_refused: Callable[[DecisionTooLarge], None] | None = None
        """Called when the records do not fit into a batch: nothing was written, and nothing replayed."""
        self._answers: list[tuple[OnDone, Any, ClassicMember | None]] = []

    def answer(self, answer: OnDone | None, response: Any, member: ClassicMember | None = None) -> None:
        """``member`` waits until it is told, and its session goes on from then. No answer: nobody asked."""
        if answer is not None:
            self._answers.append((answer, response, member))
            if member is not None:
                member.answers_in_flight += 1

    def result(self, response: Any = None) -> CoordinatorResult:
        """``response`` is for the one who asked, unless it waits or is among the answers."""
        return CoordinatorResult(self.records, response, self.deliver if self._answers or self.on_refused else None)

    def deliver(self, error: Exception | None) -> None:
        answers, self._answers = self._answers, []
        is_refused = isinstance(error, DecisionTooLarge)
        for answer, response, member in answers:
            if member is not None:
                member.answers_in_flight -= 1
                member.deadline_ms = self._clock.monotonic_ms() + member.session_timeout_ms
            if is_refused:
                # As Kafka: what is too large for its log is an error of its own, not the client's.
                answer(type(response)(ErrorCode.UNKNOWN_SERVER_ERROR), None)
            else:
                answer(None if error is not None else response, error)
        if isinstance(error, DecisionTooLarge) and self.on_refused is not None:
            self.on_refused(error)
