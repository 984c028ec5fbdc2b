"""A proxy that loses the answers to produce requests: it lets the broker write, swallows some of the
answers, and breaks the connection. So clients send again what is in the log already.
"""

import contextlib
import socket
import struct
import threading

from tests.compatibility.clients.tcp_proxy import TcpProxy, shut_down
from tidelog.wire.protocol import ApiKey

# A request begins with its API key, version and correlation id; a response with its correlation id.
_SIZE = struct.Struct(">i")
_REQUEST_START = struct.Struct(">hhi")


class LossyProxy(TcpProxy):
    def __init__(self, lose_every: int) -> None:
        self._lose_every = lose_every
        self.is_losing = True
        self.lost = 0
        self._answers = 0
        self._lock = threading.Lock()
        super().__init__()

    def _join(self, client: socket.socket, broker: socket.socket) -> None:
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
        shut_down(client)
        shut_down(broker)

    def _move_responses(self, broker: socket.socket, client: socket.socket, produce_ids: set[int]) -> None:
        with contextlib.suppress(OSError):
            while (frame := _read_frame(broker)) is not None:
                (correlation_id,) = _SIZE.unpack_from(frame, _SIZE.size)
                if correlation_id in produce_ids and self._is_lost():
                    break
                client.sendall(frame)
        shut_down(client)
        shut_down(broker)

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
