"""What a connection has still to send: bytes and slices of files, in order, and the sending of some of it.

A response is its size, then its parts. Neighbouring bytes leave in one ``sendmsg``; a slice leaves by ``sendfile`` straight
from the page cache, a bounded piece at a time, so that one client's fifty megabytes do not hold up everybody else. Small
responses are joined into one buffer, which is cheaper than a longer scatter list.
"""

import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import islice

from tidelog.log.reading import LogSlice
from tidelog.ports.disk import Buffer
from tidelog.server.cold_reads import READ_AHEAD_BYTES, is_cached
from tidelog.server.served import Part

# Linux takes at most 1024 buffers in one sendmsg; beyond a few dozen the gain is gone.
SEND_BUFFERS_MAX = 64
# A piece of a slice: about 0.1 ms from the page cache into a socket on this machine.
SLICE_BYTES_PER_CALL = 512 * 1024
# One connection's turn; then the others have theirs. A fetch of the clients' default size, 1 MiB of records, is one turn with its
# fields before and after: a second one for the last few bytes would cost a third of what the first did.
TURN_BYTES_MAX = 1024 * 1024 + 64 * 1024
JOINED_BYTES_MAX = 4096
SMALL_BODY_BYTES_MAX = 1024

_pack_size = struct.Struct(">i").pack


class Outcome(Enum):
    EMPTY = "all was sent"
    FULL = "the socket takes no more now"
    TURN_OVER = "there is more to send, after the others had their turn"
    COLD = "the next range has to be read from the disk first"


class SliceCutShort(Exception):
    """A file ends before its slice does: the response that was begun cannot be finished."""


class Outbox:
    __slots__ = ("_cached_until", "_parts", "_slice_sent", "memory_bytes", "sent_bytes", "unsent_bytes")

    def __init__(self) -> None:
        self._parts: deque[Buffer | LogSlice] = deque()
        # Of the slice that is first in the queue: how much of it has left, and up to where in its file it need not be probed.
        self._slice_sent = 0
        self._cached_until = 0
        self.unsent_bytes = 0
        self.memory_bytes = 0
        """Of the unsent bytes, those that are not in files."""
        self.sent_bytes = 0
        """In all."""

    def put(self, response: Sequence[Part]) -> None:
        if len(response) == 2:
            # A header and a small body: nearly all responses.
            header, body = response
            if type(header) is bytes and type(body) is bytes and len(body) < SMALL_BODY_BYTES_MAX:
                joined = _pack_size(len(header) + len(body)) + header + body
                self._parts.append(joined)
                self.memory_bytes += len(joined)
                self.unsent_bytes += len(joined)
                return
        in_files = in_memory = 0
        found: list[Buffer | LogSlice] = []
        buffers: list[Buffer] = [b""]
        for part in response:
            if isinstance(part, bytes | bytearray | memoryview):
                in_memory += len(part)
                buffers.append(part)
            elif type(part) is LogSlice:
                in_files += part.length
            else:
                raise TypeError(f"{type(part).__name__} cannot be sent")
            found.append(part)
        size = _pack_size(in_files + in_memory)
        in_memory += 4
        parts = self._parts
        if not in_files and in_memory <= JOINED_BYTES_MAX:
            buffers[0] = size
            parts.append(b"".join(buffers))
        else:
            parts.append(size)
            parts.extend(part for part in found if (part.length if type(part) is LogSlice else len(part)))
        self.memory_bytes += in_memory
        self.unsent_bytes += in_files + in_memory

    def send_some(self, to: socket.socket) -> Outcome:
        """Send what fits. Raises OSError (of the socket or the file) and SliceCutShort: then the connection is over."""
        parts = self._parts
        turn_end = self.sent_bytes + TURN_BYTES_MAX
        try:
            while parts:
                if self.sent_bytes >= turn_end:
                    return Outcome.TURN_OVER
                first = parts[0]
                if type(first) is LogSlice:
                    if not self._send_slice(to, first):
                        return Outcome.COLD
                else:
                    self._send_bytes(to)
        except (BlockingIOError, InterruptedError):
            return Outcome.FULL
        return Outcome.EMPTY

    def cold_range(self) -> LogSlice:
        """After COLD: what to read ahead; then ``warmed``."""
        first = self._parts[0]
        assert type(first) is LogSlice, "only slices are cold"
        sent = self._slice_sent
        return LogSlice(first.file, first.position + sent, min(first.length - sent, READ_AHEAD_BYTES))

    def warmed(self, cold: LogSlice) -> None:
        self._cached_until = cold.position + cold.length

    def clear(self) -> None:
        self._parts.clear()
        self.unsent_bytes = self.memory_bytes = 0

    def _send_bytes(self, to: socket.socket) -> None:
        parts = self._parts
        if len(parts) == 1:
            # One small response, most of the time.
            buffers: list[Buffer] = [parts[0]]  # type: ignore[list-item]  # not a slice: the caller looked
            self._sent(buffers, to.send(buffers[0]))
            return
        buffers = []
        flags = 0
        for part in islice(parts, SEND_BUFFERS_MAX):
            if type(part) is LogSlice:
                # The slice follows at once: no packet for the bytes before it alone.
                flags = socket.MSG_MORE
                break
            buffers.append(part)  # type: ignore[arg-type]  # not a slice, so a buffer
        self._sent(buffers, to.sendmsg(buffers, (), flags))

    def _sent(self, buffers: list[Buffer], sent: int) -> None:
        parts = self._parts
        self.sent_bytes += sent
        self.unsent_bytes -= sent
        self.memory_bytes -= sent
        for buffer in buffers:
            length = len(buffer)
            if sent < length:
                if sent:
                    parts[0] = memoryview(buffer)[sent:]
                return
            sent -= length
            parts.popleft()

    def _send_slice(self, to: socket.socket, first: LogSlice) -> bool:
        """False when the next piece is not in the page cache."""
        done = self._slice_sent
        descriptor = first.file.descriptor()
        position = first.position + done
        count = min(first.length - done, SLICE_BYTES_PER_CALL)
        if position + count > self._cached_until and not is_cached(descriptor, position, count):
            return False
        sent = os.sendfile(to.fileno(), descriptor, position, count)
        if not sent:
            raise SliceCutShort(f"{first.file.path} ends before byte {position}, within a response")
        self.sent_bytes += sent
        self.unsent_bytes -= sent
        done += sent
        if done == first.length:
            self._parts.popleft()
            self._slice_sent = self._cached_until = 0
        else:
            self._slice_sent = done
        return True
