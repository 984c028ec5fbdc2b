"""The queue of a connection's unsent responses: bytes and slices of files, in order.

A response is its size, then its parts. Adjacent bytes are sent in one ``sendmsg``; a slice is sent by ``sendfile`` straight from
the page cache, a bounded piece at a time, so that one client's fifty megabytes do not hold up everybody else. Small responses are
joined into one buffer, which is cheaper than a longer scatter list. A small slice becomes bytes as soon as it is queued, if it is
in the page cache: one read takes the place of two probes and a ``sendfile``, and many such responses share one ``sendmsg``.

A slice holds its file open until it is sent. So each counts for ``OPEN_FILE_BYTES`` of memory: the budget for memory then bounds
the descriptors that clients take which do not read their responses, for all connections together.

Cold reads. ``sendfile`` blocks on a range that is not in the page cache until the disk has delivered it. So ``is_cached`` probes
the range first, with one-byte reads that may not wait (RWF_NOWAIT), every ``PROBE_STEP_BYTES`` and at its end. The kernel reads
ahead at least that much and evicts in order, so holes between two probes are rare and small. A file system that does not support
the flag (tmpfs, which is all memory) counts as cached. ``read_ahead`` reads a cold range in a helper thread and discards the
bytes; the pages stay in the cache.
"""

import errno
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import islice

from tidelog.log.reading import LogSlice
from tidelog.ports.disk import Buffer, DiskFile
from tidelog.ports.system import is_cached, read_cached_into, read_into, send_file, will_need
from tidelog.wire.fetch import RecordsPart
from tidelog.wire.frames import SIZE_FIELD_SIZE

# Linux takes at most 1024 buffers in one sendmsg; beyond a few dozen the gain is gone.
SEND_BUFFERS_MAX = 64
# A piece of a slice: about 0.1 ms from the page cache into a socket on this machine.
SLICE_BYTES_PER_CALL = 512 * 1024
# The maximum of one connection's turn; then the others have theirs. A fetch of the clients' default size, 1 MiB of records with
# the fields before and after, fits into one turn: a second one for the last few bytes would cost a third of what the first did.
TURN_BYTES_MAX = 1024 * 1024 + 64 * 1024
JOINED_BYTES_MAX = 4096
SMALL_BODY_BYTES_MAX = 1024
# Copying more than this costs more than the system calls that it saves.
SMALL_SLICE_BYTES_MAX = 16 * 1024

# With the default budget, some four thousand slices.
OPEN_FILE_BYTES = 64 * 1024

# One trip to a helper thread fetches this much: milliseconds of the disk's time.
READ_AHEAD_BYTES = 2 * 1024 * 1024
_SCRATCH_BYTES = 256 * 1024

_pack_size = struct.Struct(">i").pack

# A response is a list of these: bytes to send, and records, which on real disks are a ``LogSlice``, a range of a segment file.
ResponsePart = Buffer | RecordsPart


class SendState(Enum):
    EMPTY = "everything has been sent"
    FULL = "the socket takes no more for now"
    TURN_OVER = "there is more to send after the other connections have had their turn"
    COLD = "the next range has to be read from the disk first"


class SliceCutShort(Exception):
    """A file ends before its slice does, so the response that was begun cannot be completed."""


