"""When each broker was last heard of: the memory of the active controller, in which nothing is ever written.

A broker has a session while its heartbeats come often enough. A new controller has heard of nobody, so it begins by giving every
registered broker a fresh session. Times are those of the controller's own monotonic clock.
"""

from collections.abc import Iterable


class BrokerSessions:
    __slots__ = ("_heard", "_timeout_ms", "lateness_ms_max")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        # By broker: the epoch that it had, and when it was last heard of.
        self._heard: dict[int, tuple[int, int]] = {}
        self.lateness_ms_max = 0
        """The longest time between two heartbeats of one session, since this controller is active."""

    def begin(self, brokers: Iterable[tuple[int, int]], now_ms: int) -> None:
        """A controller becomes active: these brokers, each with its epoch, have a fresh session."""
        self._heard = {broker_id: (epoch, now_ms) for broker_id, epoch in brokers}
        self.lateness_ms_max = 0

    def touch(self, broker_id: int, epoch: int, now_ms: int) -> None:
        known = self._heard.get(broker_id)
        if known is not None and known[0] == epoch:
            self.lateness_ms_max = max(self.lateness_ms_max, now_ms - known[1])
        self._heard[broker_id] = epoch, now_ms

    def end(self, broker_id: int) -> None:
        self._heard.pop(broker_id, None)

    def clear(self) -> None:
        self._heard = {}

    def is_valid(self, broker_id: int, now_ms: int) -> bool:
        known = self._heard.get(broker_id)
        return known is not None and now_ms - known[1] < self._timeout_ms

    def expired(self, now_ms: int) -> list[int]:
        """The brokers that have been silent for too long, in the order of their ids."""
        return sorted(broker_id for broker_id, (_, heard_ms) in self._heard.items() if now_ms - heard_ms >= self._timeout_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next session ends, unless its broker is heard of."""
        return min((heard_ms + self._timeout_ms for _, heard_ms in self._heard.values()), default=None)
