"""Raw sockets that speak the protocol badly, and a probe that says how well everybody else is served meanwhile."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

from tidelog.broker.handlers import TABLE
from tidelog.records.batch import build_batch
from tidelog.records.record import Record
from tidelog.testing import Broker
from tidelog.wire.messages import encode_request
from tidelog.wire.produce import ProducePartition, ProduceRequest, ProduceTopic, encode_produce_request
from tidelog.wire.protocol import ApiKey, request_header

HOST = "127.0.0.1"
TIMEOUT_SECONDS = 20.0
# Handlers of all APIs and versions that are served.
SERVED = [(api.key, version) for api in TABLE.values() for version in range(api.versions[0], api.versions[1] + 1)]


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def request(api_key: int, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    return frame(request_header(api_key, version, correlation_id, "peer") + body)


def api_versions_request(correlation_id: int) -> bytes:
    fields = {"client_software_name": "probe", "client_software_version": "1"}
    return request(ApiKey.API_VERSIONS, 3, encode_request(ApiKey.API_VERSIONS, 3, fields), correlation_id)


def produce_request(topic: str, records: bytes, acks: int = -1, correlation_id: int = 1) -> bytes:
    wanted = ProduceRequest(None, acks, 10_000, [ProduceTopic(topic, None, [ProducePartition(0, memoryview(records))])])
    return request(ApiKey.PRODUCE, 9, encode_produce_request(9, wanted), correlation_id)


def batch_of(value_bytes: int) -> bytes:
    return batch_of_value(Random(0).randbytes(value_bytes))


def batch_of_value(value: bytes) -> bytes:
    return build_batch([Record(0, time.time_ns() // 1_000_000, None, value, ())])


class Peer:
    """A connection of a client that need not behave."""

    def __init__(self, broker: Broker | int, receive_buffer_bytes: int | None = None) -> None:
        """``broker``: or the port of any."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(TIMEOUT_SECONDS)
        self._socket.connect((HOST, broker if isinstance(broker, int) else broker.port))

    def send(self, data: bytes) -> bool:
        """False when the broker has closed the connection."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def send_some(self, data: bytes) -> int:
        """What the broker takes within a moment; it may well stop reading."""
        self._socket.settimeout(0.2)
        sent = 0
        try:
            while sent < len(data):
                sent += self._socket.send(data[sent : sent + 65_536])
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self._socket.settimeout(TIMEOUT_SECONDS)
        return sent

    def read_response(self) -> bytes | None:
        """None when the connection ends instead. TimeoutError: neither came, which is a hang."""
        size = self._read(4)
        return None if size is None else self._read(struct.unpack(">i", size)[0])

    def read_response_within(self, seconds: float) -> bytes | None:
        """As ``read_response``, for a request that may wait longer than anyone cares."""
        self._socket.settimeout(seconds)
        try:
            return self.read_response()
        finally:
            self._socket.settimeout(TIMEOUT_SECONDS)

    def read_some(self, bytes_max: int) -> int:
        """How much was there. ConnectionResetError: the broker has ended it."""
        received = len(self._socket.recv(bytes_max))
        if not received:
            raise ConnectionResetError
        return received

    def _read(self, length: int) -> bytes | None:
        data = bytearray()
        try:
            while len(data) < length:
                received = self._socket.recv(min(length - len(data), 1 << 20))
                if not received:
                    return None
                data += received
        except ConnectionResetError:
            return None
        return bytes(data)

    def is_closed_by_broker(self) -> bool:
        """Waits for the end; an answer before it is read over."""
        while (response := self.read_response()) is not None:
            assert response
        return True

    def finish_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Gone without a farewell: a reset instead of an end."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@contextmanager
def crowd(broker: Broker, count: int, receive_buffer_bytes: int | None = None) -> Iterator[list[Peer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Peer(broker, receive_buffer_bytes)) for _ in range(count)]


def rss_bytes(broker: Broker, field: str = "VmRSS") -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field}")


class Probe:
    """A well-behaved client in a thread: a request every few milliseconds on a connection of its own, and how long each took."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []
        self.rss_bytes_max = 0
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            with Peer(self._broker) as peer:
                number = 0
                # The first one before the first look: what it watches may be over within milliseconds.
                while number == 0 or not self._is_stopping.wait(0.01):
                    number += 1
                    began = time.perf_counter()
                    peer.send(api_versions_request(number))
                    response = peer.read_response()
                    self.seconds.append(time.perf_counter() - began)
                    assert response is not None, "the probe's connection was closed"
                    assert int.from_bytes(response[:4], "big") == number
                    self.rss_bytes_max = max(self.rss_bytes_max, rss_bytes(self._broker))
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._is_stopping.set()
        self._thread.join(TIMEOUT_SECONDS)
        if self.error is not None:
            raise self.error
        assert self.seconds, "the probe got no answer at all"
