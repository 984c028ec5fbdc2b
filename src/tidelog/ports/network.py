"""The network port: byte streams between two named ends, and nothing else.

A ``Connection`` carries bytes in order or is cut; frames are the wire layer's concern. Everything that happens comes as a call on
the ``Endpoint`` given to ``listen`` or ``connect``, always on the owner's thread and never from within a call of ours. The
simulated twin delays, cuts (in mid-frame too) and partitions, one way or both.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from tidelog.ports.disk import Buffer

# The reason that ``Endpoint.closed`` gets when the other machine answers and nothing listens at that port.
CONNECTION_REFUSED = "connection refused"


class Connection(Protocol):
    @property
    def peer(self) -> str:
        """The other side's ``host:port``, for logs and per-address limits."""
        ...

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue bytes. The caller bounds what it queues by ``unsent_bytes``."""
        ...

    def unsent_bytes(self) -> int: ...

    def close(self) -> None:
        """Drop the connection and what it still had to send. ``Endpoint.closed`` is not called for our own close."""
        ...


class Endpoint(Protocol):
    def opened(self, connection: Connection) -> None: ...

    def received(self, connection: Connection, data: bytes) -> None: ...

    def closed(self, connection: Connection, reason: str) -> None:
        """The other side or the network ended the connection, or ``connect`` failed."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> tuple[str, int]: ...

    def close(self) -> None: ...


class Network(Protocol):
    def listen(self, host: str, port: int, endpoint: Endpoint) -> Listener:
        """Accept connections; port 0 picks a free one. Raises OSError when the address is not available."""
        ...

    def connect(self, host: str, port: int, endpoint: Endpoint) -> Connection: ...


class WakingNetwork:
    """A network that calls ``wake`` before it calls an endpoint, so that what the endpoint does becomes part of a burst."""

    __slots__ = ("_inner", "_wake")

    def __init__(self, inner: Network, wake: Callable[[], None]) -> None:
        self._inner = inner
        self._wake = wake

    def listen(self, host: str, port: int, endpoint: Endpoint) -> Listener:
        return self._inner.listen(host, port, _WakingEndpoint(endpoint, self._wake))

    def connect(self, host: str, port: int, endpoint: Endpoint) -> Connection:
        return self._inner.connect(host, port, _WakingEndpoint(endpoint, self._wake))


class _WakingEndpoint:
    __slots__ = ("_inner", "_wake")

    def __init__(self, inner: Endpoint, wake: Callable[[], None]) -> None:
        self._inner = inner
        self._wake = wake

    def opened(self, connection: Connection) -> None:
        self._wake()
        self._inner.opened(connection)

    def received(self, connection: Connection, data: bytes) -> None:
        self._wake()
        self._inner.received(connection, data)

    def closed(self, connection: Connection, reason: str) -> None:
        self._wake()
        self._inner.closed(connection, reason)
