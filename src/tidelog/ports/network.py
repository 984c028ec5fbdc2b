"""The network port: byte streams between two named ends, and nothing else.

A ``Connection`` carries bytes in order or is cut; frames are the wire layer's concern. Everything that happens comes as a call on
the ``Endpoint`` given to ``listen`` or ``connect``, always on the owner's thread and never from within a call of ours. The
simulated twin delays, cuts (in mid-frame too) and partitions, one way or both.
"""

from collections.abc import Sequence
from typing import Protocol

from tidelog.ports.disk import Buffer


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
