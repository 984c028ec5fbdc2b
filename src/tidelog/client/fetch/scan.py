"""Where each record of a batch begins: the one thing that cannot be done for all records at once.

A record begins where the one before it ends, so that its place is known only after the length of that. Two ways take turns:

- a run: when records have one size (most producers' do, for long stretches), the next ones would begin at multiples of it. Where
  the bytes there are the same length again, that is proof, not a guess: the first is right, and each makes the next one right.
- a loop over single records, with numbers of one and two bytes read in place.

A run that breaks off early is followed by a stretch of the loop, so that batches of mixed sizes pay for few attempts.
"""

from collections.abc import Callable

import numpy as np

from tidelog.client.fetch.varints import Bytes, Integers
from tidelog.records.errors import InvalidBatch
from tidelog.records.varint import VARINT_BITS, read_zigzag

# Length, attributes, two deltas, two lengths and the count of headers take a byte each.
RECORD_BYTES_MIN = 7

_RUN_FIRST = 64
_RUN_LAST = 1 << 16
# Below this, the loop would have been as fast.
_RUN_WORTH = 24
_LOOP_COUNT = 512


def record_positions(data: bytes, array: Bytes, begin: int, finish: int, count: int) -> list[Integers]:
    """The positions of ``count`` records' lengths, in parts; the records must fill ``data[begin:finish]`` exactly.

    ``array`` is ``data`` for numpy. InvalidBatch when they do not fit; that no length is negative is left to who reads them.
    """
    if not 0 <= count <= (finish - begin) // RECORD_BYTES_MIN:
        raise InvalidBatch(f"{finish - begin} bytes cannot hold {count} records")
    parts: list[Integers] = []
    position = begin
    left = count
    window = _RUN_FIRST
    try:
        while left:
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
