"""The HTTP listener, and peers that wish it no good."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

import pytest

from tidelog.ports import system
from tidelog.server.http import (
    CONNECTIONS_MAX,
    HEADERS_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_INTERVAL_SECONDS,
    Answer,
    Handler,
    HttpListener,
    HttpRequest,
    HttpResponse,
    InvalidRequest,
    parse_head,
)
from tidelog.server.listener import bind

WAIT_SECONDS = 60.0
LARGE = b"x" * 40_000_000


def hello(answer: Answer) -> None:
    answer(HttpResponse(HTTPStatus.OK, b"hello\n"))


def large(answer: Answer) -> None:
    answer(HttpResponse(HTTPStatus.OK, LARGE))


def echo(request: HttpRequest, answer: Answer) -> None:
    answer(HttpResponse(HTTPStatus.OK, f"{request.path} {request.query}\n".encode()))


TREES = {"/tree/": echo}


class Served:
    def __init__(self, listener: HttpListener, loop: asyncio.AbstractEventLoop, address: tuple[str, int]) -> None:
        self.listener = listener
        self.loop = loop
        self.address = address

    def connect(self) -> socket.socket:
        connected = socket.create_connection(self.address, WAIT_SECONDS)
        connected.settimeout(WAIT_SECONDS)
        return connected

    def wait_for_connections(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.listener.connections) != count:
            assert time.monotonic() < deadline, f"{len(self.listener.connections)} connections"
            time.sleep(0.005)


@contextmanager
def serving(routes: Mapping[str, Handler] | None = None, **limits: float) -> Iterator[Served]:
    loop = system.new_event_loop()
    listener = HttpListener(loop, {"/hello": hello, "/large": large} if routes is None else routes, TREES, **limits)
    bound = bind("127.0.0.1", 0)
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    loop.run_until_complete(listener.start(bound))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Served(listener, loop, bound.getsockname())
    finally:
        asyncio.run_coroutine_threadsafe(listener.stop(), loop).result(WAIT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        bound.close()
    assert errors == []


def request(path: str = "/hello", *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: here", *headers, "", "")).encode()


def read_response(connected: socket.socket) -> tuple[int, bytes]:
    """Of a response with a length."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = connected.recv(65536)
        assert more, f"closed after {received!r}"
        received += more
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *headers = head.decode().split("\r\n")
    length = next(int(header.split(":")[1]) for header in headers if header.startswith("Content-Length:"))
    while len(body) < length:
        more = connected.recv(65536)
        assert more, "closed within a response"
        body += more
    assert len(body) == length
    return int(status_line.split()[1]), body


def is_closed(connected: socket.socket) -> bool:
    try:
        return connected.recv(1) == b""
    except ConnectionResetError:
        return True


