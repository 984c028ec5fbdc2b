"""One client's connection at the simulated broker: bytes in, frames to the session; responses out at the end of the burst."""

import struct
from collections.abc import Callable

from tidelog.broker.api import Part
from tidelog.broker.broker import BrokerNode
from tidelog.log.reading import LogSlice
from tidelog.ports.network import Connection
from tidelog.wire.frames import FrameReader, InvalidFrame

FRAME_BYTES_MAX = 1 << 20
_pack_size = struct.Struct(">i").pack


class NodeConnection:
    __slots__ = ("_connection", "_frames", "_on_closed", "_outbox", "_session", "_unread", "is_open")

    def __init__(self, broker: BrokerNode, connection: Connection, on_closed: Callable[[Connection, str], None]) -> None:
        """``on_closed`` hears when it was the broker who ended it."""
        self._connection = connection
        self._on_closed = on_closed
        self._frames = FrameReader(FRAME_BYTES_MAX)
        self._session = broker.session(connection.peer.partition(":")[0], self._send, self.end)
        self._outbox: list[list[Part]] = []
        # Came while the session had enough in flight.
        self._unread = bytearray()
        self.is_open = True

    def receive(self, data: bytes) -> None:
        self._unread += data
        self._read_on()

    def _read_on(self) -> None:
        frames, session = self._frames, self._session
        try:
            while self.is_open and session.wants_reading:
                frame = frames.next_frame()
                if frame is not None:
                    session.receive(frame)
                elif self._unread:
                    writable = frames.writable()
                    length = min(len(writable), len(self._unread))
                    writable[:length] = self._unread[:length]
                    frames.received(length)
                    del self._unread[:length]
                else:
                    return
        except InvalidFrame as error:
            self.end(str(error))

    def _send(self, parts: list[Part]) -> None:
        self._outbox.append(parts)

    def flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        for parts in outbox:
            if not self.is_open:
                return
            try:
                response = b"".join([_bytes_of(part) for part in parts])
            except OSError as error:
                self.end(f"a slice cannot be read: {error}")
                return
            self._connection.send([_pack_size(len(response)), response])
        self._read_on()

    def lost(self) -> None:
        """The client or the network ended it."""
        if self.is_open:
            self.is_open = False
            self._session.closed()

    def end(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self._connection.close()
            self._session.closed()
            self._on_closed(self._connection, reason)


def _bytes_of(part: Part) -> bytes:
    if isinstance(part, LogSlice):
        data = part.file.read(part.position, part.length)
        if len(data) != part.length:
            raise OSError(f"{part.file.path} has {len(data)} bytes at {part.position} where {part.length} were promised")
        return data
    return bytes(part)  # type: ignore[arg-type]  # the only records that the broker sends are slices
