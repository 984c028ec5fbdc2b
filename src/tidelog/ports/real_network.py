"""Non-blocking sockets on an event loop's readiness calls.

It works on any loop with ``add_reader`` and ``add_writer`` (asyncio, uvloop). Each readiness event reads and writes a bounded
number of bytes, so that one fast peer does not starve the others. Outgoing data stays as the caller's buffers in a queue and is
sent by ``sendmsg``, without being joined: a buffer must not change until it is sent.

A reset is noticed at once (``ResetWatch``), although uvloop does not report it.

An endpoint is never called from within a call of its owner: an error in ``send`` or ``connect`` is reported by a later event.
"""

import asyncio
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence

from tidelog.ports.disk import Buffer
from tidelog.ports.network import CONNECTION_REFUSED, Connection, Endpoint, Listener

# Read per readiness event. Large enough for a whole produce request of ordinary size in one call.
READ_BYTES_MAX = 256 * 1024
# Buffers given to one sendmsg; the kernel takes at most 1024 (IOV_MAX).
SEND_BUFFERS_MAX = 256
# Connections accepted per readiness event, and how many may wait in the kernel.
ACCEPTS_MAX = 64
BACKLOG = 1024
# Without a free descriptor accept would fail again at once, so wait until some connection has ended.
ACCEPT_PAUSE_SECONDS = 0.1
CLOSED_BY_PEER = "closed by the peer"

OnReset = Callable[[str], None]


