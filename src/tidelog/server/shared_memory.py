"""One budget of bytes for all connections: what they hold in memory together.

Counted, not reserved: a connection says how much it holds and asks ``may_grow`` before it takes more. While the budget is used
up, connections that hold nothing go on as before (each of them takes at most one small buffer), those that hold something wait
in ``_waiting`` until enough was given back. A connection in the middle of a large frame holds memory that only the rest of
that frame can free, so if all waited there, all would wait for ever: one of them, the first that asks, is let through beyond
the budget, for as long as it is read from.
"""

from collections.abc import Callable
from typing import Protocol

# Waiting connections go on when a good part is free, not at every byte.
RESUME_FRACTION = 0.75


class Holder(Protocol):
    def resume(self) -> None: ...


class SharedMemory:
    __slots__ = ("_bytes_max", "_call_soon", "_favoured", "_waiting", "used_bytes")

    def __init__(self, bytes_max: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._bytes_max = bytes_max
        self._call_soon = call_soon
        self._favoured: Holder | None = None
        self._waiting: dict[Holder, None] = {}
        self.used_bytes = 0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def is_tight(self) -> bool:
        """More than half is used: what is only kept for later should be given back."""
        return self.used_bytes * 2 > self._bytes_max

    def may_grow(self, holder: Holder, is_inside_frame: bool) -> bool:
        """For a connection that holds something already. When not, it is told to ``resume`` later."""
        if self.used_bytes < self._bytes_max:
            return True
        if is_inside_frame and (self._favoured is None or self._favoured is holder):
            self._favoured = holder
            return True
        self._waiting[holder] = None
        return False

    def change(self, delta: int) -> None:
        self.used_bytes += delta
        if delta < 0 and self._waiting and self.used_bytes <= self._bytes_max * RESUME_FRACTION:
            self._resume_all()

    def frame_done(self, holder: Holder) -> None:
        """The holder is no longer in the middle of a large frame, or is not read from now: the next one is let through."""
        if self._favoured is holder:
            self._favoured = None
            if self._waiting:
                self._resume_all()

    def forget(self, holder: Holder) -> None:
        self._waiting.pop(holder, None)
        self.frame_done(holder)

    def _resume_all(self) -> None:
        waiting = self._waiting
        self._waiting = {}
        for holder in waiting:
            self._call_soon(holder.resume)
