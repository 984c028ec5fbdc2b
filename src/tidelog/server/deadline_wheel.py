"""Time limits of thousands of connections with one timer.

Slots of a fixed width in a ring. A connection stands in one slot, is asked when the hand gets there, and says when to ask
next; later than one turn of the ring is asked once a turn. So activity costs nothing (nothing moves when a byte arrives), a
check is late by at most one slot, and a limit that became shorter in the meantime (a response began to wait) is seen within
one turn.
"""

import math
from collections.abc import Callable
from typing import Protocol

SLOT_COUNT = 32
SLOT_SECONDS_MAX = 1.0
SLOT_SECONDS_MIN = 0.005


class Watched(Protocol):
    def check(self, now: float) -> float | None:
        """When to ask again, by the loop's clock; None: not any more."""
        ...


class DeadlineWheel:
    """``schedule(seconds, callback)`` is the loop's ``call_later``. The timer runs only while something is watched."""

    __slots__ = ("_clock", "_hand", "_is_running", "_schedule", "_slot_seconds", "_slots", "_watched")

    def __init__(
        self, clock: Callable[[], float], schedule: Callable[[float, Callable[[], None]], object], shortest_seconds: float
    ) -> None:
        """A ring turns in half of the shortest limit, or in ``SLOT_COUNT`` seconds if that is less."""
        self._clock = clock
        self._schedule = schedule
        self._slot_seconds = min(SLOT_SECONDS_MAX, max(SLOT_SECONDS_MIN, shortest_seconds / (2 * SLOT_COUNT)))
        self._slots: list[list[Watched]] = [[] for _ in range(SLOT_COUNT)]
        self._hand = 0
        self._watched = 0
        self._is_running = False

    def __len__(self) -> int:
        return self._watched

    def watch(self, watched: Watched) -> None:
        """It is asked within one turn, and has to say None when it is done: nothing is removed before."""
        self._watched += 1
        self._slots[(self._hand + SLOT_COUNT - 1) % SLOT_COUNT].append(watched)
        if not self._is_running:
            self._is_running = True
            self._schedule(self._slot_seconds, self._turn)

    def _turn(self) -> None:
        self._hand = (self._hand + 1) % SLOT_COUNT
        due = self._slots[self._hand]
        self._slots[self._hand] = []
        now = self._clock()
        for watched in due:
            again = watched.check(now)
            if again is None:
                self._watched -= 1
                continue
            slots_ahead = min(SLOT_COUNT - 1, max(1, math.ceil((again - now) / self._slot_seconds)))
            self._slots[(self._hand + slots_ahead) % SLOT_COUNT].append(watched)
        self._is_running = self._watched > 0
        if self._is_running:
            self._schedule(self._slot_seconds, self._turn)
