"""Who was slowest lately: a few keys with the worst value of each, over the last one to two windows.

A value costs one comparison with ``threshold`` unless it is among the worst. ``turn`` is called when a window is over: what was
found in it stays for one more, so that a reader between two turns never finds nothing.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Slowest(Generic[Key]):
    __slots__ = ("_before", "_keys_max", "_worst", "threshold")

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._worst: dict[Key, int] = {}
        self._before: dict[Key, int] = {}
        self.threshold = -1
        """A value that is not above it is not among the worst."""

    def note(self, key: Key, value: int) -> None:
        """Call it when ``value`` is above ``threshold``."""
        worst = self._worst
        if value <= worst.get(key, -1):
            return
        worst[key] = value
        if len(worst) > self._keys_max:
            del worst[min(worst, key=worst.__getitem__)]
        if len(worst) == self._keys_max:
            self.threshold = min(worst.values())

    def turn(self) -> None:
        """The window is over."""
        self._before, self._worst = self._worst, {}
        self.threshold = -1

    def found(self) -> list[tuple[Key, int]]:
        """Worst first."""
        both = dict(self._before)
        for key, value in self._worst.items():
            both[key] = max(value, both.get(key, -1))
        return heapq.nlargest(self._keys_max, both.items(), key=lambda item: item[1])
