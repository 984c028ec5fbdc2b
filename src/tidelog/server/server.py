"""A broker on real sockets: listeners, connections, timers, and an orderly end.

Stopping. First nobody is let in and no request is taken any more; what is in flight is answered, within ``limits.stop_ms_max``;
then all connections are closed, and the broker itself stops, which syncs its logs and leaves the mark of a clean shutdown.
"""

import asyncio
import socket
from collections.abc import Sequence

from tidelog.ports.clock import Clock
from tidelog.ports.executor import Executor
from tidelog.server.hub import Hub
from tidelog.server.limits import Limits
from tidelog.server.listener import Admission, Listener
from tidelog.server.loop_lag import LoopLag, Report, report_nothing
from tidelog.server.served import OnDone, ServedBroker

# How often a stopping server looks whether all is done.
STOP_POLL_SECONDS = 0.01


class Server:
    """Everything happens on ``loop``, which belongs to the caller.

    Completions of the broker's executor come through ``hub.run``. ``cold_reads`` is another executor: a sync must not wait for
    reads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: ServedBroker,
        clock: Clock,
        cold_reads: Executor,
        limits: Limits,
        report: Report = report_nothing,
    ) -> None:
        self._loop = loop
        self._broker = broker
        self.lag = LoopLag(loop.time, loop.call_later, report)
        self.hub = Hub(loop, broker, clock, cold_reads, limits, self.lag.held)
        self.admission = Admission(self.hub)
        self.listeners: list[Listener] = []
        self.is_stopping = False
        self._stop_deadline = 0.0

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(listener.host, listener.port) for listener in self.listeners]

    def listen(self, bound: Sequence[socket.socket]) -> None:
        """Serve clients on these sockets; the broker has started."""
        self.listeners = [Listener(self.hub, self.admission, listening) for listening in bound]
        self.lag.start()

    def begin_stop(self, on_stopped: OnDone) -> None:
        """``on_stopped`` is called when the broker has stopped, with the error if it could not stop cleanly."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self._stop_deadline = self._loop.time() + self.hub.limits.stop_ms_max / 1000
        for listener in self.listeners:
            listener.close()
        for connection in list(self.hub.connections):
            connection.drain()
        self._await_connections(on_stopped)

    def _await_connections(self, on_stopped: OnDone) -> None:
        if self.hub.connections and self._loop.time() < self._stop_deadline:
            self._loop.call_later(STOP_POLL_SECONDS, self._await_connections, on_stopped)
            return
        for connection in list(self.hub.connections):
            connection.end("the broker stops")

        def stopped(error: Exception | None) -> None:
            self.hub.stop()
            self.lag.stop()
            on_stopped(error)

        self._broker.begin_stop(stopped)
        self.hub.wake()
