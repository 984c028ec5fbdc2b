"""The queue on a pair of sockets: what it counts, and when it stops."""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.log.reading import LogSlice
from tidelog.ports import system
from tidelog.ports.disk import DiskFile
from tidelog.ports.real_disk import RealDisk
from tidelog.ports.system import PROBE_STEP_BYTES, is_cached
from tidelog.server import send_queue
from tidelog.server.limits import ConnectionLimits
from tidelog.server.send_queue import (
    JOINED_BYTES_MAX,
    OPEN_FILE_BYTES,
    SEND_BUFFERS_MAX,
    SLICE_BYTES_PER_CALL,
    SMALL_SLICE_BYTES_MAX,
    TURN_BYTES_MAX,
    ResponsePart,
    SendQueue,
    SendState,
    SliceCutShort,
    read_ahead,
)

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
    queue = SendQueue()
    queue.put([b"ab", bytearray(b"c"), memoryview(b"de"), b""])
    assert (queue.unsent_bytes, queue.memory_bytes) == (9, 9)
    assert queue.send_some(pair[0]) is SendState.EMPTY
    assert drain(pair[1]) == b"\0\0\0\5abcde"
    assert (queue.unsent_bytes, queue.memory_bytes, queue.sent_bytes) == (0, 0, 9)


