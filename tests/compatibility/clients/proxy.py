"""A TCP proxy in front of a broker that notes which requests clients send: API key and version, in order.

The broker must advertise the proxy's address, or clients go past it after their first connection.
"""

import contextlib
import socket
import struct
import threading
from typing import NamedTuple, Self

HOST = "127.0.0.1"
CHUNK_BYTES = 256 * 1024
# Size, API key, version: the start of every request.
_START = struct.Struct(">ihh")
_SIZE_BYTES = 4


class NotedRequest(NamedTuple):
    api_key: int
    version: int


class RecordingProxy:
    """``port`` is known at once; ``target_port`` is set when the broker behind it has started."""

    def __init__(self) -> None:
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self.target_port = 0
        self.requests: list[NotedRequest] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def count(self, api_key: int) -> int:
        return sum(1 for request in list(self.requests) if request.api_key == api_key)

    def versions(self, api_key: int) -> list[int]:
        """In the order in which they were sent, each once."""
        return list(dict.fromkeys(request.version for request in list(self.requests) if request.api_key == api_key))

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
        thread = threading.Thread(target=run, args=arguments, name="recording-proxy", daemon=True)
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
            self._start(self._move, client, broker, _Notes(self.requests))
            self._start(self._move, broker, client, None)

    @staticmethod
    def _move(source: socket.socket, target: socket.socket, notes: "_Notes | None") -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                if notes is not None:
                    notes.take(chunk)
                target.sendall(chunk)
        _shut_down(source)
        _shut_down(target)


class _Notes:
    """Finds where requests start in what one client sends."""

    def __init__(self, requests: list[NotedRequest]) -> None:
        self._requests = requests
        self._start = b""
        self._bytes_to_skip = 0

    def take(self, chunk: bytes) -> None:
        position = 0
        while position < len(chunk):
            skipped = min(self._bytes_to_skip, len(chunk) - position)
            self._bytes_to_skip -= skipped
            position += skipped
            taken = chunk[position : position + _START.size - len(self._start)]
            self._start += taken
            position += len(taken)
            if len(self._start) == _START.size:
                size, api_key, version = _START.unpack(self._start)
                self._requests.append(NotedRequest(api_key, version))
                self._start = b""
                self._bytes_to_skip = size - (_START.size - _SIZE_BYTES)


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
