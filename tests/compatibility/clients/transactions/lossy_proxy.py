"""A TCP proxy in front of a broker that loses the answers to produce requests: it lets the broker write, swallows some of the
answers, and breaks the connection. So clients send again what is in the log already.

The broker must advertise the proxy's address, or clients go past it after their first connection.
"""

import contextlib
import socket
import struct
import threading
from typing import Self

from tidelog.wire.protocol import ApiKey

HOST = "127.0.0.1"
# A request begins with its API key, version and correlation id; a response with its correlation id.
_SIZE = struct.Struct(">i")
_REQUEST_START = struct.Struct(">hhi")


class LossyProxy:
    """``port`` is known at once; ``target_port`` is set when the broker behind it has started."""

    def __init__(self, lose_every: int) -> None:
        self._lose_every = lose_every
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self.target_port = 0
        self.is_losing = True
        self.lost = 0
        self._answers = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def close(self) -> None:
        for sock in (self._server, *self._sockets):
            _shut_down(sock)
        for thread in self._threads:
            thread.join()
        for sock in (self._server, *self._sockets):
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, run: object, *arguments: object) -> None:
        assert callable(run)
        thread = threading.Thread(target=run, args=arguments, name="lossy-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # Closed.
            try:
                broker = socket.create_connection((HOST, self.target_port))
            except OSError:
                client.close()
                continue
            self._sockets += (client, broker)
            produce_ids: set[int] = set()
            self._start(self._move_requests, client, broker, produce_ids)
            self._start(self._move_responses, broker, client, produce_ids)

    @staticmethod
    def _move_requests(client: socket.socket, broker: socket.socket, produce_ids: set[int]) -> None:
        with contextlib.suppress(OSError):
            while (frame := _read_frame(client)) is not None:
                api_key, _, correlation_id = _REQUEST_START.unpack_from(frame, _SIZE.size)
                if api_key == ApiKey.PRODUCE:
                    produce_ids.add(correlation_id)
                broker.sendall(frame)
        _shut_down(client)
        _shut_down(broker)

    def _move_responses(self, broker: socket.socket, client: socket.socket, produce_ids: set[int]) -> None:
        with contextlib.suppress(OSError):
            while (frame := _read_frame(broker)) is not None:
                (correlation_id,) = _SIZE.unpack_from(frame, _SIZE.size)
                if correlation_id in produce_ids and self._is_lost():
                    break
                client.sendall(frame)
        _shut_down(client)
        _shut_down(broker)

    def _is_lost(self) -> bool:
        with self._lock:
            self._answers += 1
            if not self.is_losing or self._answers % self._lose_every:
                return False
            self.lost += 1
            return True


def _read_frame(sock: socket.socket) -> bytes | None:
    start = _read_exactly(sock, _SIZE.size)
    if start is None:
        return None
    body = _read_exactly(sock, *_SIZE.unpack(start))
    return None if body is None else start + body


def _read_exactly(sock: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
