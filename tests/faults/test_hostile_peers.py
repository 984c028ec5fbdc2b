"""Peers that break the protocol, stall, flood or never read: they are answered or cut off, and everybody else is served.

The broker's memory stays within what it had, plus its budget for requests and responses, plus what the kernel and the allocator
round up. Its log has no word of an unexpected error.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from tests.faults.load import wait_until
from tests.faults.peers import (
    SERVED,
    Peer,
    Probe,
    api_versions_request,
    batch_of,
    crowd,
    frame,
    produce_request,
    request,
    rss_bytes,
)
from tests.faults.rounds import create_topic
from tidelog.testing import Broker
from tidelog.wire.fetch import CONSUMER_REPLICA_ID, FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from tidelog.wire.messages import encode_request
from tidelog.wire.protocol import ApiKey

MEBIBYTE = 1 << 20
REQUEST_BYTES_MAX = 16 * MEBIBYTE
QUEUED_BYTES_MAX = 32 * MEBIBYTE
# Beyond the budget: one frame may exceed it, buffers are copied when they grow, and freed memory goes back in its own time.
SLACK_BYTES = 64 * MEBIBYTE
# Of one request of a well-behaved client, on a machine that is busy with the tests themselves.
ANSWER_SECONDS_MAX = 2.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    configs = {"socket.request.max.bytes": REQUEST_BYTES_MAX, "queued.max.request.bytes": QUEUED_BYTES_MAX}
    with Broker(configs=configs) as running:
        yield running


@pytest.fixture(autouse=True)
def others_are_served(broker: Broker) -> Iterator[None]:
    before = rss_bytes(broker)
    with Probe(broker) as probe:
        yield
        wait_until(lambda: bool(probe.seconds), "an answer to the probe")
    assert broker.is_running
    assert max(probe.seconds) < ANSWER_SECONDS_MAX
    assert probe.rss_bytes_max < before + QUEUED_BYTES_MAX + SLACK_BYTES
    assert [line for line in broker.log_lines if not line.startswith("{")] == []
    assert [event for event in broker.events if event["event"] == "unexpected_error" or event.get("level") == "error"] == []


@pytest.mark.parametrize("is_reset", [False, True])
def test_cut_in_the_middle_of_a_frame(broker: Broker, is_reset: bool) -> None:
    whole = api_versions_request(1)
    for length in range(1, len(whole)):
        peer = Peer(broker)
        assert peer.send(whole[:length])
        peer.reset() if is_reset else peer.close()


def test_cut_with_an_answer_under_way(broker: Broker) -> None:
    for _ in range(50):
        peer = Peer(broker)
        peer.send(api_versions_request(1) * 20)
        peer.reset()


@pytest.mark.parametrize("size", [-1, -(2**31), REQUEST_BYTES_MAX + 1, 2**31 - 1])
def test_impossible_sizes_end_the_connection_at_once(broker: Broker, size: int) -> None:
    with Peer(broker) as peer:
        peer.send(struct.pack(">i", size))
        assert peer.is_closed_by_broker()
    with Peer(broker) as peer:
        peer.send(api_versions_request(1))
        assert peer.read_response() is not None
        peer.send(struct.pack(">i", size))
        assert peer.is_closed_by_broker()


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(506),
        b"PING\r\n" * 10,
    ],
    ids=["http", "tls", "redis"],
)
def test_other_protocols(broker: Broker, opening: bytes) -> None:
    with Peer(broker) as peer:
        peer.send(opening)
        assert peer.is_closed_by_broker()


def test_garbage_frames(broker: Broker) -> None:
    random = Random(7)
    for _ in range(300):
        with Peer(broker) as peer:
            peer.send(frame(random.randbytes(random.choice([0, 1, 3, 7, 8, 10, 50, 1000, 50_000]))))
            peer.finish_sending()
            assert peer.is_closed_by_broker()


def test_unknown_api_keys_and_versions(broker: Broker) -> None:
    known = dict.fromkeys(key for key, _ in SERVED)
    for key in (-1, -32768, 1000, 32767, *(key for key in range(93) if key not in known)):
        with Peer(broker) as peer:
            peer.send(frame(struct.pack(">hhih", key, 0, 1, -1)))
            assert peer.is_closed_by_broker()
    for key in known:
        for version in (-1, 99, 32767):
            with Peer(broker) as peer:
                # Without a client id, without tagged fields.
                peer.send(frame(struct.pack(">hhihb", key, version, 1, -1, 0)))
                peer.finish_sending()
                # ApiVersions tells what it serves; the others end.
                assert (peer.read_response() is not None) == (key == ApiKey.API_VERSIONS)


@pytest.mark.parametrize("key", sorted({key for key, _ in SERVED}), ids=lambda key: ApiKey(key).name)
def test_garbage_bodies(broker: Broker, key: int) -> None:
    """Of every API and version: answered or cut off, within the peer's patience."""
    random = Random(key)
    for version in (version for served, version in SERVED if served == key):
        for length in (0, 1, 2, 8, 40, 400):
            # Small values, which make lengths that fit, and large ones.
            for body in (random.randbytes(length), bytes(random.choice((0, 0, 0, 1, 2, 255)) for _ in range(length))):
                with Peer(broker) as peer:
                    peer.send(request(key, version, body) + api_versions_request(2))
                    peer.finish_sending()
                    assert peer.is_closed_by_broker()


