"""Many connections without a client library behind each: raw Produce and Fetch frames on blocking sockets.

A thousand librdkafka clients would be four thousand threads, and they would be what is measured.
"""

import socket
import struct
from time import perf_counter, time_ns

from tidelog.records.batch import build_batch
from tidelog.records.record import Record
from tidelog.wire.fetch import FetchPartition, FetchRequest, FetchTopic, decode_fetch_response, encode_fetch_request
from tidelog.wire.produce import ProducePartition, ProduceRequest, ProduceTopic, encode_produce_request
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

PRODUCE_VERSION, FETCH_VERSION = 9, 12
TIMEOUT_SECONDS = 60.0
FETCH_BYTES_MAX = 1 << 20
_SIZE = struct.Struct(">i")


class RawConnection:
    def __init__(self, bootstrap_servers: str) -> None:
        host, port = bootstrap_servers.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> bytes:
        return self._stream.read(_SIZE.unpack(self._stream.read(_SIZE.size))[0])

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def produce_frame(topic: str, value: bytes) -> bytes:
    records = build_batch([Record(0, time_ns() // 1_000_000, None, value, ())])
    request = ProduceRequest(None, -1, 30_000, [ProduceTopic(topic, None, [ProducePartition(0, memoryview(records))])])
    return framed(ApiKey.PRODUCE, PRODUCE_VERSION, encode_produce_request(PRODUCE_VERSION, request))


def fetch_frame(topic: str, offset: int) -> bytes:
    wanted = FetchTopic(topic, None, [FetchPartition(0, offset, FETCH_BYTES_MAX)])
    request = FetchRequest(-1, 500, 1, FETCH_BYTES_MAX, 0, 0, -1, [wanted], [], "")
    return framed(ApiKey.FETCH, FETCH_VERSION, encode_fetch_request(FETCH_VERSION, request))


def framed(api_key: int, version: int, body: bytes) -> bytes:
    data = request_header(api_key, version, 1, "bench") + body
    return _SIZE.pack(len(data)) + data


def requests_per_second(bootstrap_servers: str, topic: str, connections: int, count: int, value: bytes) -> float:
    """One request under way on each connection; all are sent before the first answer is read."""
    frame = produce_frame(topic, value)
    clients = [RawConnection(bootstrap_servers) for _ in range(connections)]
    try:
        for client in clients:
            client.send(frame)
        for client in clients:
            client.receive()
        turns = max(1, count // connections)
        began = perf_counter()
        for _ in range(turns):
            for client in clients:
                client.send(frame)
            for client in clients:
                client.receive()
        return turns * connections / (perf_counter() - began)
    finally:
        for client in clients:
            client.close()


def read_bytes_per_second(bootstrap_servers: str, topic: str, consumers: int, fetches: int) -> float:
    """Every consumer reads the topic from its beginning, ``fetches`` times a MiB."""
    clients = [RawConnection(bootstrap_servers) for _ in range(consumers)]
    try:
        frame = fetch_frame(topic, 0)
        began, received = perf_counter(), 0
        for _ in range(fetches):
            for client in clients:
                client.send(frame)
            for client in clients:
                received += len(client.receive())
        return received / (perf_counter() - began)
    finally:
        for client in clients:
            client.close()


def check_fetch(bootstrap_servers: str, topic: str) -> int:
    """Bytes of records that one fetch brings: what is measured must be what is meant."""
    client = RawConnection(bootstrap_servers)
    try:
        client.send(fetch_frame(topic, 0))
        frame = memoryview(client.receive())
        _, position = parse_response_header(ApiKey.FETCH, FETCH_VERSION, frame)
        response = decode_fetch_response(FETCH_VERSION, frame, position)
        (fetched,) = response.topics[0].partitions
        return len(fetched.records or b"")
    finally:
        client.close()
