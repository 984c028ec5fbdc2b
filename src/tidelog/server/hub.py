"""What all connections of a broker share: the loop and its bursts, the limits, the memory, the counts.

A *burst* is one turn of the event loop: every socket that was readable is read, every completion delivered. When it is over,
``broker.end_of_burst`` starts one group commit for all of it, and only then are responses written, so that the disk works
meanwhile. The broker's timer is armed anew, since a request may have brought a nearer deadline.
"""

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from tidelog.metrics.histogram import Histogram
from tidelog.ports.clock import Clock
from tidelog.ports.executor import Executor
from tidelog.server.deadline_wheel import DeadlineWheel
from tidelog.server.limits import Limits
from tidelog.server.loop_share import LoopShare
from tidelog.server.reset_watch import ResetWatch
from tidelog.server.served import ServedBroker
from tidelog.server.shared_memory import SharedMemory

if TYPE_CHECKING:
    from tidelog.server.connection import Connection

_log = logging.getLogger(__name__)


class Hub:
    """``executor`` runs the cold reads; it is not the broker's, whose threads must be free for syncs. ``held`` is told how many
    seconds each tick and each completion took."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: ServedBroker,
        clock: Clock,
        executor: Executor,
        limits: Limits,
        held: Callable[[float], None],
    ) -> None:
        self.loop = loop
        self.broker = broker
        self.executor = executor
        self.limits = limits
        self.memory = SharedMemory(limits.memory_bytes_max, loop.call_soon)
        self.share = LoopShare(loop.call_later)
        self.resets = ResetWatch(loop)
        self.connections: set[Connection] = set()
        self.on_closed: Callable[[Connection], None] | None = None
        # Counts since the start.
        self.requests = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.cold_reads = 0
        self.throttled_reads = 0
        self.send_ns = Histogram()
        self.now_ns = clock.monotonic_ns
        self._clock = clock
        self._held = held
        self._wheel = DeadlineWheel(loop.time, loop.call_later, limits.shortest_ms() / 1000)
        self._dirty: list[Connection] = []
        self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline_ms = 0
        self._is_stopped = False

    # Bursts.

    def wake(self) -> None:
        """Something happened: end the burst when everything else that is ready has been handled."""
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon(self._end_of_burst)

    def add_dirty(self, connection: "Connection") -> None:
        """It has something to send."""
        self._dirty.append(connection)
        self.wake()

    def run(self, completion: Callable[[], None]) -> None:
        """Deliver a completion of the broker's executor, as part of a burst."""
        self.wake()
        began = perf_counter()
        completion()
        self._held(perf_counter() - began)

    def _end_of_burst(self) -> None:
        self._is_woken = False
        if self._is_stopped:
            return
        try:
            self.broker.end_of_burst()
        finally:
            dirty = self._dirty
            self._dirty = []
            for connection in dirty:
                connection.flush()
            self._arm()
            self.share.sample(self.now_ns())

    # The broker's timer.

    def _arm(self) -> None:
        deadline_ms = self.broker.next_deadline_ms()
        if deadline_ms is None:
            return
        if self._timer is not None:
            # A timer that is too early costs one needless tick; only one that is too late must be moved.
            if self._timer_deadline_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_deadline_ms = deadline_ms
        delay_ms = deadline_ms - self._clock.monotonic_ms()
        self._timer = self.loop.call_later(max(0, delay_ms) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.wake()
        began = perf_counter()
        self.broker.tick()
        self._held(perf_counter() - began)

    def stop(self) -> None:
        """The broker has stopped: no more ticks and bursts."""
        self._is_stopped = True
        self.resets.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Connections.

    def opened(self, connection: "Connection") -> None:
        self.connections.add(connection)
        self._wheel.watch(connection)

    def closed(self, connection: "Connection", reason: str) -> None:
        self.connections.discard(connection)
        self.memory.forget(connection)
        _log.debug("%s: %s", connection.peer, reason)
        if self.on_closed is not None:
            self.on_closed(connection)