class SocketNetwork:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # One buffer for all connections: reads happen one after the other on the loop's thread.
        self._read_buffer = bytearray(READ_BYTES_MAX)
        self._resets = ResetWatch(loop)
        # asyncio keeps only weak references to tasks: a name being resolved must not be collected.
        self._resolving: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Stop watching for resets. Connections and listeners belong to those who opened them."""
        self._resets.close()

    def listen(self, host: str, port: int, endpoint: Endpoint) -> Listener:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        return _SocketListener(self._loop, listening, endpoint, self._read_buffer, self._resets)

    def connect(self, host: str, port: int, endpoint: Endpoint) -> Connection:
        connection = _SocketConnection(self._loop, endpoint, _address_text((host, port)), self._read_buffer, self._resets)
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
        except socket.gaierror:
            task = self._loop.create_task(self._resolve_and_connect(connection, host, port))
            self._resolving.add(task)
            task.add_done_callback(self._resolving.discard)
        else:
            self._loop.call_soon(connection.begin, family, address)
        return connection

    async def _resolve_and_connect(self, connection: "_SocketConnection", host: str, port: int) -> None:
        try:
            # This runs in a helper thread of the loop: a name server may take seconds to answer.
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            connection.end(f"cannot resolve {host}: {error.strerror or error}")
            return
        family, _, _, _, address = found[0]
        connection.begin(family, address)


class _SocketListener:
    __slots__ = ("_endpoint", "_listening", "_loop", "_open", "_read_buffer", "_resets")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        endpoint: Endpoint,
        read_buffer: bytearray,
        resets: "ResetWatch",
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._endpoint = endpoint
        self._read_buffer = read_buffer
        self._resets = resets
        self._open = True
        self._resume()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listening.getsockname()[:2]
        return host, port

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            if not self._open:
                return
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listening.fileno())
                self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume)
                return
            connection = _SocketConnection(self._loop, self._endpoint, _address_text(address), self._read_buffer, self._resets)
            connection.adopt(accepted)


class _SocketConnection:
    """``_socket`` is None before the connection is begun and after it has ended; ``_connected`` tells the first two apart."""

    __slots__ = (
        "_connected",
        "_ended",
        "_endpoint",
        "_loop",
        "_peer",
        "_read_buffer",
        "_resets",
        "_socket",
        "_unsent",
        "_unsent_bytes",
        "_waiting_to_write",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint, peer: str, read_buffer: bytearray, resets: "ResetWatch"
    ) -> None:
        self._loop = loop
        self._endpoint = endpoint
        self._peer = peer
        self._read_buffer = read_buffer
        self._resets = resets
        self._socket: socket.socket | None = None
        self._unsent: deque[Buffer] = deque()
        self._unsent_bytes = 0
        self._connected = False
        self._ended = False
        self._waiting_to_write = False

    @property
    def peer(self) -> str:
        return self._peer

    def unsent_bytes(self) -> int:
        return self._unsent_bytes

    def send(self, buffers: Sequence[Buffer]) -> None:
        if self._ended:
            return
        unsent = self._unsent
        for buffer in buffers:
            length = len(buffer)
            if length:
                unsent.append(buffer)
                self._unsent_bytes += length
        if self._connected and not self._waiting_to_write and unsent:
            try:
                self._write_some()
            except OSError as error:
                self._loop.call_soon(self.end, _reason(error))
                return
            if unsent:
                self._wait_to_write()

    def close(self) -> None:
        self._ended = True
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._socket is not None:
            self._resets.forget(self._socket.fileno())
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def end(self, reason: str) -> None:
        """Called when the other side or the network ended the connection."""
        if not self._ended:
            self.close()
            self._endpoint.closed(self, reason)

    def adopt(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        self._socket = accepted
        self._established()

    def begin(self, family: int, address: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> None:
        if self._ended:
            return
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            code = self._socket.connect_ex(address)
        except OSError as error:
            self.end(_reason(error))
            return
        if code not in (0, errno.EINPROGRESS):
            self.end(_error_text(code))
            return
        self._loop.add_writer(self._socket.fileno(), self._finish_connect)

    def _finish_connect(self) -> None:
        assert self._socket is not None
        self._loop.remove_writer(self._socket.fileno())
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.end(_error_text(code))
            return
        self._established()

    def _established(self) -> None:
        assert self._socket is not None
        # Replies are whole when they are sent: waiting for more to fill a segment only adds delay.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connected = True
        self._resets.watch(self._socket, self.end)
        self._endpoint.opened(self)
        if not self._ended:
            self._loop.add_reader(self._socket.fileno(), self._readable)
            if self._unsent and not self._waiting_to_write:
                self._wait_to_write()

    def _wait_to_write(self) -> None:
        assert self._socket is not None
        self._waiting_to_write = True
        self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        assert self._socket is not None
        try:
            self._write_some()
        except OSError as error:
            self.end(_reason(error))
            return
        if not self._unsent:
            self._waiting_to_write = False
            self._loop.remove_writer(self._socket.fileno())

    def _write_some(self) -> None:
        """Send the first buffers of the queue with one sendmsg."""
        assert self._socket is not None
        unsent = self._unsent
        buffers = list(unsent) if len(unsent) <= SEND_BUFFERS_MAX else [unsent[i] for i in range(SEND_BUFFERS_MAX)]
        try:
            sent = self._socket.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return
        self._unsent_bytes -= sent
        for buffer in buffers:
            length = len(buffer)
            if sent < length:
                if sent:
                    unsent[0] = memoryview(buffer)[sent:]
                return
            sent -= length
            unsent.popleft()

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            length = self._socket.recv_into(self._read_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.end(_reason(error))
            return
        if length:
            self._endpoint.received(self, bytes(memoryview(self._read_buffer)[:length]))
        else:
            self.end(CLOSED_BY_PEER)


def _address_text(address: Sequence[object]) -> str:
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _error_text(code: int) -> str:
    return CONNECTION_REFUSED if code == errno.ECONNREFUSED else os.strerror(code)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


class ResetWatch:
    """Notices at once that a connection was reset, which the event loop does not report.

    When the kernel reports an error on a descriptor (a reset is one), libuv stops polling it, and uvloop closes its handle
    without calling anybody. The connection would look alive, with everything it holds, until a time limit runs out, and adding a
    reader or writer for that descriptor raises RuntimeError. Nor would a reset be noticed while the connection is neither read
    nor written.

    So every connection is also registered in an epoll of our own that asks for no events and therefore reports only errors and
    hang-ups. The loop watches that epoll's own descriptor like any other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[socket.socket, OnReset]] = {}
        loop.add_reader(self._epoll.fileno(), self._ready)

    def watch(self, connected: socket.socket, on_reset: OnReset) -> None:
        """``on_reset`` is called once, with the reason, unless ``forget`` is called first."""
        descriptor = connected.fileno()
        self._watched[descriptor] = connected, on_reset
        self._epoll.register(descriptor, 0)

    def forget(self, descriptor: int) -> None:
        """Stop watching. Call this before the socket is closed."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _ready(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            watched = self._watched.get(descriptor)
            if watched is None:
                continue  # Handling an earlier descriptor of this round closed this one as well.
            self.forget(descriptor)
            connected, on_reset = watched
            code = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            on_reset(os.strerror(code) if code else CLOSED_BY_PEER)
