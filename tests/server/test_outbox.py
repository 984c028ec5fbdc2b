"""The outbox on a pair of sockets: what it counts, and when it stops."""

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.log.reading import LogSlice
from tidelog.ports.real_disk import RealDisk
from tidelog.server.limits import Limits
from tidelog.server.outbox import JOINED_BYTES_MAX, SEND_BUFFERS_MAX, SLICE_BYTES_PER_CALL, TURN_BYTES_MAX, Outbox, Outcome

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def segment(tmp_path: Path) -> LogSlice:
    path = tmp_path / "segment.log"
    path.write_bytes(bytes(range(256)) * 16_384)
    return LogSlice(RealDisk().open(str(path), "read"), 0, 256 * 16_384)


def drain(theirs: socket.socket) -> bytes:
    received = b""
    try:
        while data := theirs.recv(1 << 20):
            received += data
    except BlockingIOError:
        pass
    return received


def test_a_response_is_its_size_and_its_parts(pair: Pair) -> None:
    outbox = Outbox()
    outbox.put([b"ab", bytearray(b"c"), memoryview(b"de"), b""])
    assert (outbox.unsent_bytes, outbox.memory_bytes) == (9, 9)
    assert outbox.send_some(pair[0]) is Outcome.EMPTY
    assert drain(pair[1]) == b"\0\0\0\5abcde"
    assert (outbox.unsent_bytes, outbox.memory_bytes, outbox.sent_bytes) == (0, 0, 9)


def test_slices_and_empty_parts(pair: Pair, segment: LogSlice) -> None:
    outbox = Outbox()
    outbox.put([b"", segment._replace(length=3), b"", segment._replace(length=0), segment._replace(position=254, length=3), b"z"])
    assert (outbox.unsent_bytes, outbox.memory_bytes) == (11, 5)
    assert outbox.send_some(pair[0]) is Outcome.EMPTY
    assert drain(pair[1]) == b"\0\0\0\7" + bytes([0, 1, 2, 254, 255, 0]) + b"z"


def test_more_buffers_than_one_call_takes(pair: Pair) -> None:
    outbox = Outbox()
    part = bytes(JOINED_BYTES_MAX)
    for _ in range(SEND_BUFFERS_MAX):
        outbox.put([part, b"end"])
    received = b""
    while outbox.unsent_bytes:
        outbox.send_some(pair[0])
        received += drain(pair[1])
    assert received == (struct.pack(">i", len(part) + 3) + part + b"end") * SEND_BUFFERS_MAX


def test_a_full_socket_and_what_is_left(pair: Pair, segment: LogSlice) -> None:
    outbox = Outbox()
    data = bytes(range(256)) * 4096
    outbox.put([data, segment, b"end"])
    received = b""
    seen = set()
    while outbox.unsent_bytes:
        before = outbox.unsent_bytes
        seen.add(outbox.send_some(pair[0]))
        new = drain(pair[1])
        assert before - outbox.unsent_bytes == len(new)
        received += new
    assert Outcome.FULL in seen
    assert received == struct.pack(">i", len(data) * 5 + 3) + data * 5 + b"end"


def test_a_turn_is_bounded(segment: LogSlice) -> None:
    """On a socket that takes everything."""
    listening = socket.create_server(("127.0.0.1", 0))
    outbox = Outbox()
    outbox.put([segment])
    with listening, socket.create_connection(listening.getsockname()) as ours, listening.accept()[0] as theirs:
        ours.setblocking(False)
        theirs.settimeout(10)
        received = 0
        while outbox.unsent_bytes:
            before = outbox.sent_bytes
            outcome = outbox.send_some(ours)
            sent = outbox.sent_bytes - before
            assert sent <= TURN_BYTES_MAX + SLICE_BYTES_PER_CALL
            assert outcome is not Outcome.TURN_OVER or sent >= TURN_BYTES_MAX
            while received < outbox.sent_bytes:
                received += len(theirs.recv(1 << 20))
        assert received == segment.length + 4


def test_a_fetch_of_the_usual_size_is_one_turn(segment: LogSlice) -> None:
    """And does not keep its client from being read."""
    listening = socket.create_server(("127.0.0.1", 0))
    outbox = Outbox()
    outbox.put([bytes(100), segment._replace(length=1 << 20), b"\0\0\0"])
    assert outbox.unsent_bytes < Limits().unsent_bytes_max
    with listening, socket.create_connection(listening.getsockname()) as ours, listening.accept()[0] as theirs:
        received = bytearray()
        reader = threading.Thread(target=lambda: received.extend(theirs.recv(outbox.unsent_bytes, socket.MSG_WAITALL)))
        reader.start()
        # Blocking: the socket takes everything.
        assert outbox.send_some(ours) is Outcome.EMPTY
        reader.join()
    assert len(received) == outbox.sent_bytes == 4 + 100 + (1 << 20) + 3


def test_a_cold_range_is_asked_for_before_it_is_sent(pair: Pair, segment: LogSlice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.outbox.is_cached", lambda *_: False)
    outbox = Outbox()
    outbox.put([segment._replace(position=5, length=1000), b"end"])
    assert outbox.send_some(pair[0]) is Outcome.COLD
    assert drain(pair[1]) == struct.pack(">i", 1003)
    assert outbox.send_some(pair[0]) is Outcome.COLD
    cold = outbox.cold_range()
    assert (cold.position, cold.length) == (5, 1000)
    outbox.warmed(cold)
    assert outbox.send_some(pair[0]) is Outcome.EMPTY
    assert drain(pair[1]) == (bytes(range(256)) * 5)[5:1005] + b"end"
    # The next slice is another range.
    outbox.put([segment._replace(length=10)])
    assert outbox.send_some(pair[0]) is Outcome.COLD


def test_records_that_are_no_slice_cannot_be_sent() -> None:
    class Elsewhere:
        length = 5

    outbox = Outbox()
    with pytest.raises(TypeError, match="Elsewhere cannot be sent"):
        outbox.put([b"ab", Elsewhere()])
    assert (outbox.unsent_bytes, outbox.memory_bytes) == (0, 0)


def test_clear_forgets_everything(pair: Pair) -> None:
    outbox = Outbox()
    outbox.put([b"abc"])
    outbox.clear()
    assert (outbox.unsent_bytes, outbox.memory_bytes) == (0, 0)
    assert outbox.send_some(pair[0]) is Outcome.EMPTY
    assert drain(pair[1]) == b""