# -- one request -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: a", HttpRequest("/metrics", False)),
        (b"GET /metrics?name=a HTTP/1.1\r\nhost:a", HttpRequest("/metrics", False, "name=a")),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Close", HttpRequest("/", True)),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0", HttpRequest("/", False)),
        (b"GET / HTTP/1.0", HttpRequest("/", True)),
    ],
)
def test_a_request_that_is_served(head: bytes, expected: HttpRequest) -> None:
    assert parse_head(head) == expected


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", HTTPStatus.BAD_REQUEST),
        (b"GET /", HTTPStatus.BAD_REQUEST),
        (b"GET  / HTTP/1.1\r\nHost: a", HTTPStatus.BAD_REQUEST),
        (b"GET /\xff HTTP/1.1\r\nHost: a", HTTPStatus.BAD_REQUEST),
        (b"\x16\x03\x01\x02\x00\x01\x00", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost : a", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: a\nX: b", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked", HTTPStatus.BAD_REQUEST),
        (b"POST / HTTP/1.1\r\nHost: a", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET / HTTP/2.0\r\nHost: a", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED),
        (b"GET / HTTP/1.1" + b"\r\nX: b" * (HEADERS_MAX + 1), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
def test_a_request_that_is_not(head: bytes, status: HTTPStatus) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_head(head)
    assert caught.value.status is status


# -- connections -------------------------------------------------------------------------------------------------------------


def test_one_connection_serves_one_request_after_the_other() -> None:
    with serving() as served, served.connect() as connected:
        for _ in range(3):
            connected.sendall(request())
            assert read_response(connected) == (200, b"hello\n")
        connected.sendall(request("/tree/leaf%20one?colour=green"))
        assert read_response(connected) == (200, b"/tree/leaf%20one colour=green\n")
        for path in ("/nothing", "/tree", "/tree/"):
            connected.sendall(request(path))
            assert read_response(connected)[0] == 404


def test_requests_at_once_and_byte_by_byte() -> None:
    with serving() as served, served.connect() as connected:
        connected.sendall(request() * 3)
        received = b""
        while received.count(b"hello\n") < 3:
            received += connected.recv(65536)
        for byte in request("/hello", "Connection: close"):
            connected.sendall(bytes([byte]))
        assert read_response(connected) == (200, b"hello\n")
        assert is_closed(connected)


def test_a_client_that_has_finished_speaking_is_answered() -> None:
    with serving() as served, served.connect() as connected:
        connected.sendall(request())
        connected.shutdown(socket.SHUT_WR)
        assert read_response(connected) == (200, b"hello\n")
        assert is_closed(connected)


@pytest.mark.parametrize("sent", [b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", b"nonsense\r\n\r\n", b"x" * REQUEST_BYTES_MAX])
def test_what_is_refused_ends_its_connection(sent: bytes) -> None:
    with serving() as served, served.connect() as connected:
        connected.sendall(sent)
        status, reason = read_response(connected)
        assert status >= 400
        assert reason.endswith(b"\n")
        assert is_closed(connected)
        served.wait_for_connections(0)


def test_a_large_answer_is_whole() -> None:
    with serving() as served, served.connect() as connected:
        connected.sendall(request("/large") + request())
        status, body = read_response_of_known_length(connected, len(LARGE))
        assert status == 200
        assert body == LARGE
        assert read_response(connected) == (200, b"hello\n")


def read_response_of_known_length(connected: socket.socket, length: int) -> tuple[int, bytes]:
    """Without a byte of what follows."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connected.recv(1)
    body = bytearray()
    while len(body) < length:
        body += connected.recv(min(1 << 20, length - len(body)))
    return int(head.split()[1]), bytes(body)


# -- hostile peers -----------------------------------------------------------------------------------------------------------


def test_more_connections_than_there_may_be_are_closed_at_once() -> None:
    with serving() as served:
        held = [served.connect() for _ in range(CONNECTIONS_MAX)]
        try:
            served.wait_for_connections(CONNECTIONS_MAX)
            with served.connect() as one_more:
                assert is_closed(one_more)
            held.pop().close()
            served.wait_for_connections(CONNECTIONS_MAX - 1)
            with served.connect() as another:
                another.sendall(request())
                assert read_response(another) == (200, b"hello\n")
        finally:
            for connected in held:
                connected.close()


def test_who_says_nothing_or_says_it_too_slowly_is_dropped() -> None:
    with serving(receive_seconds_max=0.3) as served, served.connect() as silent, served.connect() as slow:
        began = time.monotonic()
        dropped = False
        while not dropped and time.monotonic() - began < WAIT_SECONDS:
            try:
                # A byte now and then does not buy more time.
                slow.sendall(b"G")
                slow.settimeout(0.02)
                dropped = is_closed(slow)
            except TimeoutError:
                continue
            except OSError:
                dropped = True
        assert dropped
        assert is_closed(silent)


def test_an_idle_connection_is_kept_for_longer_than_a_request_may_take() -> None:
    with serving(receive_seconds_max=1.0, idle_seconds_max=60.0) as served, served.connect() as connected:
        connected.sendall(request())
        read_response(connected)
        connected.settimeout(2.0)
        with pytest.raises(TimeoutError):
            connected.recv(1)
        connected.settimeout(WAIT_SECONDS)
        connected.sendall(request())
        assert read_response(connected) == (200, b"hello\n")


def test_who_does_not_read_the_answer_is_dropped() -> None:
    with serving(answer_seconds_max=1.5) as served, served.connect() as connected:
        connected.sendall(request("/large"))
        served.wait_for_connections(1)
        served.wait_for_connections(0)


def test_who_sends_on_while_the_answer_is_made_is_not_buffered() -> None:
    answers: list[Answer] = []
    with serving({"/held": answers.append}) as served, served.connect() as connected:
        connected.sendall(request("/held"))
        while not answers:
            time.sleep(0.005)
        connected.settimeout(0.5)
        sent = send_until_full(connected)
        # What the kernel holds on both sides, and no byte here.
        assert sent > REQUEST_BYTES_MAX
        assert [len(connection._received) for connection in served.listener.connections] == [0]


def send_until_full(connected: socket.socket) -> int:
    sent = 0
    while True:
        try:
            sent += connected.send(b"x" * 65536)
        except TimeoutError:
            return sent


def test_a_request_with_much_behind_it_ends_its_connection() -> None:
    with serving() as served, served.connect() as connected:
        connected.sendall(request() + b"x" * (REQUEST_BYTES_MAX + 1))
        served.wait_for_connections(0)


def test_an_answer_to_who_has_gone_goes_nowhere() -> None:
    answers: list[Answer] = []
    with serving({"/held": answers.append}, answer_seconds_max=0.3) as served:
        with served.connect() as connected:
            connected.sendall(request("/held"))
            deadline = time.monotonic() + WAIT_SECONDS
            while not answers:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        served.wait_for_connections(0)
        done = threading.Event()

        def answer_late() -> None:
            answers[0](HttpResponse(HTTPStatus.OK, b"too late"))
            done.set()

        served.loop.call_soon_threadsafe(answer_late)
        assert done.wait(WAIT_SECONDS)


def test_requests_are_begun_one_after_the_other_with_time_in_between() -> None:
    begun: list[float] = []

    def note(answer: Answer) -> None:
        begun.append(time.monotonic())
        hello(answer)

    with serving({"/hello": note}) as served:
        peers = [served.connect() for _ in range(4)]
        ask_all(peers, 10)
        for peer in peers:
            peer.close()
    assert len(begun) == 40
    # The loop's clock counts in milliseconds.
    assert begun[-1] - begun[0] >= 39 * (REQUEST_INTERVAL_SECONDS - 0.001)


def ask_all(peers: list[socket.socket], times: int) -> None:
    def ask(peer: socket.socket) -> None:
        for _ in range(times):
            peer.sendall(request())
            assert read_response(peer) == (200, b"hello\n")

    threads = [threading.Thread(target=ask, args=(peer,)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_stop_does_not_wait_for_anybody() -> None:
    answers: list[Answer] = []
    with serving({"/held": answers.append, "/large": large}) as served:
        held, unread, idle = served.connect(), served.connect(), served.connect()
        held.sendall(request("/held"))
        unread.sendall(request("/large"))
        served.wait_for_connections(3)
    for connected in (held, unread, idle):
        connected.close()
