"""No connection and no request on a real socket leaves a reference cycle, however the connection ends.

``tests/broker/test_reference_cycles.py`` covers every API without sockets; this covers the connection around them: the receive
buffer, the send queue, the timers, the descriptors at the event loop, and a client that goes away in the middle of anything.
"""

import gc
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.broker.handlers.test_table import fields_for
from tests.broker.harness import fetch_request, produce_request
from tests.log.harness import batch
from tests.reference_cycles import assert_no_cycles
from tests.server.harness import Client
from tidelog.broker.handlers import TABLE
from tidelog.server.limits import TimingWheel
from tidelog.testing import ThreadBroker
from tidelog.wire.fetch import encode_fetch_request
from tidelog.wire.messages import encode_request
from tidelog.wire.produce import encode_produce_request
from tidelog.wire.protocol import ApiKey, request_header

REQUESTS = 10_000
# These wait for something.
SLOW_REQUESTS = 300
CONNECTIONS = 20
REQUESTS_OF_EACH_API = 20
PIPELINED = 50
FETCH_VERSION, PRODUCE_VERSION = 12, 9
LARGE_BATCH_BYTES = 900_000
OWN_CODECS = (ApiKey.PRODUCE, ApiKey.FETCH)
# A reset instead of an orderly close.
RESET = struct.pack("ii", 1, 0)


def message(api_key: int, version: int, body: bytes) -> bytes:
    return request_header(api_key, version, 1, "test") + body


def produce(acks: int, records: bytes | None = None, topic: str = "orders") -> bytes:
    request = produce_request(topic, records=batch() if records is None else records, acks=acks)
    return message(ApiKey.PRODUCE, PRODUCE_VERSION, encode_produce_request(PRODUCE_VERSION, request))


def fetch(offset: int, wait_ms: int, topic: str = "orders") -> bytes:
    request = fetch_request(topic, offset=offset, wait_ms=wait_ms)
    return message(ApiKey.FETCH, FETCH_VERSION, encode_fetch_request(FETCH_VERSION, request))


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    # What is unread in the kernel is bounded, so that a large response is left in the broker's own queue.
    # Connections are looked at twice in the time that one may be idle, which is when the last references to closed ones go.
    configs = {"socket.send.buffer.bytes": "65536", "connections.max.idle.ms": "3000"}
    with ThreadBroker(configs=configs) as broker:
        address = ("127.0.0.1", broker.port)
        with Client(address) as client:
            topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("orders", "large")]
            fields = {"topics": topics, "timeout_ms": 30_000, "validate_only": False}
            client.ask(message(ApiKey.CREATE_TOPICS, 7, encode_request(ApiKey.CREATE_TOPICS, 7, fields)))
            client.ask(produce(-1))
            client.ask(produce(-1, batch(size=LARGE_BATCH_BYTES), "large"))
        yield address


def ask_pipelined(client: Client, request: bytes, count: int) -> None:
    for begun in range(0, count, PIPELINED):
        together = min(PIPELINED, count - begun)
        client.send(*([request] * together))
        for _ in range(together):
            client.receive()


@pytest.mark.parametrize(
    ("request_message", "count"),
    [
        pytest.param(produce(1), REQUESTS, id="produce"),
        pytest.param(produce(-1), REQUESTS, id="produce that waits for the disk"),
        pytest.param(fetch(0, 0), REQUESTS, id="fetch"),
        pytest.param(fetch(0, 0, "large"), SLOW_REQUESTS, id="fetch of a large batch"),
        pytest.param(fetch(1, 5), SLOW_REQUESTS, id="fetch that times out"),
    ],
)
def test_requests_that_are_answered(address: tuple[str, int], request_message: bytes, count: int) -> None:
    with Client(address) as client:
        assert_no_cycles(lambda count: ask_pipelined(client, request_message, count), count)


def test_a_fetch_that_is_answered_by_data(address: tuple[str, int]) -> None:
    offset = 1

    def work(count: int) -> None:
        nonlocal offset
        for _ in range(count):
            reader.send(fetch(offset, 60_000))
            writer.ask(produce(-1))
            reader.receive()
            offset += 1

    with Client(address) as reader, Client(address) as writer:
        assert_no_cycles(work, SLOW_REQUESTS)


def test_every_api(address: tuple[str, int]) -> None:
    requests = [
        message(api.key, api.versions[1], encode_request(api.key, api.versions[1], fields_for(api, api.versions[1])))
        for api in TABLE.values()
        if api.key not in OWN_CODECS
    ]

    def work(count: int) -> None:
        for request in requests:
            ask_pipelined(client, request, count)

    with Client(address) as client:
        assert_no_cycles(work, REQUESTS_OF_EACH_API)


def _leave_a_waiting_fetch(client: Client) -> None:
    client.send(fetch(1 << 20, 60_000), fetch(1, 60_000))


def _leave_a_produce(client: Client) -> None:
    client.send(*([produce(-1)] * 3))


def _leave_half_a_frame(client: Client) -> None:
    request = produce(-1, batch(size=LARGE_BATCH_BYTES))
    client.socket.sendall(struct.pack(">i", len(request)) + request[: LARGE_BATCH_BYTES // 2])


def _leave_responses_unread(client: Client) -> None:
    client.send(*([fetch(0, 0, "large")] * 4))
    client.receive_exactly(1)


def _send_garbage(client: Client) -> None:
    client.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert client.is_closed_by_server()


LEAVING = (_leave_a_waiting_fetch, _leave_a_produce, _leave_half_a_frame, _leave_responses_unread, _send_garbage)


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_connections_that_close_midway(address: tuple[str, int], is_reset: bool) -> None:
    gc.collect()  # The brokers of earlier tests are gone after this.
    (wheel,) = [found for found in gc.get_objects() if isinstance(found, TimingWheel)]

    def leave_and_wait(leave: Callable[[Client], None]) -> None:
        with Client(address) as leaving:
            leave(leaving)
            # What was sent is handled before this is answered.
            assert other.ask(produce(1))
            if is_reset:
                leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def work(count: int) -> None:
        for _ in range(count):
            for leave in LEAVING:
                leave_and_wait(leave)
        # The wheel refers to a closed connection until its turn comes, and keeps the one that is still open.
        while len(wheel) > 1:
            assert other.ask(produce(1))

    with Client(address) as other:
        assert_no_cycles(work, CONNECTIONS)
