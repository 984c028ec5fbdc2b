"""Several answers that become one response, in the order of the questions, when the last one has come."""

from collections.abc import Callable, Sequence
from typing import Any


class Gather:
    __slots__ = ("_missing", "_on_all", "_results")

    def __init__(self, count: int, on_all: Callable[[Sequence[Any]], None]) -> None:
        """Without questions the answer is at once."""
        self._results: list[Any] = [None] * count
        self._missing = count
        self._on_all = on_all
        if not count:
            on_all(self._results)

    def put(self, index: int, result: Any) -> None:
        """Once for each index."""
        self._results[index] = result
        self._missing -= 1
        if not self._missing:
            self._on_all(self._results)
