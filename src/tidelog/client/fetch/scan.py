"""Finds the fields of many records at once.

**Varints.** ``read_lengths`` and ``read_deltas`` read the zigzag varints of many records with one numpy pass per byte of the
longest. The width of a number is checked as ``records.varint`` does: 32 bits in at most five bytes, 64 bits in at most ten.

**Records.** Where each record of a batch begins is the one thing that cannot be found for all records at once, because a record
begins where the previous one ends. ``record_positions`` alternates between two ways:

- a run: when records have one size (as those of most producers do, for long stretches), the next ones would begin at multiples of
  it. Where the bytes there hold the same length again, that is proof and not a guess: the first is right, and each makes the next
  one right.
- a loop over single records, which reads lengths of one and two bytes in place.

A run that breaks off early is followed by a stretch of the loop, so that batches of mixed sizes pay for few attempts.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidelog.records.errors import InvalidBatch
from tidelog.records.varint import VARINT_BITS, VARLONG_BITS, read_zigzag

Bytes: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]

_CONTINUES = 0x80
_SHIFT = 7

# Length, attributes, two deltas, two lengths and the count of headers take a byte each.
RECORD_BYTES_MIN = 7

_RUN_FIRST = 64
_RUN_LAST = 1 << 16
# Below this, the loop would have been as fast.
_RUN_WORTH = 24
_LOOP_COUNT = 512


# -- varints ------------------------------------------------------------------------------------------------------------------


def read_lengths(data: Bytes, positions: Integers) -> tuple[Integers, Integers]:
    """The varints at ``positions``, still zigzagged (so that the lowest bit is the sign), and the positions after them.

    IndexError if the data ends first.
    """
    byte = data[positions]
    after = positions + 1
    if byte.max(initial=0) < _CONTINUES:
        return byte.astype(np.int64), after
    if byte.min() >= _CONTINUES:
        # Two bytes in each, as in the lengths of values above 63 bytes, so there is nothing to select.
        second = data[after]
        if second.max() < _CONTINUES:
            return (byte & 0x7F).astype(np.int64) | (second.astype(np.int64) << _SHIFT), after + 1
    return _read_long(data, byte, after, VARINT_BITS)


def read_deltas(data: Bytes, positions: Integers) -> tuple[Integers, Integers]:
    """The varlongs at ``positions`` as the numbers that they stand for, and the positions after them."""
    byte = data[positions]
    after = positions + 1
    if byte.max(initial=0) < _CONTINUES:
        zigzag = byte.astype(np.int64)
    else:
        zigzag, after = _read_long(data, byte, after, VARLONG_BITS)
    # An arithmetic shift would copy the sign of a number whose zigzag takes all 64 bits.
    magnitude = (zigzag.view(np.uint64) >> np.uint64(1)).view(np.int64)
    return magnitude ^ -(zigzag & 1), after


def _read_long(data: Bytes, byte: Bytes, after: Integers, bits: int) -> tuple[Integers, Integers]:
    """``byte`` has the first byte of each number; some continue at ``after``."""
    zigzag = (byte & 0x7F).astype(np.int64)
    going_on = np.flatnonzero(byte >= _CONTINUES)
    for shift in range(_SHIFT, bits, _SHIFT):
        byte = data[after[going_on]]
        if bits - shift < _SHIFT and byte.max() >> (bits - shift):
            break
        after[going_on] += 1
        zigzag[going_on] |= (byte & 0x7F).astype(np.int64) << shift
        going_on = going_on[byte >= _CONTINUES]
        if not going_on.size:
            return zigzag, after
    raise InvalidBatch(f"a number in a record takes more than {bits} bits")


# -- records ------------------------------------------------------------------------------------------------------------------


def record_positions(data: bytes, array: Bytes, begin: int, finish: int, count: int) -> list[Integers]:
    """The positions of the lengths of ``count`` records, in parts; the records must fill ``data[begin:finish]`` exactly.

    ``array`` is ``data`` for numpy. InvalidBatch if the records do not fit. The caller checks for negative lengths.
    """
    if not 0 <= count <= (finish - begin) // RECORD_BYTES_MIN:
        raise InvalidBatch(f"{finish - begin} bytes cannot hold {count} records")
    parts: list[Integers] = []
    position = begin
    left = count
    window = _RUN_FIRST
    try:
        while left:
            # For fewer records than this, an attempt costs more than it can save.
            if left >= _RUN_WORTH:
                found, position = _run(data, array, position, finish, min(window, left))
                parts.append(found)
                left -= len(found)
                if len(found) >= _RUN_WORTH:
                    window = min(2 * window, _RUN_LAST)
                    continue
                window = _RUN_FIRST
            single: list[int] = []
            position = _loop(data, position, min(left, _LOOP_COUNT), single.append)
            left -= len(single)
            parts.append(np.array(single, np.int64))
    except IndexError:
        raise InvalidBatch(f"the records are cut off after {finish - begin} bytes") from None
    if position != finish:
        raise InvalidBatch(f"{count} records end at byte {position - begin}, and there are {finish - begin} bytes")
    return parts


def _run(data: bytes, array: Bytes, position: int, finish: int, count_max: int) -> tuple[Integers, int]:
    """The positions of records of one size from ``position`` on, at least one, and the position after them."""
    zigzag, body = read_zigzag(data, position, VARINT_BITS)
    size = body - position + (zigzag >> 1)
    count = min(count_max, (finish - position) // size)
    if count < 1:
        raise IndexError
    grid = array[position : position + count * size].reshape(count, size)
    for column in range(body - position):
        is_same = grid[:count, column] == grid[0, column]
        if not is_same.all():
            count = int(is_same.argmin())
    return np.arange(position, position + count * size, size, dtype=np.int64), position + count * size


def _loop(data: bytes, position: int, count: int, append: Callable[[int], None]) -> int:
    for _ in range(count):
        append(position)
        length = data[position]
        if length < 0x80:
            position += 1 + (length >> 1)
        elif (second := data[position + 1]) < 0x80:
            position += 2 + ((length + (second << 7) - 0x80) >> 1)
        else:
            length, position = read_zigzag(data, position, VARINT_BITS)
            position += length >> 1
    return position
