"""Forgets producers that stopped writing, in every log of a data directory.

A walk begins every ``producer.id.expiration.check.interval.ms`` and visits the logs in slices, so that ten thousand partitions do
not block the event loop.
"""

from collections.abc import Callable, Iterator

from tidelog.log.partition_log import PartitionLog
from tidelog.log.time_budget import TimeBudget
from tidelog.ports.clock import Clock

# About a millisecond of work where each log has a few producers.
LOGS_PER_TICK = 200


class ProducerExpiry:
    __slots__ = ("_clock", "_interval_ms", "_logs", "_next_ms", "_walk")

    def __init__(self, clock: Clock, logs: Callable[[], list[PartitionLog]], interval_ms: int) -> None:
        self._clock = clock
        self._logs = logs
        self._interval_ms = interval_ms
        self._next_ms = clock.monotonic_ms() + interval_ms
        self._walk: Iterator[PartitionLog] | None = None

    def tick(self) -> None:
        if self._walk is None:
            now_ms = self._clock.monotonic_ms()
            if now_ms < self._next_ms:
                return
            self._next_ms = now_ms + self._interval_ms
            self._walk = iter(self._logs())
        budget = TimeBudget(self._clock, LOGS_PER_TICK)
        for log in self._walk:
            log.producers.remove_expired(self._clock.now_ms())
            budget.spend()
            if budget.is_over:
                return
        self._walk = None
