"""A proxy that notes which requests clients send: API key and version, in order."""

import contextlib
import socket
import struct
from typing import NamedTuple

from tests.compatibility.clients.tcp_proxy import TcpProxy, shut_down

CHUNK_BYTES = 256 * 1024
# Size, API key, version: the start of every request.
_START = struct.Struct(">ihh")
_SIZE_BYTES = 4


class NotedRequest(NamedTuple):
    api_key: int
    version: int


class RecordingProxy(TcpProxy):
    def __init__(self) -> None:
        self.requests: list[NotedRequest] = []
        super().__init__()

    def count(self, api_key: int) -> int:
        return sum(1 for request in list(self.requests) if request.api_key == api_key)

    def versions(self, api_key: int) -> list[int]:
        """In the order in which they were sent, each once."""
        return list(dict.fromkeys(request.version for request in list(self.requests) if request.api_key == api_key))

    def _join(self, client: socket.socket, broker: socket.socket) -> None:
        self._start(self._move, client, broker, _Notes(self.requests))
        self._start(self._move, broker, client, None)

    @staticmethod
    def _move(source: socket.socket, target: socket.socket, notes: "_Notes | None") -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                if notes is not None:
                    notes.take(chunk)
                target.sendall(chunk)
        shut_down(source)
        shut_down(target)


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
