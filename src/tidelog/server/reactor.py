"""The reactor drives the broker and its connections on one event loop.

A *burst* is one iteration of the event loop: every readable socket is read and every completion delivered. When it is over,
``broker.end_of_burst`` starts one group commit for all of it, and only then are responses written, so that the disk works in the
meantime. Then the broker's timer is rearmed, because a request may have brought a nearer deadline.

``BrokerProtocol`` and ``SessionProtocol`` are all that the server knows of the broker; tests implement them with fakes.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from tidelog.log.reading import LogSlice
from tidelog.metrics.histogram import Histogram
from tidelog.ports.clock import Clock
from tidelog.ports.executor import Completion, Executor
from tidelog.ports.real_network import ResetWatch
from tidelog.server.event_log import ReportEvent, ignore_event
from tidelog.server.limits import ConnectionLimits, MemoryBudget, SlowTurnPenalty, TimingWheel, WorkTime
from tidelog.server.send_queue import ResponsePart, read_ahead

if TYPE_CHECKING:
    from tidelog.server.connection import ClientConnection

OnDone = Callable[[Exception | None], None]

_log = logging.getLogger(__name__)


class SessionProtocol(Protocol):
    """One client's connection, as the broker sees it."""

    @property
    def wants_reading(self) -> bool: ...

    @property
    def in_flight(self) -> int:
        """The number of requests received and not answered. The broker answers them in the order in which they arrived."""
        ...

    def receive(self, frame: memoryview, received_ns: int) -> int:
        """Handle one request whose bytes arrived at ``received_ns`` by the monotonic clock. The frame is overwritten as soon as
        this returns. Returns about how many bytes of memory the request takes until it is answered."""
        ...

    def closed(self) -> None: ...


class BrokerProtocol(Protocol):
    def session(
        self,
        client_host: str,
        send: Callable[[list[ResponsePart]], None],
        close: Callable[[str], None],
        resume: Callable[[], None],
        listener_index: int,
    ) -> SessionProtocol:
        """``send`` takes one whole response; ``close`` ends the connection, with the reason; ``resume`` says that the session
        may want reading again, though nothing was answered. ``listener_index`` says which of the listeners accepted it."""
        ...

    @property
    def controller_listeners(self) -> frozenset[int]:
        """The places of the listeners for controllers, which are served before the broker has started and until it has stopped:
        it starts and stops with the help of the others."""
        ...

    def connection_throttle_ms(self, client_host: str) -> int:
        """How long a new connection is ignored before it is closed, because its address has opened too many; 0 admits it."""
        ...

    def start(self, on_started: OnDone) -> None:
        """Clients can be served once ``on_started`` has been called, which may be later."""
        ...

    def leave(self, on_left: Callable[[], None]) -> None:
        """Let the other brokers take over, which takes some seconds at most. Clients are served until ``on_left`` is called:
        what they wait for is answered by then, and they go on elsewhere."""
        ...

    def begin_stop(self, on_stopped: OnDone) -> None:
        """Stop. No more requests will arrive, except from controllers. Timers keep running until ``on_stopped`` is called."""
        ...

    def tick(self) -> None:
        """Do everything that is due."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When to call ``tick`` next, by the monotonic clock."""
        ...

    def end_of_burst(self) -> None:
        """Called when all requests, completions and timers that were ready have been handled."""
        ...


class Reactor:
    """``executor`` runs the cold reads; it is not the broker's, whose threads must be free for syncs. ``observe_background``
    receives the seconds that each tick and each completion took."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: BrokerProtocol,
        clock: Clock,
        executor: Executor,
        limits: ConnectionLimits,
        observe_background: Callable[[float], None],
        report: ReportEvent = ignore_event,
    ) -> None:
        self.loop = loop
        self.broker = broker
        self.executor = executor
        self.limits = limits
        self.memory = MemoryBudget(limits.memory_bytes_max, limits.frame_bytes_max, loop.call_soon, loop.time)
        self._work_time = WorkTime()
        self.penalty = SlowTurnPenalty(loop.call_later, self._work_time, report)
        self.resets = ResetWatch(loop)
        self.connections: set[ClientConnection] = set()
        self.now_ns = clock.monotonic_ns
        # Counts since the start.
        self.cold_reads = 0
        self.throttled_reads = 0
        self.send_ns = Histogram()
        # Bytes of connections that have closed; open connections keep their own counts.
        self._closed_received_bytes = 0
        self._closed_sent_bytes = 0
        self._on_closed: Callable[[str], None] | None = None
        self._clock = clock
        self._observe_background = observe_background
        self._wheel = TimingWheel(loop.time, loop.call_later, limits.shortest_ms() / 1000)
        self._to_flush: list[ClientConnection] = []
        self._is_burst_end_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline_ms = 0
        self._is_stopped = False

    @property
    def received_bytes(self) -> int:
        return self._closed_received_bytes + sum(connection.received_bytes for connection in self.connections)

    @property
    def sent_bytes(self) -> int:
        return self._closed_sent_bytes + sum(connection.sent_bytes for connection in self.connections)

    # Bursts.

    def wake(self) -> None:
        """Note that something happened: the burst ends when everything else that is ready has been handled."""
        if not self._is_burst_end_scheduled:
            self._is_burst_end_scheduled = True
            self.loop.call_soon(self._end_of_burst)

    def flush_after_burst(self, connection: "ClientConnection") -> None:
        self._to_flush.append(connection)
        self.wake()

    def deliver(self, completion: Callable[[], None]) -> None:
        """Deliver a completion of the broker's executor, as part of a burst."""
        self.wake()
        began = perf_counter()
        completion()
        self._observe_background(perf_counter() - began)

    def _end_of_burst(self) -> None:
        self._is_burst_end_scheduled = False
        if self._is_stopped:
            return
        try:
            self.broker.end_of_burst()
        finally:
            to_flush = self._to_flush
            self._to_flush = []
            for connection in to_flush:
                connection.flush()
            self._arm_timer()

    # The broker's timer.

    def _arm_timer(self) -> None:
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
        self._observe_background(perf_counter() - began)

    def stop(self) -> None:
        """Called when the broker has stopped: there are no more ticks and bursts."""
        self._is_stopped = True
        self.resets.close()
        self._work_time.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Connections.

    def call_on_close(self, on_closed: Callable[[str], None]) -> None:
        """``on_closed`` is called with the client's address whenever a connection closes."""
        self._on_closed = on_closed

    def opened(self, connection: "ClientConnection") -> None:
        self.connections.add(connection)
        self._wheel.add(connection)

    def closed(self, connection: "ClientConnection", reason: str) -> None:
        self.connections.discard(connection)
        self.memory.forget(connection)
        self._closed_received_bytes += connection.received_bytes
        self._closed_sent_bytes += connection.sent_bytes
        _log.debug("%s: %s", connection.peer, reason)
        if self._on_closed is not None:
            self._on_closed(connection.host)

    def count_throttled_read(self) -> None:
        self.throttled_reads += 1

    def read_ahead(self, cold: LogSlice, on_done: Callable[[Completion], None]) -> None:
        """Read a range into the page cache in a helper thread."""
        self.cold_reads += 1
        self.executor.submit(partial(read_ahead, cold.file, cold.position, cold.length), on_done)
