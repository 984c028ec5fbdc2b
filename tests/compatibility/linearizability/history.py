"""A history of concurrent operations: what was asked, when, and what was answered, as ``judge.go`` reads it."""

import itertools
import threading
import time
from typing import Any

OK = "ok"
NOTHING_TO_DO = "nothing to do"
UNKNOWN = "unknown"


class Operation:
    """One call of one client. It counts once its outcome was noted: what was certainly not done is simply left out."""

    def __init__(self, history: "History", key: str, kind: str) -> None:
        self._history = history
        self._key = key
        self._kind = kind
        self._begun = time.monotonic_ns()

    def answered(self, answer: str = OK, value: int = 0) -> None:
        self._note(answer, value, time.monotonic_ns())

    def lost(self, value: int = 0) -> None:
        """No answer came, or an error that does not say: it may have been done, or may be done yet."""
        self._note(UNKNOWN, value, None)

    def _note(self, answer: str, value: int, ended: int | None) -> None:
        self._history.note(
            {
                "key": self._key,
                "kind": self._kind,
                "value": value,
                "answer": answer,
                "begun": self._begun,
                "ended": ended,
            }
        )


class History:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operations: list[dict[str, Any]] = []
        self._clients = itertools.count(1)
        self.problems: list[str] = []

    def begin(self, key: str, kind: str) -> Operation:
        return Operation(self, key, kind)

    def note(self, operation: dict[str, Any]) -> None:
        with self._lock:
            # To the checker every operation has a client of its own: the one that made it may go on before it ends.
            self._operations.append({**operation, "client": next(self._clients)})

    def problem(self, text: str) -> None:
        with self._lock:
            self.problems.append(text)

    def operations(self) -> list[dict[str, Any]]:
        """All but the writes without an answer whose value nobody read. They may have been done after everything else, so they
        cannot change a verdict, and each of them doubles the orders that a checker has to try."""
        with self._lock:
            operations = list(self._operations)
        read = {(each["key"], each["value"]) for each in operations if each["kind"] == "read"}
        return [
            each
            for each in operations
            if (each["kind"], each["answer"]) != ("write", UNKNOWN) or (each["key"], each["value"]) in read
        ]

    def count(self, kind: str, answer: str = OK) -> int:
        return sum(each["kind"] == kind and each["answer"] == answer for each in self.operations())
