"""A server on a loop in a thread, with a broker that does what the frames say, and blocking sockets as its clients.

Frames are words: ``echo <anything>``, ``size <n>`` (a response of n bytes), ``length <anything>``, ``slice <position>
<length>`` (of ``broker.file``), ``both <position> <length>`` (bytes, a slice, bytes), ``hold`` (answered by ``release``),
``mute`` (answered at once, then nothing is wanted until ``unmute``), ``work <ms>`` (of the processor), ``block <ms>`` (in a
system call), ``collect <ms>`` (by the cycle collector), ``import`` (a module whose import takes long), ``nothing`` (as acks=0),
``close``, ``raise``.
"""

import gc
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tidelog.log.reading import LogSlice
from tidelog.ports import system
from tidelog.ports.clock import RealClock
from tidelog.ports.disk import DiskFile
from tidelog.ports.real_executor import ThreadExecutor
from tidelog.server.connection import ClientConnection
from tidelog.server.limits import ConnectionLimits
from tidelog.server.listener import bind_all
from tidelog.server.reactor import OnDone
from tidelog.server.send_queue import ResponsePart
from tidelog.server.server import Server

MIB = 1024 * 1024
IN_FLIGHT_MAX = 100
WAIT_SECONDS = 60.0
SLOW_IMPORT_MS = 40
IMPORTED_MODULE = "tests.server.imported_slowly"


def work(milliseconds: int) -> None:
    until = time.thread_time() + milliseconds / 1000
    while time.thread_time() < until:
        pass


