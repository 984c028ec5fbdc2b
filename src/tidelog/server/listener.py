"""Accepts connections up to the limits.

A connection beyond a limit is accepted and closed at once: left in the backlog it would be reported again and again, and its
client would wait without knowing why. When the process is out of descriptors nothing can be accepted, not even to be closed, so
accepting pauses for a moment instead of spinning.
"""

import logging
import socket
from collections import Counter
from collections.abc import Sequence

from tidelog.server.connection import ClientConnection
from tidelog.server.reactor import Reactor

BACKLOG = 1024
# Connections accepted in one go, before the existing ones have their turn.
ACCEPTS_PER_TURN = 32
PAUSE_SECONDS = 0.1
WARNING_INTERVAL_SECONDS = 10.0

_log = logging.getLogger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet; port 0 takes a free one. An OSError names the address."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        # A restart must not wait until the kernel has forgotten the connections of the last run.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    return listening


def bind_all(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """Bind all addresses or none."""
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
    """Decides who may connect, counting over all listeners."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._per_address: Counter[str] = Counter()
        self._ignored_count = 0
        self._warned_at = -WARNING_INTERVAL_SECONDS
        self._warned_refusals = 0
        self.accepted = 0
        self.refused = 0
        self.throttled = 0
        reactor.call_on_close(self.release)

    def admit(self, host: str) -> bool:
        limits = self._reactor.limits
        if (
            len(self._reactor.connections) + self._ignored_count >= limits.connections_max
            or self._per_address[host] >= limits.connections_per_address_max
        ):
            self.refused += 1
            self._warn_of_refusal(host)
            return False
        self.accepted += 1
        self._per_address[host] += 1
        return True

    def _warn_of_refusal(self, host: str) -> None:
        """Warn, but not for every refusal: a flood of connections must not become a flood of log lines."""
        now = self._reactor.loop.time()
        if now - self._warned_at >= WARNING_INTERVAL_SECONDS:
            more = self.refused - self._warned_refusals - 1
            _log.warning("refused a connection from %s (and %d before it): too many from its address or in total", host, more)
            self._warned_at, self._warned_refusals = now, self.refused

    def ignore(self) -> None:
        """Ignore an admitted connection until it is closed."""
        self._ignored_count += 1
        self.throttled += 1

    def release_ignored(self, host: str) -> None:
        self._ignored_count -= 1
        self.release(host)

    def release(self, host: str) -> None:
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]


class SocketListener:
    def __init__(self, reactor: Reactor, admission: Admission, listening: socket.socket, index: int = 0) -> None:
        """``index`` is the place of this listener among the broker's."""
        self._reactor = reactor
        self._admission = admission
        self._listening = listening
        self.index = index
        self._is_open = True
        # Connections that are ignored and closed soon, and their addresses.
        self._ignored: dict[socket.socket, str] = {}
        self.host, self.port = listening.getsockname()[:2]
        listening.listen(BACKLOG)
        self._resume()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._reactor.loop.remove_reader(self._listening.fileno())
            self._listening.close()
            for accepted in list(self._ignored):
                self._close_ignored(accepted)

    def _resume(self) -> None:
        if self._is_open:
            self._reactor.loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("cannot accept connections for %s s: %s", PAUSE_SECONDS, error.strerror)
                self._reactor.loop.remove_reader(self._listening.fileno())
                self._reactor.loop.call_later(PAUSE_SECONDS, self._resume)
                return
            host, port = address[:2]
            if not self._admission.admit(host):
                accepted.close()
                continue
            throttle_ms = self._reactor.broker.connection_throttle_ms(host)
            if throttle_ms:
                self._ignore(accepted, host, throttle_ms)
                continue
            try:
                ClientConnection(self._reactor, accepted, host, port, self.index)
            except OSError:
                # The connection was reset before it was set up.
                accepted.close()
                self._admission.release(host)

    def _ignore(self, accepted: socket.socket, host: str, throttle_ms: int) -> None:
        """Ignore a connection whose address opens too many. If it were closed at once, the client would reconnect at once. It
        counts towards the limits."""
        self._admission.ignore()
        self._ignored[accepted] = host
        self._reactor.loop.call_later(throttle_ms / 1000, self._close_ignored, accepted)

    def _close_ignored(self, accepted: socket.socket) -> None:
        host = self._ignored.pop(accepted, None)
        if host is not None:
            accepted.close()
            self._admission.release_ignored(host)
