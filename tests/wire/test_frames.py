"""Every stream is run whole, byte by byte, in chance pieces, and with more bytes behind it."""

import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.wire.frames import (
    BUFFER_SIZE,
    SMALL_FRAMES_BEFORE_SHRINKING,
    WRITABLE_SIZE_MIN,
    FrameReader,
    FrameTooLarge,
    InvalidFrame,
    NegativeFrameSize,
)

SIZE_MAX = 1024 * 1024

STREAMS = {
    "no frame": [],
    "an empty frame": [b""],
    "a small frame": [b"hello"],
    "small frames": [b"one", b"", b"three", b"four"],
    "many small frames": [bytes([number % 256]) * (number % 97) for number in range(2000)],
    "a frame that fills the buffer": [b"x" * (BUFFER_SIZE - 4)],
    "a frame of the buffer's size": [b"y" * BUFFER_SIZE, b"after"],
    "a frame one larger than the buffer": [b"y" * (BUFFER_SIZE + 1), b"after"],
    "large between small": [b"a", b"b" * 100_000, b"c", b"d" * 70_000, b"e"],
}


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def feed(reader: FrameReader, data: bytes, pieces: Callable[[int], int]) -> Iterator[bytes]:
    """The frames of ``data``, received in pieces of at most so many bytes as ``pieces`` says of what remains."""
    position = 0
    while position < len(data):
        room = reader.writable()
        left = len(data) - position
        length = min(len(room), left, pieces(left))
        room[:length] = data[position : position + length]
        reader.received(length)
        position += length
        while (found := reader.next_frame()) is not None:
            assert found.readonly
            yield bytes(found)


@pytest.mark.parametrize("frames", STREAMS.values(), ids=STREAMS)
class TestStreams:
    def test_whole(self, frames: list[bytes]) -> None:
        reader = FrameReader(SIZE_MAX)
        assert list(feed(reader, b"".join(map(frame, frames)), lambda left: left)) == frames
        assert not reader.is_inside_frame

    @pytest.mark.parametrize("step", [1, 3, 4, 5, 4099])
    def test_in_pieces(self, frames: list[bytes], step: int) -> None:
        reader = FrameReader(SIZE_MAX)
        assert list(feed(reader, b"".join(map(frame, frames)), lambda left: step)) == frames
        assert not reader.is_inside_frame

    @pytest.mark.parametrize("trailing", [b"\0", b"\0\0\0\5", b"\0\0\0\5abcd"])
    def test_with_trailing_data(self, frames: list[bytes], trailing: bytes) -> None:
        reader = FrameReader(SIZE_MAX)
        assert list(feed(reader, b"".join(map(frame, frames)) + trailing, lambda left: left)) == frames
        assert reader.is_inside_frame


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 200) | st.integers(BUFFER_SIZE - 8, BUFFER_SIZE + 8) | st.integers(0, 150_000), max_size=12),
    cuts=st.lists(st.integers(50, 100_000), min_size=1, max_size=20),
)
def test_any_sizes_in_any_pieces(sizes: list[int], cuts: list[int]) -> None:
    frames = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    reader = FrameReader(SIZE_MAX)
    calls = iter(range(1 << 30))
    assert list(feed(reader, b"".join(map(frame, frames)), lambda left: cuts[next(calls) % len(cuts)])) == frames
    assert reader.buffer_size <= max([BUFFER_SIZE, *(size + WRITABLE_SIZE_MIN for size in sizes)])


