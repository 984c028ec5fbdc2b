"""Numbers of many records at once, against the decoder of single ones."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.client.fetch.varints import read_deltas, read_lengths
from tidelog.records.errors import InvalidBatch
from tidelog.records.varint import VARINT_BITS, VARLONG_BITS, encode_varint, read_zigzag

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
