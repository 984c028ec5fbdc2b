"""What clients may take of the broker, and how long they may take it. Each limit with its reason.

A limit on bytes makes the broker read slower, it never makes it refuse: a client that sends faster than it is answered, or
that does not read its answers, is not read from, and TCP tells it so. Only a limit on connections or on time ends a
connection.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MIB = 1024 * 1024
# Until the first valid request: enough for a client that produces at once, too little for one that is no Kafka client (the first
# four letters of an HTTP request read as more than a gigabyte).
FIRST_FRAME_BYTES_MAX = 8 * _MIB


@dataclass(frozen=True, slots=True)
class Limits:
    connections_max: int = 10_000
    """``max.connections``. A connection costs a descriptor and some 20 KB."""
    connections_per_address_max: int = 10_000
    """``max.connections.per.ip``. As many as there may be, unless told otherwise: one machine may run every client."""
    frame_bytes_max: int = 100 * _MIB
    """``socket.request.max.bytes``."""
    first_frame_bytes_max: int = FIRST_FRAME_BYTES_MAX
    """Until the first valid request."""
    in_flight_bytes_max: int = 32 * _MIB
    """Requests of one connection that are not answered yet: as much as a client may have unsynced. One request may exceed it."""
    unsent_bytes_max: int = 2 * _MIB
    """Responses that one client has not read yet, slices of files included. Responses to what is in flight may exceed it. More
    than a fetch of the clients' default size, 1 MiB: to stop reading and begin again costs as much as half the request."""
    memory_bytes_max: int = 256 * _MIB
    """``queued.max.request.bytes``, of all connections: requests in flight, unsent responses in memory, and receive buffers that
    have grown. One frame may exceed it (see ``SharedMemory``)."""
    idle_ms_max: int = 600_000
    """``connections.max.idle.ms``."""
    handshake_ms_max: int = 30_000
    """From the connection to the first valid request. A client speaks as soon as it is connected."""
    frame_stall_ms_max: int = 60_000
    """Without a byte in the middle of a frame: the client is gone, and its buffer may be large."""
    send_stall_ms_max: int = 120_000
    """Without taking a byte of a response. Clients that only pause keep reading into their own buffers."""
    stop_ms_max: int = 5_000
    """For requests in flight when the broker stops. Long polls may take longer; they lose nothing."""

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> "Limits":
        """The broker's settings, parsed; what has no setting keeps its default."""
        return cls(
            connections_max=values["max.connections"],
            connections_per_address_max=values["max.connections.per.ip"],
            frame_bytes_max=values["socket.request.max.bytes"],
            first_frame_bytes_max=min(FIRST_FRAME_BYTES_MAX, values["socket.request.max.bytes"]),
            memory_bytes_max=values["queued.max.request.bytes"],
            idle_ms_max=values["connections.max.idle.ms"],
        )

    def shortest_ms(self) -> int:
        return min(self.idle_ms_max, self.handshake_ms_max, self.frame_stall_ms_max, self.send_stall_ms_max)