class TestLimits:
    def test_the_largest_frame_is_accepted(self) -> None:
        reader = FrameReader(100_000)
        assert list(feed(reader, frame(b"x" * 100_000), lambda left: left)) == [b"x" * 100_000]

    def test_one_more_is_too_large(self) -> None:
        reader = FrameReader(100_000)
        with pytest.raises(FrameTooLarge, match="100001 bytes, at most 100000"):
            list(feed(reader, struct.pack(">i", 100_001), lambda left: left))

    def test_a_negative_size(self) -> None:
        reader = FrameReader(100_000)
        with pytest.raises(NegativeFrameSize, match="-1 bytes"):
            list(feed(reader, b"\xff\xff\xff\xff", lambda left: left))

    def test_an_error_stays(self) -> None:
        reader = FrameReader(100)
        with pytest.raises(InvalidFrame):
            list(feed(reader, b"\x7f\xff\xff\xff", lambda left: left))
        with pytest.raises(InvalidFrame):
            reader.next_frame()

    def test_a_claim_allocates_nothing(self) -> None:
        reader = FrameReader(100 * 1024 * 1024)
        list(feed(reader, struct.pack(">i", 100 * 1024 * 1024) + b"x", lambda left: left))
        reader.writable()
        assert reader.buffer_size == BUFFER_SIZE

    def test_the_buffer_at_most_doubles_what_has_come(self) -> None:
        reader = FrameReader(100 * 1024 * 1024)
        data = struct.pack(">i", 90 * 1024 * 1024)
        come = 0
        for _ in range(100):
            list(feed(reader, data, lambda left: left))
            come += len(data)
            reader.writable()
            assert reader.buffer_size <= max(BUFFER_SIZE, 2 * (come + WRITABLE_SIZE_MIN))
            data = b"x" * 10_000

    def test_a_partial_frame_moves_without_growing(self) -> None:
        reader = FrameReader(SIZE_MAX)
        room = reader.writable()
        data = frame(b"x" * (BUFFER_SIZE - 104)) + struct.pack(">i", SIZE_MAX) + b"part"
        room[: len(data)] = data
        reader.received(len(data))
        assert reader.next_frame() is not None
        assert reader.next_frame() is None
        assert len(reader.writable()) == BUFFER_SIZE - 4

    def test_more_received_than_there_was_room(self) -> None:
        reader = FrameReader(100)
        room = reader.writable()
        with pytest.raises(AssertionError, match="room"):
            reader.received(len(room) + 1)

    def test_waiting_frames_do_not_make_the_writable_part_empty(self) -> None:
        """A receive into no room would look like the end of the stream."""
        reader = FrameReader(SIZE_MAX)
        room = reader.writable()
        room[:] = frame(b"abcd") * (BUFFER_SIZE // 8)
        reader.received(len(room))
        with pytest.raises(AssertionError, match="waiting"):
            reader.writable()


class TestMemory:
    def test_large_frames_reuse_the_buffer(self) -> None:
        reader = FrameReader(SIZE_MAX)
        list(feed(reader, frame(b"x" * 200_000), lambda left: left))
        size = reader.buffer_size
        assert size >= 200_000
        for _ in range(2 * SMALL_FRAMES_BEFORE_SHRINKING):
            assert list(feed(reader, frame(b"x" * 200_000), lambda left: left)) == [b"x" * 200_000]
            reader.writable()
            assert reader.buffer_size == size

    def test_it_shrinks_after_small_frames(self) -> None:
        reader = FrameReader(SIZE_MAX)
        list(feed(reader, frame(b"x" * 200_000), lambda left: left))
        for number in range(SMALL_FRAMES_BEFORE_SHRINKING):
            assert reader.buffer_size > BUFFER_SIZE, number
            list(feed(reader, frame(b"small"), lambda left: left))
        reader.writable()
        assert reader.buffer_size == BUFFER_SIZE

    def test_it_shrinks_between_pipelined_frames(self) -> None:
        reader = FrameReader(SIZE_MAX)
        list(feed(reader, frame(b"x" * 200_000), lambda left: left))
        pipelined = frame(b"small") * SMALL_FRAMES_BEFORE_SHRINKING
        assert len(list(feed(reader, pipelined + frame(b"cut")[:6], lambda left: left))) == SMALL_FRAMES_BEFORE_SHRINKING
        reader.writable()
        assert reader.buffer_size == BUFFER_SIZE
        assert list(feed(reader, frame(b"cut")[6:], lambda left: left)) == [b"cut"]

    def test_release_gives_a_large_buffer_back(self) -> None:
        reader = FrameReader(SIZE_MAX)
        list(feed(reader, frame(b"x" * 200_000), lambda left: left))
        reader.release()
        assert reader.buffer_size == BUFFER_SIZE
        assert list(feed(reader, frame(b"next"), lambda left: left)) == [b"next"]

    def test_discard_gives_all_back_and_spares_a_frame_in_use(self) -> None:
        reader = FrameReader(SIZE_MAX)
        data = frame(b"x" * 10_000)
        reader.writable()[: len(data)] = data
        reader.received(len(data))
        in_use = reader.next_frame()
        reader.discard()
        assert reader.buffer_size == 0
        assert not reader.is_inside_frame
        assert in_use is not None
        assert bytes(in_use) == b"x" * 10_000

    def test_release_keeps_what_it_needs(self) -> None:
        reader = FrameReader(SIZE_MAX)
        body = bytes(range(256)) * 1000
        list(feed(reader, frame(body)[:100_000], lambda left: left))
        reader.release()
        assert list(feed(reader, frame(body)[100_000:], lambda left: left)) == [body]

    def test_a_buffer_that_was_read_whole_is_used_from_its_start(self) -> None:
        reader = FrameReader(SIZE_MAX)
        list(feed(reader, frame(b"small"), lambda left: left))
        assert len(reader.writable()) == BUFFER_SIZE

    def test_small_frames_are_not_moved(self) -> None:
        """A frame that arrives behind another lies behind it in the buffer, as long as there is room."""
        reader = FrameReader(SIZE_MAX)
        reader.writable()[:12] = frame(b"first") + b"\0\0\0"
        reader.received(12)
        first = reader.next_frame()
        assert first is not None
        assert bytes(first) == b"first"
        assert len(reader.writable()) == BUFFER_SIZE - 12