def test_a_thousand_connections_that_never_speak(broker: Broker) -> None:
    before = rss_bytes(broker)
    with crowd(broker, 1000), Peer(broker) as speaker:
        speaker.send(api_versions_request(1))
        assert speaker.read_response() is not None
        assert rss_bytes(broker) - before < 60 * MEBIBYTE


def test_many_frames_that_are_begun_and_never_ended(broker: Broker) -> None:
    """Each claims eight megabytes and sends one: together far more than the budget."""
    with crowd(broker, 100) as peers:
        for peer in peers:
            peer.send_some(struct.pack(">i", 8 * MEBIBYTE) + bytes(MEBIBYTE))
        with Peer(broker) as speaker:
            speaker.send(api_versions_request(1))
            assert speaker.read_response() is not None


def test_a_flood_of_requests_whose_answers_are_not_read(broker: Broker) -> None:
    flood = api_versions_request(1) * 200_000
    with crowd(broker, 10, receive_buffer_bytes=4096) as peers:
        taken = [peer.send_some(flood) for peer in peers]
    assert min(taken) < len(flood), "the broker read on although nobody took its answers"


def test_a_flood_that_is_read_at_last_is_answered_in_order(broker: Broker) -> None:
    count = 3_000
    with Peer(broker) as peer:
        assert peer.send(b"".join(api_versions_request(number) for number in range(count)))
        numbers = [int.from_bytes((peer.read_response() or b"")[:4], "big") for _ in range(count)]
    assert numbers == list(range(count))


def test_large_answers_that_are_not_read(broker: Broker) -> None:
    """Metadata of a thousand partitions, asked for again and again."""
    create_topic(broker, "wide", 1000)
    body = encode_request(ApiKey.METADATA, 12, {"topics": None, "allow_auto_topic_creation": False})
    flood = b"".join(request(ApiKey.METADATA, 12, body, number) for number in range(1000))
    with crowd(broker, 20, receive_buffer_bytes=4096) as peers:
        for peer in peers:
            peer.send_some(flood)


def test_readers_that_fetch_everything_and_never_read(broker: Broker) -> None:
    create_topic(broker, "history", 1)
    records = batch_of(900_000)
    with Peer(broker) as writer:
        for number in range(60):
            writer.send(produce_request("history", records, correlation_id=number))
            assert writer.read_response() is not None
    wanted = [FetchTopic("history", None, [FetchPartition(0, 0, 2**31 - 1)])]
    fetch = FetchRequest(CONSUMER_REPLICA_ID, 500, 1, 2**31 - 1, 0, 0, -1, wanted, [], "")
    flood = b"".join(request(ApiKey.FETCH, 12, encode_fetch_request(12, fetch), number) for number in range(200))
    with crowd(broker, 50, receive_buffer_bytes=4096) as peers, Peer(broker) as reader:
        for peer in peers:
            peer.send(flood)
        reader.send(request(ApiKey.FETCH, 12, encode_fetch_request(12, fetch), 1))
        response = reader.read_response()
    assert response is not None
    assert len(response) > 40 * MEBIBYTE


def test_large_requests_pipelined_by_many(broker: Broker) -> None:
    """Together ten times the budget: it takes longer, but each is answered."""
    create_topic(broker, "flood", 1)
    large = produce_request("flood", batch_of(900_000))
    answered = 0
    with crowd(broker, 20) as peers:
        whole = {peer: peer.send_some(large * 20) // len(large) for peer in peers}
        for peer, count in whole.items():
            for _ in range(count):
                assert peer.read_response() is not None
                answered += 1
    assert answered > 20


def test_connections_do_not_pile_up(broker: Broker) -> None:
    """After all of the above, hundreds, only the probe's is left, and those of admin clients that Python has not collected."""
    descriptors = f"/proc/{broker.pid}/fd"

    def sockets() -> int:
        count = 0
        for name in os.listdir(descriptors):
            with suppress(FileNotFoundError):
                count += os.readlink(f"{descriptors}/{name}").startswith("socket:")
        return count

    wait_until(lambda: sockets() < 20, "connections are given up")
