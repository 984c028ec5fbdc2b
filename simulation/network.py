"""The simulated network: named hosts, byte streams between them, and the faults of the network.

``host(name)`` is the Network port of one machine. Every link has a delay, which is drawn for each delivery; bytes arrive in
chunks of any size. A partition blocks one direction or both: bytes wait until it heals, and new connections time out. A cut ends
the connections between two hosts in the middle of their streams; a crash ends all connections of one host, and its listeners.
Ends of connections are kept in the order in which they were made, so that a fault strikes several of them in the same order in
every run.

Each end of a connection owns its outgoing stream: the bytes that wait in ``_unsent``, then, if the stream has ended, the reason
in ``_final``. Only one delivery is scheduled per stream, so bytes arrive in order. A delivery that finds its stream blocked by a
partition waits for ``resume``, like TCP's retransmission. When an end closes or is cut, some of its unsent bytes count as already
on the wire: the other end gets them, perhaps half a frame, and then the end.
"""

import errno
import os
import zlib
from collections.abc import Callable, Sequence

from simulation.scheduler import Scheduler
from tidelog.ports.disk import Buffer
from tidelog.ports.network import CONNECTION_REFUSED, Connection, Endpoint, Listener
from tidelog.ports.randomness import Randomness

# The real network reads at most this much at once, too.
CHUNK_BYTES_MAX = 256 * 1024


