"""A broker that answers as a test wants: with given messages, with bytes, or by ending the connection."""

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tidelog.wire.messages import DecodedMessage, decode_request, encode_response
from tidelog.wire.protocol import ApiKey, RequestHeader, parse_request_header, response_header

# Ends the connection instead of an answer.
HANG_UP = object()
# Answers nothing, and keeps the connection.
SILENCE = object()

Answer = Mapping[str, Any] | bytes | object


class FakeBroker:
    """``answers[api]`` are given in turn, the last one again and again. ApiVersions is answered from ``versions``."""

    def __init__(self, node_id: int = 1) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self.versions: dict[ApiKey, tuple[int, int]] = {
            ApiKey.API_VERSIONS: (0, 4),
            ApiKey.METADATA: (0, 13),
            ApiKey.FIND_COORDINATOR: (0, 6),
            ApiKey.WRITE_TXN_MARKERS: (1, 2),
            ApiKey.DESCRIBE_PRODUCERS: (0, 0),
            ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
            ApiKey.LIST_TRANSACTIONS: (0, 2),
        }
        self.answers: dict[ApiKey, deque[Answer]] = {}
        self.requests: list[tuple[ApiKey, int, DecodedMessage]] = []
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.answer(ApiKey.METADATA, self.metadata(node_id, {"t": 2}))

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def answer(self, api: ApiKey, *answers: Answer) -> None:
        self.answers[api] = deque(answers)

    def metadata(self, node_id: int, topics: Mapping[str, int], leader: int | None = None) -> dict[str, Any]:
        leader = node_id if leader is None else leader
        return {
            "brokers": [{"node_id": node_id, "host": "127.0.0.1", "port": self.port}],
            "controller_id": node_id,
            "topics": [
                {
                    "error_code": 0,
                    "name": name,
                    "partitions": [
                        {"error_code": 0, "partition_index": index, "leader_id": leader, "replica_nodes": [node_id]}
                        for index in range(count)
                    ],
                }
                for name, count in topics.items()
            ],
        }

    def asked(self, api: ApiKey) -> list[DecodedMessage]:
        return [message for key, _, message in self.requests if key is api]

    def _spawn(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._sockets.append(connection)
                self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while (prefix := connection.recv(4, socket.MSG_WAITALL)) and len(prefix) == 4:
                frame = memoryview(connection.recv(struct.unpack(">i", prefix)[0], socket.MSG_WAITALL))
                header = parse_request_header(frame)
                api = ApiKey(header.api_key)
                self.requests.append((api, header.api_version, decode_request(header, frame)))
                answer = self._next_answer(api)
                if answer is HANG_UP:
                    return
                if answer is not SILENCE:
                    connection.sendall(self._encode(header, answer))

    def _next_answer(self, api: ApiKey) -> Answer:
        if api is ApiKey.API_VERSIONS and api not in self.answers:
            keys = [
                {"api_key": int(key), "min_version": first, "max_version": last} for key, (first, last) in self.versions.items()
            ]
            return {"error_code": 0, "api_keys": keys}
        answers = self.answers[api]
        return answers.popleft() if len(answers) > 1 else answers[0]

    def _encode(self, header: RequestHeader, answer: Answer) -> bytes:
        if isinstance(answer, bytes):
            return answer
        assert isinstance(answer, Mapping)
        body = encode_response(header.api_key, header.api_version, answer)
        message = response_header(header.api_key, header.api_version, header.correlation_id) + body
        return struct.pack(">i", len(message)) + message