class SendQueue:
    __slots__ = ("_cached_until", "_parts", "_slice_sent", "memory_bytes", "sent_bytes", "unsent_bytes")

    def __init__(self) -> None:
        self._parts: deque[Buffer | LogSlice] = deque()
        # How much of the first slice in the queue has been sent, and the position in its file up to which it need not be probed.
        self._slice_sent = 0
        self._cached_until = 0
        self.unsent_bytes = 0
        self.memory_bytes = 0
        """The unsent bytes that are in memory and not in files, and what open files count for."""
        self.sent_bytes = 0
        """The total since the connection opened."""

    def put(self, response: Sequence[ResponsePart]) -> None:
        if len(response) == 2:
            # A header and a small body: nearly all responses.
            header, body = response
            if type(header) is bytes and type(body) is bytes and len(body) < SMALL_BODY_BYTES_MAX:
                joined = _pack_size(len(header) + len(body)) + header + body
                self._parts.append(joined)
                self.memory_bytes += len(joined)
                self.unsent_bytes += len(joined)
                return
        in_files = in_memory = files = 0
        found: list[Buffer | LogSlice] = []
        buffers: list[Buffer] = [b""]
        for part in response:
            if isinstance(part, bytes | bytearray | memoryview):
                in_memory += len(part)
                buffers.append(part)
            elif type(part) is not LogSlice:
                raise TypeError(f"a response cannot contain {type(part).__name__}")
            elif part.length <= SMALL_SLICE_BYTES_MAX and (data := read_cached(part)) is not None:
                in_memory += part.length
                buffers.append(data)
                part = data
            else:
                in_files += part.length
                files += part.length > 0
            found.append(part)
        size = _pack_size(in_files + in_memory)
        in_memory += SIZE_FIELD_SIZE
        parts = self._parts
        if not in_files and in_memory <= JOINED_BYTES_MAX:
            buffers[0] = size
            parts.append(b"".join(buffers))
        else:
            parts.append(size)
            parts.extend(part for part in found if (part.length if type(part) is LogSlice else len(part)))
        self.memory_bytes += in_memory + files * OPEN_FILE_BYTES
        self.unsent_bytes += in_files + in_memory

    def send_some(self, to: socket.socket) -> SendState:
        """Send what the socket takes. After an OSError (from the socket or the file) or a SliceCutShort the connection is
        unusable."""
        parts = self._parts
        turn_end = self.sent_bytes + TURN_BYTES_MAX
        try:
            while parts:
                if self.sent_bytes >= turn_end:
                    return SendState.TURN_OVER
                first = parts[0]
                if type(first) is LogSlice:
                    if not self._send_slice(to, first):
                        return SendState.COLD
                else:
                    self._send_bytes(to)
        except (BlockingIOError, InterruptedError):
            return SendState.FULL
        return SendState.EMPTY

    def cold_range(self) -> LogSlice:
        """The range to read ahead after COLD; call ``warmed`` when that is done."""
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
            buffers: list[Buffer] = [parts[0]]  # type: ignore[list-item]  # the caller checked that it is not a slice
            self._sent(buffers, to.send(buffers[0]))
            return
        buffers = []
        flags = 0
        for part in islice(parts, SEND_BUFFERS_MAX):
            if type(part) is LogSlice:
                # The slice follows at once, so the bytes before it need no packet of their own.
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
        """Returns False when the next piece is not in the page cache."""
        done = self._slice_sent
        descriptor = first.file.descriptor()
        position = first.position + done
        count = min(first.length - done, SLICE_BYTES_PER_CALL)
        if position + count > self._cached_until and not is_cached(descriptor, position, count):
            return False
        sent = send_file(to.fileno(), descriptor, position, count)
        if not sent:
            raise SliceCutShort(f"{first.file.path} ends before byte {position}, in the middle of a response")
        self.sent_bytes += sent
        self.unsent_bytes -= sent
        done += sent
        if done == first.length:
            self._parts.popleft()
            self.memory_bytes -= OPEN_FILE_BYTES
            self._slice_sent = self._cached_until = 0
        else:
            self._slice_sent = done
        return True


def read_cached(slice_: LogSlice) -> bytearray | None:
    """Read a slice without waiting for the disk; None if that is not possible, for whatever reason."""
    data = bytearray(slice_.length)
    descriptor = slice_.file.descriptor()
    try:
        count = read_cached_into(descriptor, (data,), slice_.position)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            return None
        count = read_into(descriptor, (data,), slice_.position)
    return data if count == slice_.length else None


_scratch = threading.local()


def read_ahead(file: DiskFile, position: int, length: int) -> None:
    """Block until the range is in the page cache. Call it in a helper thread. ``file`` stays open until it returns."""
    buffer = getattr(_scratch, "buffer", None)
    if buffer is None:
        buffer = _scratch.buffer = bytearray(_SCRATCH_BYTES)
    descriptor = file.descriptor()
    # Ask for twice as much, so that the disk continues with the next range while this one is being sent.
    will_need(descriptor, position, 2 * length)
    end = position + length
    while position < end:
        count = read_into(descriptor, [memoryview(buffer)[: end - position]], position)
        if not count:
            return
        position += count
