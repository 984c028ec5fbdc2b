"""A small HTTP/1.1 server for a few pages that machines read: GET only, no bodies, and no way to change anything.

It shares the broker's loop, so it must not take much of it, whoever asks: a handful of connections, requests of a few kilobytes,
one request at a time on each connection, and ``REQUEST_INTERVAL_SECONDS`` between any two of them. A peer that is slow to send
its request, or to read the response, is dropped. Anything but a request that is served gets an error status, and the connection
is closed.

A connection is in one of three states, each with its own time limit: idle (no byte of a request yet), receiving (a part of one),
answering (from the whole request until the last byte of the response has gone; nothing is read in the meantime).
"""

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, cast

# One scraper, one health check, and a few people who look: nobody needs more.
CONNECTIONS_MAX = 16
REQUEST_BYTES_MAX = 8 * 1024
HEADERS_MAX = 64
# A scraper keeps its connection between two scrapes, at most a minute apart.
IDLE_SECONDS_MAX = 120.0
RECEIVE_SECONDS_MAX = 10.0
ANSWER_SECONDS_MAX = 30.0
# This allows at most a hundred requests per second, which take some 0.1 ms each.
REQUEST_INTERVAL_SECONDS = 0.01

TEXT = "text/plain; charset=utf-8"

_REQUEST_LINE = re.compile(rb"([A-Za-z]{1,32}) ([!-~]{1,4096}) HTTP/([0-9])\.([0-9])")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_END_OF_HEAD = b"\r\n\r\n"