class WordSession:
    def __init__(
        self,
        broker: "WordBroker",
        send: Callable[[list[ResponsePart]], None],
        close: Callable[[str], None],
        resume: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._resume = resume
        self.is_muted = False
        self._send = send
        self._close = close
        self._slots: deque[list[list[ResponsePart] | None]] = deque()
        self.is_closed = False
        self.received_ns = 0

    @property
    def wants_reading(self) -> bool:
        return len(self._slots) < IN_FLIGHT_MAX and not self.is_muted

    @property
    def in_flight(self) -> int:
        return len(self._slots)

    def receive(self, frame: memoryview, received_ns: int) -> int:
        self.received_ns = received_ns
        self._broker.received.append(bytes(frame[:64]))
        word, _, rest = bytes(frame).partition(b" ")
        if word == b"close":
            self._close("told to")
            return len(frame)
        if word == b"raise":
            raise RuntimeError("told to")
        slot: list[list[ResponsePart] | None] = [None]
        self._slots.append(slot)
        if word == b"hold":
            self._broker.held.append((self, slot))
        else:
            self.fill(slot, self._answer(word, rest))
        return len(frame)

    def _answer(self, word: bytes, rest: bytes) -> list[ResponsePart]:
        if word == b"echo":
            return [b"ec", memoryview(b"ho "), rest]
        if word == b"size":
            return [bytes(int(rest))]
        if word == b"length":
            return [b"%d" % len(rest)]
        if word == b"mute":
            self.is_muted = True
            return [b"muted"]
        if word == b"work":
            work(int(rest))
            return [b"worked"]
        if word == b"block":
            time.sleep(int(rest) / 1000)
            return [b"done"]
        if word == b"collect":
            until = time.thread_time() + int(rest) / 1000
            while time.thread_time() < until:
                gc.collect()
            return [b"done"]
        if word == b"import":
            work(SLOW_IMPORT_MS)
            sys.modules[IMPORTED_MODULE] = sys
            return [b"done"]
        if word == b"nothing":
            return []
        position, length = map(int, rest.split())
        assert self._broker.file is not None
        piece = LogSlice(self._broker.file, position, length)
        return [b"<", piece, b">"] if word == b"both" else [piece]

    def fill(self, slot: list[list[ResponsePart] | None], parts: list[ResponsePart]) -> None:
        slot[0] = parts
        while self._slots and self._slots[0][0] is not None:
            ready = self._slots.popleft()[0]
            if ready and not self.is_closed:
                self._send(ready)

    def unmute(self) -> None:
        self.is_muted = False
        self._resume()

    def closed(self) -> None:
        self.is_closed = True


class WordBroker:
    def __init__(self) -> None:
        self.file: DiskFile | None = None
        self.received: list[bytes] = []
        self.held: list[tuple[WordSession, list[list[ResponsePart] | None]]] = []
        self.sessions: list[WordSession] = []
        self.leaves_slowly = False
        self.on_left: Callable[[], None] | None = None
        self.connection_throttles: list[int] = []
        self.bursts = 0
        self.ticks = 0
        self.deadline_ms: int | None = None
        self.stops = 0
        self.on_stopped: OnDone | None = None
        self.stop_error: Exception | None = None
        self.start_error: Exception | None = None
        self.controller_listeners: frozenset[int] = frozenset()

    def session(
        self,
        client_host: str,
        send: Callable[[list[ResponsePart]], None],
        close: Callable[[str], None],
        resume: Callable[[], None],
        listener_index: int,
    ) -> WordSession:
        assert client_host == "127.0.0.1"
        session = WordSession(self, send, close, resume)
        self.sessions.append(session)
        return session

    def connection_throttle_ms(self, client_host: str) -> int:
        assert client_host == "127.0.0.1"
        return self.connection_throttles.pop(0) if self.connection_throttles else 0

    def start(self, on_started: OnDone) -> None:
        on_started(self.start_error)

    def leave(self, on_left: Callable[[], None]) -> None:
        if self.leaves_slowly:
            self.on_left = on_left
        else:
            on_left()

    def begin_stop(self, on_stopped: OnDone) -> None:
        """Stops at the next tick, as a broker that has work under way."""
        self.deadline_ms = 0
        self.on_stopped = on_stopped

    def tick(self) -> None:
        self.ticks += 1
        self.deadline_ms = None
        if self.on_stopped is not None:
            self.stops += 1
            self.on_stopped(self.stop_error)

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def end_of_burst(self) -> None:
        self.bursts += 1

    def release(self) -> None:
        """Answer what is held, the last first."""
        while self.held:
            session, slot = self.held.pop()
            session.fill(slot, [b"released"])


class Client:
    """A blocking client."""

    def __init__(self, address: tuple[str, int], receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(WAIT_SECONDS)
        try:
            self.socket.connect(address)
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(framed(frame) for frame in frames))

    def receive_exactly(self, length: int) -> bytes:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            count = self.socket.recv_into(view)
            if not count:
                raise EOFError(f"{len(view)} bytes are missing")
            view = view[count:]
        return bytes(data)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self.receive_exactly(4))
        return self.receive_exactly(size)

    def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.receive()

    def is_closed_by_server(self) -> bool:
        """Waits for it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


class RunningServer:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.broker = WordBroker()
        self.loop = system.new_event_loop()
        self.executor = ThreadExecutor(wake=self.loop.call_soon_threadsafe)
        self.events: list[tuple[str, dict[str, object]]] = []
        self.server = Server(self.loop, self.broker, RealClock(), self.executor, limits, self._report)
        self.server.listen(bind_all([("127.0.0.1", 0)]))
        self.address = self.server.addresses[0]
        self.errors: list[dict[str, Any]] = []
        self.reasons: list[str] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self._note_reasons()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def _report(self, event: str, facts: dict[str, object]) -> None:
        self.events.append((event, facts))

    def _note_reasons(self) -> None:
        closed = self.server.reactor.closed

        def noted(connection: Any, reason: str) -> None:
            self.reasons.append(reason)
            closed(connection, reason)

        self.server.reactor.closed = noted  # type: ignore[method-assign]  # what is otherwise only logged

    def call(self, function: Callable[[], Any]) -> Any:
        """Run it on the loop's thread."""
        done = threading.Event()
        result: list[Any] = []

        def run() -> None:
            result.append(function())
            done.set()

        self.loop.call_soon_threadsafe(run)
        assert done.wait(WAIT_SECONDS)
        return result[0]

    def client(self, receive_buffer_bytes: int | None = None) -> Client:
        return Client(self.address, receive_buffer_bytes)

    def connections(self) -> list[ClientConnection]:
        return list(self.server.reactor.connections)

    def connection_count(self) -> int:
        return len(self.server.reactor.connections)

    def stop(self) -> None:
        stopped = threading.Event()
        self.loop.call_soon_threadsafe(self.server.begin_stop, lambda _: stopped.set())
        assert stopped.wait(WAIT_SECONDS)

    def close(self) -> None:
        def close_all() -> None:
            for listener in self.server.listeners:
                listener.close()
            for connection in list(self.server.reactor.connections):
                connection.close("the test is over")

        self.call(close_all)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.executor.close(wait=False)
        self.loop.close()
        assert not self.errors, self.errors


@contextmanager
def running_server(limits: ConnectionLimits | None = None) -> Iterator[RunningServer]:
    running = RunningServer(limits or ConnectionLimits())
    try:
        yield running
    finally:
        running.close()
