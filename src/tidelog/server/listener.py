"""Accepts connections, as many as there may be.

A connection beyond a limit is accepted and closed at once: left in the backlog it would come again and again, and its client
would wait instead of knowing. When the process is out of descriptors nothing can be accepted, not even to close it, so
accepting pauses for a moment instead of spinning.
"""

import logging
import socket
from collections import Counter
from collections.abc import Sequence

from tidelog.server.connection import Connection
from tidelog.server.hub import Hub

BACKLOG = 1024
# Connections accepted in one go, before those that are there have their turn.
ACCEPTS_PER_TURN = 32
PAUSE_SECONDS = 0.1
TELL_SECONDS = 10.0

_log = logging.getLogger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """A socket that does not listen yet; port 0 takes a free one. OSError names the address."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        # A restart must not wait for connections of the last run to be forgotten by the kernel.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    return listening


def bind_all(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """All or none."""
    bound: list[socket.socket] = []
    try:
        for host, port in addresses:
            bound.append(bind(host, port))
    except OSError:
        for listening in bound:
            listening.close()
        raise
    return bound


class Admission:
    """Who may connect: counted over all listeners."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._per_address: Counter[str] = Counter()
        self._held = 0
        self._told_at = -TELL_SECONDS
        self._told = 0
        self.accepted = 0
        self.refused = 0
        self.throttled = 0
        hub.on_closed = lambda connection: self.release(connection.host)

    def admit(self, host: str) -> bool:
        limits = self._hub.limits
        if (
            len(self._hub.connections) + self._held >= limits.connections_max
            or self._per_address[host] >= limits.connections_per_address_max
        ):
            self.refused += 1
            self._tell_refused(host)
            return False
        self.accepted += 1
        self._per_address[host] += 1
        return True

    def _tell_refused(self, host: str) -> None:
        """Not of each: a flood of connections must not become one of lines."""
        now = self._hub.loop.time()
        if now - self._told_at >= TELL_SECONDS:
            more = self.refused - self._told - 1
            _log.warning("refused a connection of %s (and %d before): it or all together have too many", host, more)
            self._told_at, self._told = now, self.refused

    def hold(self) -> None:
        """One that was admitted is left alone."""
        self._held += 1
        self.throttled += 1

    def unhold(self, host: str) -> None:
        self._held -= 1
        self.release(host)

    def release(self, host: str) -> None:
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]


class Listener:
    def __init__(self, hub: Hub, admission: Admission, listening: socket.socket) -> None:
        self._hub = hub
        self._admission = admission
        self._listening = listening
        self._is_open = True
        # Connections that are ended soon, and their addresses.
        self._left_alone: dict[socket.socket, str] = {}
        self.host, self.port = listening.getsockname()[:2]
        listening.listen(BACKLOG)
        self._resume()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._hub.loop.remove_reader(self._listening.fileno())
            self._listening.close()
            for accepted in list(self._left_alone):
                self._end(accepted)

    def _resume(self) -> None:
        if self._is_open:
            self._hub.loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("cannot accept connections for %s s: %s", PAUSE_SECONDS, error.strerror)
                self._hub.loop.remove_reader(self._listening.fileno())
                self._hub.loop.call_later(PAUSE_SECONDS, self._resume)
                return
            host, port = address[:2]
            if not self._admission.admit(host):
                accepted.close()
                continue
            throttle_ms = self._hub.broker.connection_throttle_ms(host)
            if throttle_ms:
                self._leave_alone(accepted, host, throttle_ms)
                continue
            try:
                Connection(self._hub, accepted, host, port)
            except OSError:
                # Reset before we could set it up.
                accepted.close()
                self._admission.release(host)

    def _leave_alone(self, accepted: socket.socket, host: str, throttle_ms: int) -> None:
        """Its address makes too many connections. Ended at once it would come again at once; it counts among those that there
        may be."""
        self._admission.hold()
        self._left_alone[accepted] = host
        self._hub.loop.call_later(throttle_ms / 1000, self._end, accepted)

    def _end(self, accepted: socket.socket) -> None:
        host = self._left_alone.pop(accepted, None)
        if host is not None:
            accepted.close()
            self._admission.unhold(host)
