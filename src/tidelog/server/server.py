"""Runs a broker on real sockets: listeners, connections, timers, and an orderly stop.

To stop, the broker first leaves the cluster while it goes on serving: a produce with acks=all that is in flight needs followers
that fetch, and its client needs another leader. Then the server refuses new connections and requests and answers those in flight,
within ``limits.stop_ms_max``. Then it closes their connections, and the broker itself stops, which syncs its logs and writes the
mark of a clean shutdown. Other controllers are served before the broker has started and until it has stopped, because without
them it can do neither.
"""

import asyncio
import socket
from collections.abc import Iterator, Sequence

from tidelog.ports.clock import Clock
from tidelog.ports.executor import Executor
from tidelog.server.connection import STOPPING, ClientConnection
from tidelog.server.event_log import ReportEvent, ignore_event
from tidelog.server.limits import ConnectionLimits
from tidelog.server.listener import Admission, SocketListener
from tidelog.server.loop_lag import LoopLag
from tidelog.server.reactor import BrokerProtocol, OnDone, Reactor

# How often a stopping server checks whether everything has been answered.
STOP_POLL_SECONDS = 0.01
# The second slice of the warm-up waits for this long, so that whoever waits for the broker to start is served first.
WARM_UP_DELAY_SECONDS = 0.5
# Each further slice waits for this long without a byte from a client.
WARM_UP_IDLE_SECONDS = 0.02
# On a broker that is never idle the slices run anyway after this long, one in each interval.
WARM_UP_PATIENCE_SECONDS = 2.0
_NO_SLICE = object()


class Server:
    """Everything happens on ``loop``, which belongs to the caller.

    Completions of the broker's executor come through ``reactor.deliver``. ``cold_reads`` is another executor, because a sync must
    not wait for reads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: BrokerProtocol,
        clock: Clock,
        cold_reads: Executor,
        limits: ConnectionLimits,
        report: ReportEvent = ignore_event,
    ) -> None:
        self._loop = loop
        self._broker = broker
        self.lag = LoopLag(loop.time, loop.call_later, report)
        self.reactor = Reactor(loop, broker, clock, cold_reads, limits, self.lag.observe_background, report)
        self.admission = Admission(self.reactor)
        self.listeners: list[SocketListener] = []
        self.is_stopping = False
        self._stop_deadline = 0.0

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(listener.host, listener.port) for listener in self.listeners]

    def listen_for_controllers(self, bound: Sequence[socket.socket]) -> None:
        """Serve other controllers on those of these sockets that are for them; the broker is about to start."""
        self._open(bound, self._broker.controller_listeners)

    def listen(self, bound: Sequence[socket.socket]) -> None:
        """Serve everybody on these sockets, in the order of the broker's listeners; the broker has started."""
        self._open(bound, frozenset(range(len(bound))))
        self.lag.start()

    def _open(self, bound: Sequence[socket.socket], indexes: frozenset[int]) -> None:
        missing = sorted(indexes - {listener.index for listener in self.listeners})
        opened = [SocketListener(self.reactor, self.admission, bound[index], index) for index in missing]
        self.listeners = sorted([*self.listeners, *opened], key=lambda listener: listener.index)

    def warm_up(self, slices: Iterator[object]) -> None:
        """Run the first slice now, and the others one at a time while no client sends anything."""
        next(slices)
        deadline = self._loop.time() + WARM_UP_PATIENCE_SECONDS
        self._loop.call_later(WARM_UP_DELAY_SECONDS, self._warm_up_slice, slices, -1, deadline)

    def _warm_up_slice(self, slices: Iterator[object], received_bytes_before: int, deadline: float) -> None:
        if self.is_stopping:
            return
        received_bytes = self.reactor.received_bytes
        may_run = received_bytes == received_bytes_before or self._loop.time() >= deadline
        if may_run and next(slices, _NO_SLICE) is _NO_SLICE:
            return
        self._loop.call_later(WARM_UP_IDLE_SECONDS, self._warm_up_slice, slices, received_bytes, deadline)

    def begin_stop(self, on_stopped: OnDone) -> None:
        """``on_stopped`` is called when the broker has stopped, with the error if it could not stop cleanly."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self._broker.leave(lambda: self._drain(on_stopped))
        self.reactor.wake()

    def _drain(self, on_stopped: OnDone) -> None:
        self._stop_deadline = self._loop.time() + self.reactor.limits.stop_ms_max / 1000
        kept = self._broker.controller_listeners
        for listener in self.listeners:
            if listener.index not in kept:
                listener.close()
        for connection in self._connections(kept):
            connection.drain()
        self._await_connections(on_stopped)

    def _connections(self, without: frozenset[int] = frozenset()) -> list[ClientConnection]:
        """The connections of all listeners without these."""
        return [connection for connection in self.reactor.connections if connection.listener_index not in without]

    def _await_connections(self, on_stopped: OnDone) -> None:
        waiting = self._connections(self._broker.controller_listeners)
        if waiting and self._loop.time() < self._stop_deadline:
            self._loop.call_later(STOP_POLL_SECONDS, self._await_connections, on_stopped)
            return
        for connection in waiting:
            connection.close(STOPPING)

        def stopped(error: Exception | None) -> None:
            for listener in self.listeners:
                listener.close()
            for connection in self._connections():
                connection.close(STOPPING)
            self.reactor.stop()
            self.lag.stop()
            on_stopped(error)

        self._broker.begin_stop(stopped)
        self.reactor.wake()
