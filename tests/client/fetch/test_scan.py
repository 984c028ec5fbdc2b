"""Where records begin, whatever their sizes: runs of one size, mixed ones, and what is cut off or lies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.fetch.scan import RECORD_BYTES_MIN, record_positions
from tidelog.records.errors import InvalidBatch
from tidelog.records.varint import encode_varint

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