class SimulatedConnection:
    __slots__ = (
        "_endpoint",
        "_final",
        "_network",
        "_opened",
        "_other",
        "_peer",
        "_scheduled",
        "_unsent",
        "host",
        "is_open",
        "number",
        "peer_host",
    )

    def __init__(
        self, network: "SimulatedNetwork", number: int, host: str, peer_host: str, peer_port: int, endpoint: Endpoint
    ) -> None:
        self._network = network
        self.number = number
        self.host = host
        self.peer_host = peer_host
        self._peer = f"{peer_host}:{peer_port}"
        self._endpoint = endpoint
        self._other: SimulatedConnection | None = None
        self._unsent = bytearray()
        self._final: str | None = None
        self._scheduled = False
        self._opened = False
        # Whether this end's owner is still involved: not after its own close, nor after it was told of the end.
        self.is_open = True

    # The port.

    @property
    def peer(self) -> str:
        return self._peer

    def send(self, buffers: Sequence[Buffer]) -> None:
        if self.is_open and self._final is None:
            for buffer in buffers:
                self._unsent += buffer
            self.resume()

    def unsent_bytes(self) -> int:
        return len(self._unsent) if self.is_open else 0

    def close(self) -> None:
        if self.is_open:
            self.break_off("closed by the peer")
            self.is_open = False

    # For the network.

    def join(self, other: "SimulatedConnection") -> None:
        self._other = other
        other._other = self

    def open(self) -> None:
        """Tell the owner, and let both directions flow."""
        if self.is_open:
            self._opened = True
            self._endpoint.opened(self)
            self.resume()
            if self._other is not None:
                self._other.resume()

    def break_off(self, reason: str) -> None:
        """End the outgoing stream: what is on the wire arrives, then the end."""
        if self._final is None:
            self._final = reason
            del self._unsent[self._network.draw(0, len(self._unsent)) :]
            if self._other is None:
                self._network.forget(self)
            self.resume()

    def end(self, reason: str) -> None:
        """End the incoming stream, and tell the owner."""
        if self.is_open:
            self.is_open = False
            if self._final is None:
                self._unsent.clear()
            self._endpoint.closed(self, reason)

    def resume(self) -> None:
        """Schedule the next delivery, if there is something to deliver and nothing blocks it."""
        other = self._other
        if self._scheduled or other is None or not (self._unsent or self._final is not None):
            return
        if (other._opened or not other.is_open) and not self._network.is_blocked(self.host, self.peer_host):
            self._scheduled = True
            self._network.schedule(self.host, self.peer_host, f"deliver {self.number}", self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        other = self._other
        if other is None or self._network.is_blocked(self.host, self.peer_host):
            return
        if self._unsent:
            chunk = self._take_chunk()
            self._network.record(f"bytes {self.number} {len(chunk)} {zlib.crc32(chunk):08x}")
            if other.is_open:
                other._endpoint.received(other, chunk)
            self.resume()
        elif self._final is not None:
            self._network.forget(self)
            if not self.is_open:
                self._network.forget(other)
            self._other = None
            other.end(self._final)

    def _take_chunk(self) -> bytes:
        """Take everything there is, or any part of it."""
        length = min(len(self._unsent), CHUNK_BYTES_MAX)
        if self._network.draw(0, 1):
            length = self._network.draw(1, length)
        chunk = bytes(memoryview(self._unsent)[:length])
        del self._unsent[:length]
        return chunk


DelayRange = tuple[int, int]

# One machine room.
LINK_DELAY_US: DelayRange = (50, 1_000)
# How often a connect that finds a partition retries, and when it fails.
CONNECT_RETRY_US = 200_000
CONNECT_TIMEOUT_US = 10_000_000
FIRST_LISTENER_PORT = 40_000
FIRST_CONNECTION_PORT = 50_000

_OWN_ADDRESSES = ("", "0.0.0.0", "::", "127.0.0.1", "::1", "localhost")  # noqa: S104 - names compared, nothing is bound


class SimulatedNetwork:
    def __init__(self, scheduler: Scheduler, randomness: Randomness) -> None:
        self._scheduler = scheduler
        self._randomness = randomness
        self.delay_us = LINK_DELAY_US
        self._delays: dict[tuple[str, str], DelayRange] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._connections: dict[SimulatedConnection, None] = {}
        self._connection_count = 0
        self._next_port = FIRST_LISTENER_PORT

    def host(self, name: str) -> "SimulatedHost":
        return SimulatedHost(self, name)

    # Faults.

    def set_delay(self, source: str, destination: str, delay_us: DelayRange) -> None:
        """The delay from one host to another; the way back keeps its own."""
        self._delays[source, destination] = delay_us

    def partition(self, source: str, destination: str, one_way: bool = False) -> None:
        """Block everything from ``source`` to ``destination`` and, unless ``one_way``, back."""
        self.record(f"partition {source} {destination} {'one way' if one_way else 'both ways'}")
        self._blocked.add((source, destination))
        if not one_way:
            self._blocked.add((destination, source))

    def heal(self, first: str, second: str) -> None:
        """End partitions between two hosts, in both directions."""
        self.record(f"heal {first} {second}")
        self._blocked.discard((first, second))
        self._blocked.discard((second, first))
        self._resume_all()

    def heal_all(self) -> None:
        self.record("heal all")
        self._blocked.clear()
        self._resume_all()

    def cut(self, first: str, second: str) -> bool:
        """End all connections between two hosts in mid-stream, and tell both sides. Returns whether there was one."""
        self.record(f"cut {first} {second}")
        ends = ((first, second), (second, first))
        connections = [connection for connection in self._connections if (connection.host, connection.peer_host) in ends]
        for connection in connections:
            connection.break_off("connection reset by the peer")
        return bool(connections)

    def crash(self, host: str) -> None:
        """Called when the process on ``host`` died: its endpoints are told nothing any more, and the others see their connections
        end."""
        self.record(f"crash {host}")
        for key in [key for key in self._listeners if key[0] == host]:
            del self._listeners[key]
        for connection in list(self._connections):
            if connection.host == host:
                connection.break_off("connection reset by the peer")
                connection.is_open = False

    # For hosts, listeners and connections.

    def listen(self, host: str, port: int, endpoint: Endpoint) -> "SimulatedListener":
        if port == 0:
            port = self._next_port
            self._next_port += 1
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), f"{host}:{port}")
        listener = self._listeners[host, port] = SimulatedListener(self, host, port, endpoint)
        return listener

    def stop_listening(self, listener: "SimulatedListener") -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def connect(self, host: str, peer_host: str, peer_port: int, endpoint: Endpoint) -> SimulatedConnection:
        connection = self._new_connection(host, peer_host, peer_port, endpoint)
        deadline_us = self._scheduler.now_us + CONNECT_TIMEOUT_US
        self.schedule(
            host, peer_host, f"connect {connection.number}", lambda: self._try_connect(connection, peer_port, deadline_us)
        )
        return connection

    def forget(self, connection: SimulatedConnection) -> None:
        self._connections.pop(connection, None)

    def is_blocked(self, source: str, destination: str) -> bool:
        return (source, destination) in self._blocked

    def schedule(self, source: str, destination: str, label: str, action: Callable[[], None]) -> None:
        """Run ``action`` after the link's delay."""
        low, high = self._delays.get((source, destination), self.delay_us)
        self._scheduler.schedule(self._randomness.integer(low, high), f"network {source} {destination} {label}", action)

    def record(self, line: str) -> None:
        self._scheduler.record(f"network {line}")

    def draw(self, low: int, high: int) -> int:
        return self._randomness.integer(low, high)

    def _try_connect(self, connection: SimulatedConnection, port: int, deadline_us: int) -> None:
        source, destination = connection.host, connection.peer_host
        if not connection.is_open or connection not in self._connections:
            # It was cut or closed before it was established; its owner, if it is still there, is told of a cut.
            connection.end("connection reset by the peer")
        elif self.is_blocked(source, destination) or self.is_blocked(destination, source):
            if self._scheduler.now_us + CONNECT_RETRY_US > deadline_us:
                self.forget(connection)
                connection.end("connection timed out")
                return
            self._scheduler.schedule(
                CONNECT_RETRY_US,
                f"network {source} {destination} connect again {connection.number}",
                lambda: self._try_connect(connection, port, deadline_us),
            )
        elif (listener := self._listeners.get((destination, port))) is None:
            self.forget(connection)
            self.schedule(destination, source, f"refuse {connection.number}", lambda: connection.end(CONNECTION_REFUSED))
        else:
            accepted = self._new_connection(destination, source, FIRST_CONNECTION_PORT + connection.number, listener.endpoint)
            accepted.join(connection)
            self.schedule(destination, source, f"open {connection.number}", connection.open)
            accepted.open()

    def _new_connection(self, host: str, peer_host: str, peer_port: int, endpoint: Endpoint) -> SimulatedConnection:
        self._connection_count += 1
        connection = SimulatedConnection(self, self._connection_count, host, peer_host, peer_port, endpoint)
        self._connections[connection] = None
        return connection

    def _resume_all(self) -> None:
        for connection in list(self._connections):
            connection.resume()


class SimulatedListener:
    __slots__ = ("_host", "_network", "_port", "endpoint")

    def __init__(self, network: SimulatedNetwork, host: str, port: int, endpoint: Endpoint) -> None:
        self._network = network
        self._host = host
        self._port = port
        self.endpoint = endpoint

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._port

    def close(self) -> None:
        self._network.stop_listening(self)


class SimulatedHost:
    """The Network port of one named host. Addresses are names of hosts; a loopback or wildcard address means this one."""

    __slots__ = ("_name", "_network")

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network = network
        self._name = name

    def listen(self, host: str, port: int, endpoint: Endpoint) -> Listener:
        if host != self._name and host not in _OWN_ADDRESSES:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), f"{host}:{port}")
        return self._network.listen(self._name, port, endpoint)

    def connect(self, host: str, port: int, endpoint: Endpoint) -> Connection:
        return self._network.connect(self._name, self._name if host in _OWN_ADDRESSES else host, port, endpoint)
