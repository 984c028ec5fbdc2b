"""Long processing does not lose the group: a thread that keeps the place of a consumer whose caller does not poll for a while.

Kafka takes a member for stuck that has not polled for ``max.poll.interval.ms``, and gives its partitions to others while it is
still at work. The keeper polls in its stead once half of that has passed, and every quarter from then on. Rebalances are then
answered in time too, so one slow member does not hold up its group: ``on_assigned``, ``on_revoked`` and ``on_lost`` are called
from this thread then, with the consumer's lock held. A message that such a poll brings waits in ``Arrivals`` for the caller:
one a beat at most.

A handler that never returns must still be noticed: after ``processing_timeout`` the keeper stops, and the group takes the
partitions as Kafka always did. It holds the consumer weakly: one that was forgotten without ``close`` ends its keeper.
"""

import threading
import weakref
from time import monotonic
from typing import Protocol

PROCESSING_TIMEOUT_SECONDS = 3600.0
_BEATS_PER_INTERVAL = 4


class Kept(Protocol):
    """What a keeper needs of a consumer."""

    def keep_place(self, idle_seconds_min: float, idle_seconds_max: float, now: float) -> bool:
        """Poll in the caller's stead when it has been away for that long; whether it was done."""


class Keeper:
    """Started by the first poll, stopped by ``stop``."""

    def __init__(self, consumer: Kept, max_poll_interval_ms: int, processing_timeout: float) -> None:
        self._consumer = weakref.ref(consumer)
        self._interval_seconds = max_poll_interval_ms / 1000
        self._processing_timeout = processing_timeout
        self._stopped = threading.Event()
        self.beats = 0
        """How often it has polled in the caller's stead."""
        self._thread = threading.Thread(target=self._run, name="tidelog-consumer-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        beat_seconds = self._interval_seconds / _BEATS_PER_INTERVAL
        while not self._stopped.wait(beat_seconds):
            consumer = self._consumer()
            if consumer is None:
                return
            if consumer.keep_place(self._interval_seconds / 2, self._processing_timeout, monotonic()):
                self.beats += 1
            del consumer