def test_slices_and_empty_parts(pair: Pair, segment: LogSlice) -> None:
    """Small slices are read at once; a large one stays in its file."""
    queue = SendQueue()
    size = SMALL_SLICE_BYTES_MAX + 1
    parts: list[ResponsePart] = [
        segment._replace(length=3),
        b"",
        segment._replace(length=0),
        segment._replace(position=254, length=size),
    ]
    queue.put([b"", *parts, b"z"])
    assert (queue.unsent_bytes, queue.memory_bytes) == (4 + 3 + size + 1, 4 + 3 + 1 + OPEN_FILE_BYTES)
    assert queue.send_some(pair[0]) is SendState.EMPTY
    expected = struct.pack(">i", 3 + size + 1) + bytes([0, 1, 2]) + (bytes(range(256)) * (size // 256 + 2))[254 : 254 + size]
    assert drain(pair[1]) == expected + b"z"
    assert (queue.unsent_bytes, queue.memory_bytes) == (0, 0)


def test_many_small_fetches_are_one_call(pair: Pair, segment: LogSlice, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise AssertionError("a small slice is not worth a sendfile")

    monkeypatch.setattr(send_queue, "send_file", refuse)
    queue = SendQueue()
    for number in range(SEND_BUFFERS_MAX):
        queue.put([b"head", segment._replace(position=number, length=2), b"tail"])
    assert queue.send_some(pair[0]) is SendState.EMPTY
    expected = [b"\0\0\0\x0ahead" + bytes([number, number + 1]) + b"tail" for number in range(SEND_BUFFERS_MAX)]
    assert drain(pair[1]) == b"".join(expected)


@pytest.mark.parametrize("error", [BlockingIOError(11, "cold"), OSError(5, "Input/output error")])
def test_a_small_slice_that_cannot_be_read_at_once_stays_in_its_file(
    error: OSError, pair: Pair, segment: LogSlice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason, sending finds out and deals with it."""

    def refuse(*_: object) -> int:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(send_queue, "read_cached_into", refuse)
        queue = SendQueue()
        queue.put([segment._replace(length=3)])
        assert (queue.unsent_bytes, queue.memory_bytes) == (7, 4 + OPEN_FILE_BYTES)
    assert queue.send_some(pair[0]) is SendState.EMPTY
    assert drain(pair[1]) == b"\0\0\0\3" + bytes([0, 1, 2])


def test_a_small_slice_beyond_the_end_of_its_file_cuts_the_response_short(pair: Pair, segment: LogSlice) -> None:
    queue = SendQueue()
    queue.put([segment._replace(position=segment.length - 2, length=3)])
    with pytest.raises(SliceCutShort):
        queue.send_some(pair[0])


def test_more_buffers_than_one_call_takes(pair: Pair) -> None:
    queue = SendQueue()
    part = bytes(JOINED_BYTES_MAX)
    for _ in range(SEND_BUFFERS_MAX):
        queue.put([part, b"end"])
    received = b""
    while queue.unsent_bytes:
        queue.send_some(pair[0])
        received += drain(pair[1])
    assert received == (struct.pack(">i", len(part) + 3) + part + b"end") * SEND_BUFFERS_MAX


def test_a_full_socket_and_what_is_left(pair: Pair, segment: LogSlice) -> None:
    queue = SendQueue()
    data = bytes(range(256)) * 4096
    queue.put([data, segment, b"end"])
    received = b""
    seen = set()
    while queue.unsent_bytes:
        before = queue.unsent_bytes
        seen.add(queue.send_some(pair[0]))
        new = drain(pair[1])
        assert before - queue.unsent_bytes == len(new)
        received += new
    assert SendState.FULL in seen
    assert received == struct.pack(">i", len(data) * 5 + 3) + data * 5 + b"end"


def test_a_turn_is_bounded(segment: LogSlice) -> None:
    """On a socket that takes everything."""
    listening = socket.create_server(("127.0.0.1", 0))
    queue = SendQueue()
    queue.put([segment])
    with listening, socket.create_connection(listening.getsockname()) as ours, listening.accept()[0] as theirs:
        ours.setblocking(False)
        theirs.settimeout(10)
        received = 0
        while queue.unsent_bytes:
            before = queue.sent_bytes
            outcome = queue.send_some(ours)
            sent = queue.sent_bytes - before
            assert sent <= TURN_BYTES_MAX + SLICE_BYTES_PER_CALL
            assert outcome is not SendState.TURN_OVER or sent >= TURN_BYTES_MAX
            while received < queue.sent_bytes:
                received += len(theirs.recv(1 << 20))
        assert received == segment.length + 4


def test_a_fetch_of_the_usual_size_is_one_turn(segment: LogSlice) -> None:
    """And does not keep its client from being read."""
    listening = socket.create_server(("127.0.0.1", 0))
    queue = SendQueue()
    queue.put([bytes(100), segment._replace(length=1 << 20), b"\0\0\0"])
    assert queue.unsent_bytes < ConnectionLimits().unsent_bytes_max
    with listening, socket.create_connection(listening.getsockname()) as ours, listening.accept()[0] as theirs:
        received = bytearray()
        reader = threading.Thread(target=lambda: received.extend(theirs.recv(queue.unsent_bytes, socket.MSG_WAITALL)))
        reader.start()
        # Blocking: the socket takes everything.
        assert queue.send_some(ours) is SendState.EMPTY
        reader.join()
    assert len(received) == queue.sent_bytes == 4 + 100 + (1 << 20) + 3


def test_a_cold_range_is_asked_for_before_it_is_sent(pair: Pair, segment: LogSlice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.send_queue.is_cached", lambda *_: False)
    queue = SendQueue()
    queue.put([segment._replace(position=5, length=20_000), b"end"])
    assert queue.send_some(pair[0]) is SendState.COLD
    assert drain(pair[1]) == struct.pack(">i", 20_003)
    assert queue.send_some(pair[0]) is SendState.COLD
    cold = queue.cold_range()
    assert (cold.position, cold.length) == (5, 20_000)
    queue.warmed(cold)
    assert queue.send_some(pair[0]) is SendState.EMPTY
    assert drain(pair[1]) == (bytes(range(256)) * 80)[5:20_005] + b"end"
    # The next slice is another range.
    queue.put([segment._replace(length=20_000)])
    assert queue.send_some(pair[0]) is SendState.COLD


def test_records_that_are_no_slice_cannot_be_sent() -> None:
    class Elsewhere:
        length = 5

    queue = SendQueue()
    with pytest.raises(TypeError, match="a response cannot contain Elsewhere"):
        queue.put([b"ab", Elsewhere()])
    assert (queue.unsent_bytes, queue.memory_bytes) == (0, 0)


def test_clear_forgets_everything(pair: Pair) -> None:
    queue = SendQueue()
    queue.put([b"abc"])
    queue.clear()
    assert (queue.unsent_bytes, queue.memory_bytes) == (0, 0)
    assert queue.send_some(pair[0]) is SendState.EMPTY
    assert drain(pair[1]) == b""


SIZE = 8 * PROBE_STEP_BYTES


@pytest.fixture
def file(tmp_path: Path) -> DiskFile:
    path = tmp_path / "segment.log"
    path.write_bytes(bytes(SIZE))
    opened = RealDisk().open(str(path), "read")
    os.fsync(opened.descriptor())
    return opened


def drop(file: DiskFile) -> None:
    """A page that somebody else is looking at stays, so the kernel is asked again. Only one is probed: a probe may make the
    kernel read ahead."""
    os.posix_fadvise(file.descriptor(), 0, 0, os.POSIX_FADV_RANDOM)
    for _ in range(100):
        RealDisk().drop_cache(file.path)
        if not is_cached(file.descriptor(), SIZE // 2, 1):
            RealDisk().drop_cache(file.path)
            return
    pytest.skip("this file system keeps its pages, or cannot be asked about them")


def is_cold_after_a_drop(file: DiskFile, position: int, length: int) -> bool:
    """The kernel may keep a page that it is about to put on another list, and may read ahead at any probe: it is asked again."""
    for _ in range(100):
        RealDisk().drop_cache(file.path)
        if not is_cached(file.descriptor(), position, length):
            return True
    return False


def test_what_was_written_is_cached_and_what_was_dropped_is_not(file: DiskFile) -> None:
    assert is_cached(file.descriptor(), 0, SIZE)
    drop(file)
    assert is_cold_after_a_drop(file, 0, SIZE)
    assert is_cold_after_a_drop(file, SIZE - 1, 1)


def test_reading_ahead_brings_a_range_into_the_cache(file: DiskFile) -> None:
    drop(file)
    read_ahead(file, 100, SIZE - 100)
    assert is_cached(file.descriptor(), 100, SIZE - 100)


@pytest.mark.parametrize("cold", [range(1), range(SIZE - 1, SIZE), range(PROBE_STEP_BYTES, 2 * PROBE_STEP_BYTES)])
def test_a_range_with_a_cold_part_is_cold(cold: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's answers are played: what else it keeps or drops is its own business."""

    def probe(descriptor: int, buffers: object, position: int) -> int:
        assert descriptor == 5
        if position in cold:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(system, "read_cached_into", probe)
    assert not is_cached(5, 0, SIZE)
    assert is_cached(5, cold.stop, 1)
    if cold.start:
        assert is_cached(5, 0, cold.start)


def test_reading_ahead_ends_with_the_file(file: DiskFile) -> None:
    read_ahead(file, SIZE - 10, 1000)
    read_ahead(file, SIZE + 10, 1000)


def test_an_error_of_the_file_is_not_taken_for_an_answer() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        is_cached(-1, 0, 1)


def test_a_file_system_that_cannot_be_asked_counts_as_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(system, "read_cached_into", refuse)
    monkeypatch.setattr(send_queue, "read_cached_into", refuse)
    assert is_cached(0, 0, 1)
