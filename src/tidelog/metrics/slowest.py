"""Finds the slowest keys: a few keys with the worst value of each, over the last one to two windows.

A value costs one comparison with ``threshold`` unless it is among the worst. ``turn`` is called at the end of a window. The keys
found in a window are kept for one more, so that a reader right after a turn does not find an empty list.
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
        """A value that is not above this is not among the worst."""

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
        """End the window."""
        self._before, self._worst = self._worst, {}
        self.threshold = -1

    def found(self) -> list[tuple[Key, int]]:
        """The keys found, worst first."""
        both = dict(self._before)
        for key, value in self._worst.items():
            both[key] = max(value, both.get(key, -1))
        return heapq.nlargest(self._keys_max, both.items(), key=lambda item: item[1])
