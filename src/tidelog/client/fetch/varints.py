"""Zigzag varints of many records at once: one numpy pass per byte of the longest, over those that have such a byte.

What a number may hold is checked as ``records.varint`` does: 32 bits in at most five bytes, 64 in at most ten.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidelog.records.errors import InvalidBatch
from tidelog.records.varint import VARINT_BITS, VARLONG_BITS

Bytes: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]

_CONTINUES = 0x80
_SHIFT = 7


def read_lengths(data: Bytes, positions: Integers) -> tuple[Integers, Integers]:
    """The varints at ``positions``, still zigzagged (so that the lowest bit is the sign), and the positions after them.

    IndexError when the data ends first.
    """
    byte = data[positions]
    after = positions + 1
    if byte.max(initial=0) < _CONTINUES:
        return byte.astype(np.int64), after
    if byte.min() >= _CONTINUES:
        # Two bytes in each, as the lengths of values above 63 bytes: no need to choose among them.
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
    # The shift must not copy the sign of a number whose zigzag takes all 64 bits.
    magnitude = (zigzag.view(np.uint64) >> np.uint64(1)).view(np.int64)
    return magnitude ^ -(zigzag & 1), after


def _read_long(data: Bytes, byte: Bytes, after: Integers, bits: int) -> tuple[Integers, Integers]:
    """``byte`` has the first of each, some of which go on at ``after``."""
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
