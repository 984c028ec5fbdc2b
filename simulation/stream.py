"""One end of a simulated connection, and the bytes on their way to the other end.

Each end owns the way out of it: bytes that wait in ``_unsent``, then, if the way has an end, the reason in ``_final``. One
delivery at a time is scheduled per way, so bytes arrive in order, in chunks of any size. A delivery that finds its way blocked
by a partition waits for ``resume``, as TCP's retransmission does.

When an end closes or is cut, a part of what it still had to send is taken for already on the wire: the other end gets it,
perhaps half a frame, and then the end.
"""

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.ports.disk import Buffer
from tidelog.ports.network import Endpoint

if TYPE_CHECKING:
    from simulation.network import SimulatedNetwork

# As the real network reads at most so much at once.
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
        # Whether this end's owner still has to do with it: not after its own close, nor after it was told of the end.
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
        """Tell the owner, and let both ways flow."""
        if self.is_open:
            self._opened = True
            self._endpoint.opened(self)
            self.resume()
            if self._other is not None:
                self._other.resume()

    def break_off(self, reason: str) -> None:
        """The way out ends here: what is on the wire arrives, then the end."""
        if self._final is None:
            self._final = reason
            del self._unsent[self._network.draw(0, len(self._unsent)) :]
            if self._other is None:
                self._network.forget(self)
            self.resume()

    def end(self, reason: str) -> None:
        """The way in has ended: tell the owner."""
        if self.is_open:
            self.is_open = False
            if self._final is None:
                self._unsent.clear()
            self._endpoint.closed(self, reason)

    def resume(self) -> None:
        """Schedule the next delivery, if there is something to deliver and nothing in its way."""
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
        """All there is, or any part of it."""
        length = min(len(self._unsent), CHUNK_BYTES_MAX)
        if self._network.draw(0, 1):
            length = self._network.draw(1, length)
        chunk = bytes(memoryview(self._unsent)[:length])
        del self._unsent[:length]
        return chunk