class HttpResponse(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


Answer = Callable[[HttpResponse], None]
Handler = Callable[[Answer], None]


class HttpRequest(NamedTuple):
    path: str
    is_last: bool
    """Whether the client wants the connection closed after this request."""
    query: str = ""


TreeHandler = Callable[[HttpRequest, Answer], None]
"""Serves all pages whose paths begin alike."""


class InvalidRequest(Exception):
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def parse_head(head: bytes) -> HttpRequest:
    """Parse the request line and the headers, without the empty line."""
    request_line, *header_lines = head.split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(request_line)
    if found is None:
        raise InvalidRequest(HTTPStatus.BAD_REQUEST, "this is not an HTTP request")
    method, target, major, minor = found.groups()
    if major != b"1":
        raise InvalidRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is served")
    if method != b"GET":
        raise InvalidRequest(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is served")
    if len(header_lines) > HEADERS_MAX:
        raise InvalidRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {HEADERS_MAX} headers")
    headers: dict[bytes, bytes] = {}
    for line in header_lines:
        header = _HEADER_LINE.fullmatch(line)
        if header is None:
            raise InvalidRequest(HTTPStatus.BAD_REQUEST, "not a valid header")
        headers[header[1].lower()] = header[2].strip()
    if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
        raise InvalidRequest(HTTPStatus.BAD_REQUEST, "a request must not have a body")
    is_old = minor == b"0"
    if not is_old and b"host" not in headers:
        raise InvalidRequest(HTTPStatus.BAD_REQUEST, "the header Host is missing")
    wishes = headers.get(b"connection", b"").lower()
    path, _, query = target.decode("ascii").partition("?")
    return HttpRequest(path, is_old or b"close" in wishes, query)


class HttpListener:
    """Serves ``routes`` by their path, and ``trees`` by how a path begins. Everything happens on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        routes: Mapping[str, Handler],
        trees: Mapping[str, TreeHandler] | None = None,
        *,
        idle_seconds_max: float = IDLE_SECONDS_MAX,
        receive_seconds_max: float = RECEIVE_SECONDS_MAX,
        answer_seconds_max: float = ANSWER_SECONDS_MAX,
    ) -> None:
        self.loop = loop
        self.routes = routes
        self.trees = trees or {}
        self.idle_seconds_max = idle_seconds_max
        self.receive_seconds_max = receive_seconds_max
        self.answer_seconds_max = answer_seconds_max
        self.connections: dict[_HttpConnection, None] = {}
        self._server: asyncio.Server | None = None
        self._next_at = 0.0

    async def start(self, bound: socket.socket) -> None:
        self._server = await self.loop.create_server(lambda: _HttpConnection(self), sock=bound, backlog=CONNECTIONS_MAX)

    async def stop(self) -> None:
        """Close everything immediately: nobody misses a response from here."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        while self.connections:
            await asyncio.sleep(0)

    def admit(self, begin: Callable[[], None]) -> None:
        """Begin a request now, or when it is its turn. At most one request per connection can wait."""
        now = self.loop.time()
        begin_at = max(now, self._next_at)
        self._next_at = begin_at + REQUEST_INTERVAL_SECONDS
        self.loop.call_later(begin_at - now, begin)


class _HttpConnection(asyncio.Protocol):
    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._request: HttpRequest | None = None
        self._is_answered = False
        self._is_writing_paused = False
        self._timer: asyncio.TimerHandle | None = None

    # -- called by the loop --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have all methods of asyncio.Transport but do not derive from it.
        connected = cast(asyncio.Transport, transport)
        if len(self._listener.connections) >= CONNECTIONS_MAX:
            connected.abort()
            return
        self._transport = connected
        self._listener.connections[self] = None
        # Writing is over when nothing is buffered any more; only then is the next request handled.
        connected.set_write_buffer_limits(high=0)
        self._limit(self._listener.receive_seconds_max)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if not self._received and self._request is None:
            self._limit(self._listener.receive_seconds_max)
        self._received += data
        if self._request is None:
            self._look_for_request()
        if self._request is not None and len(self._received) > REQUEST_BYTES_MAX:
            # Nothing is read while a request is answered, so all of this arrived together with it.
            self.abort()

    def eof_received(self) -> bool:
        """Keep the connection: a client that has finished sending may still wait for its response."""
        if self._request is not None:
            self._request = self._request._replace(is_last=True)
        return self._request is not None

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._is_answered:
            self._written()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter here
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._listener.connections.pop(self, None)

    # -- one request after the other -----------------------------------------------------------------------------------------

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _limit(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._listener.loop.call_later(seconds, self.abort)

    def _look_for_request(self) -> None:
        end = self._received.find(_END_OF_HEAD, 0, REQUEST_BYTES_MAX)
        if end < 0:
            if len(self._received) >= REQUEST_BYTES_MAX:
                self._refuse(InvalidRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {REQUEST_BYTES_MAX} bytes"))
            return
        head = bytes(self._received[:end])
        del self._received[: end + len(_END_OF_HEAD)]
        try:
            self._request = parse_head(head)
        except InvalidRequest as error:
            self._refuse(error)
            return
        self._begin_answering()
        self._listener.admit(self._serve)

    def _refuse(self, error: InvalidRequest) -> None:
        self._request = HttpRequest("", is_last=True)
        self._begin_answering()
        self._answer(HttpResponse(error.status, f"{error}\n".encode()))

    def _begin_answering(self) -> None:
        assert self._transport is not None
        self._is_answered = False
        self._transport.pause_reading()
        self._limit(self._listener.answer_seconds_max)

    def _serve(self) -> None:
        if self._request is None or self._transport is None:
            return  # The client is gone.
        path, listener = self._request.path, self._listener
        handler = listener.routes.get(path)
        tree = next((tree for prefix, tree in listener.trees.items() if path.startswith(prefix) and path != prefix), None)
        if handler is not None:
            handler(self._answer)
        elif tree is not None:
            tree(self._request, self._answer)
        else:
            pages = ", ".join([*listener.routes, *(f"{prefix}..." for prefix in listener.trees)])
            self._answer(HttpResponse(HTTPStatus.NOT_FOUND, f"there is no such page; the pages are {pages}\n".encode()))

    def _answer(self, response: HttpResponse) -> None:
        transport, request = self._transport, self._request
        if transport is None or request is None:
            return  # The client is gone.
        transport.write(_head(response, request.is_last) + response.body)
        self._is_answered = True
        if not self._is_writing_paused:
            self._written()

    def _written(self) -> None:
        transport, request = self._transport, self._request
        if transport is None or request is None:
            return
        self._is_answered = False
        if request.is_last:
            transport.close()
            return
        self._request = None
        transport.resume_reading()
        self._limit(self._listener.receive_seconds_max if self._received else self._listener.idle_seconds_max)
        if self._received:
            self._look_for_request()


def _head(response: HttpResponse, is_last: bool) -> bytes:
    status = response.status
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: no-store",
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET")
    if is_last:
        lines.append("Connection: close")
    return "\r\n".join((*lines, "", "")).encode("ascii")
