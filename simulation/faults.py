"""Faults that a simulated disk can be told to show.

A rule names an operation (read, write, sync, names), the paths it strikes and the error it gives, once, a number of times, or
until it is lifted. ``names`` stands for create, mkdir, rename, remove and rmdir; ``sync`` for files, directories and the file
system alike. A misdirected write strikes the next write to one path and gives no error at all.
"""

import errno
import os
from collections.abc import Callable
from typing import Literal

FaultyOperation = Literal["read", "write", "sync", "names"]


class FaultRule:
    __slots__ = ("error_number", "matches", "operation", "remaining")

    def __init__(self, operation: FaultyOperation, matches: Callable[[str], bool], error_number: int, times: int | None) -> None:
        self.operation = operation
        self.matches = matches
        self.error_number = error_number
        self.remaining = times


class Faults:
    __slots__ = ("misdirected", "on_full", "rules")

    def __init__(self) -> None:
        self.rules: list[FaultRule] = []
        self.misdirected: dict[str, int] = {}
        # Called once, by the next write that finds no room.
        self.on_full: Callable[[], None] | None = None

    def fail(
        self,
        operation: FaultyOperation,
        matches: Callable[[str], bool],
        error_number: int = errno.EIO,
        times: int | None = None,
    ) -> FaultRule:
        """Make ``operation`` fail on matching paths, the next ``times`` times or until ``lift``."""
        rule = FaultRule(operation, matches, error_number, times)
        self.rules.append(rule)
        return rule

    def lift(self, rule: FaultRule) -> None:
        """End a rule; no error if it has run out already."""
        if rule in self.rules:
            self.rules.remove(rule)

    def misdirect_next_write(self, path: str, position: int) -> None:
        """The next write to a file opened as ``path`` lands at ``position`` instead."""
        self.misdirected[path] = position

    def clear(self) -> None:
        self.rules.clear()
        self.misdirected.clear()
        self.on_full = None

    def found_full(self) -> None:
        on_full, self.on_full = self.on_full, None
        if on_full is not None:
            on_full()

    def find(self, operation: FaultyOperation, path: str) -> OSError | None:
        """The error that this operation is to give, which uses up one of its rule's times."""
        for rule in self.rules:
            if rule.operation == operation and rule.matches(path):
                if rule.remaining is not None:
                    rule.remaining -= 1
                    if rule.remaining <= 0:
                        self.rules.remove(rule)
                return OSError(rule.error_number, os.strerror(rule.error_number), path)
        return None

    def check(self, operation: FaultyOperation, path: str) -> None:
        error = self.find(operation, path)
        if error is not None:
            raise error
