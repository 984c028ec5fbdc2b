"""The rates of those who have a quota of one kind: bounded, and forgotten when they say nothing any more.

Client ids come from outside, so there may be any number of them. The least recently used come first; those whose window is over
are dropped when a new one comes, and when there are still ``TRACKED_MAX``, the least recently used goes although it counted:
it starts anew, which is what it would get by another client id anyway. A client id may have 32 KB: of longer ones than anybody
gives only the beginning is kept, so those that begin alike share a rate.

Limits are looked up once per client and kept until the quotas change; those of such long names each time.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tidelog.broker.quotas.limits import Limit

# Of each kind. A rate takes up to 2 KB.
TRACKED_MAX = 2_000
LIMITS_KEPT_MAX = 10_000
NAME_LENGTH_MAX = 256


class Measure(Protocol):
    def is_over(self, now_ms: int) -> bool: ...


Tracked = TypeVar("Tracked", bound=Measure)


class TrackedRates(Generic[Tracked]):
    __slots__ = ("_limits", "_make", "_rates", "find_limit", "tracked_max")

    def __init__(
        self, make: Callable[[], Tracked], find_limit: Callable[[str], Limit | None], tracked_max: int = TRACKED_MAX
    ) -> None:
        """``find_limit``: of a client id, or an address."""
        self._make = make
        self.find_limit = find_limit
        self.tracked_max = tracked_max
        # Least recently used first.
        self._rates: dict[tuple[str, str], Tracked] = {}
        self._limits: dict[str, Limit | None] = {}

    def __len__(self) -> int:
        return len(self._rates)

    def limits_changed(self) -> None:
        self._limits.clear()

    def limit(self, name: str) -> Limit | None:
        try:
            return self._limits[name]
        except KeyError:
            if len(name) > NAME_LENGTH_MAX:
                return self.find_limit(name)
            if len(self._limits) >= LIMITS_KEPT_MAX:
                self._limits.clear()
            limit = self._limits[name] = self.find_limit(name)
            return limit

    def rate(self, shared_by: tuple[str, str], now_ms: int) -> Tracked:
        rates = self._rates
        user, client_id = shared_by
        if len(client_id) > NAME_LENGTH_MAX:
            shared_by = user, client_id[:NAME_LENGTH_MAX]
        rate = rates.pop(shared_by, None)
        if rate is None:
            rate = self._make()
            self._make_room(now_ms)
        rates[shared_by] = rate
        return rate

    def _make_room(self, now_ms: int) -> None:
        rates = self._rates
        while rates:
            oldest = next(iter(rates))
            if len(rates) < self.tracked_max and not rates[oldest].is_over(now_ms):
                return
            del rates[oldest]
