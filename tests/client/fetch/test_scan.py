"""Where records begin, whatever their sizes: runs of one size, mixed ones, and what is cut off or lies."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.client.fetch.scan import RECORD_BYTES_MIN, read_deltas, read_lengths, record_positions
from tidelog.records.errors import InvalidBatch
from tidelog.records.varint import VARINT_BITS, VARLONG_BITS, encode_varint, read_zigzag

# (size of the bodies, how many of them one after the other).
runs = st.lists(st.tuples(st.integers(6, 60) | st.integers(60, 20_000), st.integers(1, 200)), min_size=1, max_size=6)


def record(size: int) -> bytes:
    return encode_varint(size) + b"\x07" * size


def positions_of(data: bytes, begin: int, finish: int, count: int) -> list[int]:
    parts = record_positions(data, np.frombuffer(data, np.uint8), begin, finish, count)
    return [int(position) for part in parts for position in part]


@given(runs, st.binary(max_size=5), st.binary(max_size=5))
def test_all_are_found(stretches: list[tuple[int, int]], before: bytes, after: bytes) -> None:
    records = [record(size) for size, count in stretches for _ in range(count)]
    data = before + b"".join(records) + after
    ends = np.cumsum([len(before), *map(len, records)]).tolist()
    assert positions_of(data, len(before), ends[-1], len(records)) == ends[:-1]


@pytest.mark.parametrize("count", [1, 24, 64, 65, 512, 600, 5000])
def test_sizes_that_alternate(count: int) -> None:
    records = [record(20 + index % 3) for index in range(count)]
    ends = np.cumsum([0, *map(len, records)]).tolist()
    assert positions_of(b"".join(records), 0, ends[-1], count) == ends[:-1]


def test_no_records() -> None:
    assert positions_of(b"", 0, 0, 0) == []


@given(st.binary(max_size=300), st.integers(-2, 40))
def test_whatever_comes_is_refused_or_fills_the_bytes(data: bytes, count: int) -> None:
    try:
        found = positions_of(data, 0, len(data), count)
    except InvalidBatch:
        return
    assert len(found) == count
    assert found == sorted(found)
    assert all(0 <= position <= len(data) - 1 for position in found)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (record(20) * 3, 2),  # More bytes than records.
        (record(20) * 3, 4),
        (record(20) * 100 + record(20)[:-1], 101),
        (record(20) * 100, 101),
        (record(20), 1 << 31),
        (record(20), -1),
        (b"\xff" * 20, 1),
        (b"\x00" * RECORD_BYTES_MIN, 1),
    ],
)
def test_what_does_not_fit_is_refused(data: bytes, count: int) -> None:
    with pytest.raises(InvalidBatch):
        positions_of(data, 0, len(data), count)


def test_a_batch_does_not_reach_into_the_next() -> None:
    data = record(20) * 4
    with pytest.raises(InvalidBatch):
        positions_of(data, 0, 2 * len(record(20)) + 1, 2)


small = st.integers(-64, 63)
varints = small | st.integers(-8192, 8191) | st.integers(-(1 << 31), (1 << 31) - 1)
varlongs = varints | st.integers(-(1 << 63), (1 << 63) - 1)


def laid_out(numbers: list[int]) -> tuple[bytes, list[int], list[int]]:
    """The bytes, where each number begins, and where it ends."""
    encoded = [encode_varint(number) for number in numbers]
    ends = np.cumsum([len(each) for each in encoded]).tolist()
    return b"".join(encoded), [0, *ends[:-1]], ends


@given(st.lists(varints, min_size=1) | st.lists(small, min_size=1) | st.lists(st.integers(64, 8191), min_size=1))
def test_lengths(numbers: list[int]) -> None:
    data, begins, ends = laid_out(numbers)
    found, after = read_lengths(np.frombuffer(data, np.uint8), np.array(begins))
    assert found.tolist() == [read_zigzag(data, begin, VARINT_BITS)[0] for begin in begins]
    assert after.tolist() == ends


@given(st.lists(varlongs, min_size=1) | st.lists(small, min_size=1))
def test_deltas(numbers: list[int]) -> None:
    data, begins, ends = laid_out(numbers)
    found, after = read_deltas(np.frombuffer(data, np.uint8), np.array(begins))
    assert found.tolist() == numbers
    assert after.tolist() == ends


@pytest.mark.parametrize("number", [0, 63, 64, -64, -65, 8191, 8192, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63)])
def test_the_ends_of_each_size(number: int) -> None:
    data = encode_varint(number)
    found, after = read_deltas(np.frombuffer(data, np.uint8), np.array([0]))
    assert (found.tolist(), after.tolist()) == ([number], [len(data)])


@given(st.binary(min_size=1, max_size=12), st.booleans())
@example(b"\xff\xff\xff\xff\x0f", False)
@example(b"\xff\xff\xff\xff\x10", False)
@example(b"\xff\xff\xff\xff\xff\x01", False)
@example(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", True)
@example(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", True)
@example(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00", True)
def test_whatever_comes_is_taken_or_refused_as_by_the_decoder_of_single_ones(data: bytes, is_long: bool) -> None:
    bits, read = (VARLONG_BITS, read_deltas) if is_long else (VARINT_BITS, read_lengths)
    expected: object
    try:
        zigzag, position = read_zigzag(data, 0, bits)
        expected = (zigzag >> 1 ^ -(zigzag & 1)) if is_long else zigzag, position
    except (InvalidBatch, IndexError) as error:
        expected = type(error)
    found: object
    try:
        numbers, after = read(np.frombuffer(data, np.uint8), np.array([0]))
        found = int(numbers[0]), int(after[0])
    except (InvalidBatch, IndexError) as error:
        found = type(error)
    assert found == expected


def test_no_numbers() -> None:
    for read in (read_lengths, read_deltas):
        found, after = read(np.frombuffer(b"\x01", np.uint8), np.empty(0, np.int64))
        assert (found.size, after.size) == (0, 0)
