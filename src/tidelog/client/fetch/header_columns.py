"""Headers of records to an Arrow column: a list of (key, value) for each record, null where a record has none.

Records are few headers each: the first of all records are read at once, then the second of those that have two, and so on. A
record with very many has the rest of them read one by one, so that it costs no pass over all for each.
"""

import numpy as np
import pyarrow as pa

from tidelog.client.fetch.schema import HEADERS_TYPE
from tidelog.client.fetch.varints import Bytes, Integers, read_lengths
from tidelog.records.errors import InvalidBatch
from tidelog.records.varint import VARINT_BITS, read_zigzag

_ROUNDS_MAX = 64
_NULL = 1
_KEY_START, _KEY_END, _VALUE_START, _VALUE_END = range(4)


def headers_column(data: bytes, array: Bytes, positions: Integers, record_ends: Integers) -> pa.Array:
    """Of the records whose counts of headers stand at ``positions`` and whose headers go up to ``record_ends``."""
    zigzags, positions = read_lengths(array, positions)
    counts = zigzags >> 1
    # A header takes two bytes at least. The oracle of the tests allows no more than bytes, either.
    if (zigzags & 1).any() or (zigzags > record_ends - positions).any():
        raise InvalidBatch("a record claims more headers than its bytes can hold")
    ends = np.concatenate(([0], np.cumsum(counts)))
    total = int(ends[-1])
    places = np.empty((total, 4), np.int64)
    is_null = np.zeros(total, np.bool_)
    positions = _read_rounds(array, positions, counts, ends, places, is_null)
    for row in np.flatnonzero(counts > _ROUNDS_MAX).tolist():
        first, last = int(ends[row]) + _ROUNDS_MAX, int(ends[row + 1])
        positions[row] = _read_rest(data, int(positions[row]), places[first:last], is_null[first:last])
    if (positions != record_ends).any():
        raise InvalidBatch("the headers of a record do not end where the record does")
    keys, values = _strings(data, places, is_null)
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(
        pa.array(ends.astype(np.int32)), entries, type=HEADERS_TYPE, mask=pa.array(counts == 0) if len(counts) else None
    )


def _read_rounds(
    array: Bytes, positions: Integers, counts: Integers, ends: Integers, places: Integers, is_null: np.typing.NDArray[np.bool_]
) -> Integers:
    """Up to ``_ROUNDS_MAX`` headers of each record; the positions after them."""
    rows = np.flatnonzero(counts)
    for number in range(_ROUNDS_MAX):
        if not rows.size:
            break
        index = ends[rows] + number
        key_lengths, key_starts = read_lengths(array, positions[rows])
        if (key_lengths & 1).any():
            raise InvalidBatch("a header has no key")
        key_ends = key_starts + (key_lengths >> 1)
        value_lengths, value_starts = read_lengths(array, key_ends)
        nulls = (value_lengths & 1).astype(np.bool_)
        if (value_lengths[nulls] != _NULL).any():
            raise InvalidBatch("the length of a header's value is below -1")
        value_ends = value_starts + (value_lengths >> 1)
        places[index] = np.stack((key_starts, key_ends, value_starts, value_ends), axis=1)
        is_null[index] = nulls
        positions[rows] = value_ends
        rows = rows[counts[rows] > number + 1]
    return positions


def _read_rest(data: bytes, position: int, places: Integers, is_null: np.typing.NDArray[np.bool_]) -> int:
    for index in range(len(places)):
        length, key_start = read_zigzag(data, position, VARINT_BITS)
        if length & 1:
            raise InvalidBatch("a header has no key")
        key_end = key_start + (length >> 1)
        length, value_start = read_zigzag(data, key_end, VARINT_BITS)
        if length & 1 and length != _NULL:
            raise InvalidBatch("the length of a header's value is below -1")
        position = value_start + (length >> 1)
        places[index] = key_start, key_end, value_start, position
        is_null[index] = length & 1
    return position


def _strings(data: bytes, places: Integers, is_null: np.typing.NDArray[np.bool_]) -> tuple[pa.Array, pa.Array]:
    count = len(places)
    buffers = [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(data)]
    elements = pa.Array.from_buffers(pa.binary(), max(0, 4 * count - 1), buffers, null_count=0)
    keys = elements.take(pa.array(np.arange(_KEY_START, 4 * count, 4)))
    values = elements.take(pa.array(np.arange(_VALUE_START, 4 * count, 4), mask=is_null))
    try:
        return keys.cast(pa.string()), values
    except pa.ArrowInvalid:
        # Not UTF-8, which no client forbids: as Kafka's own reads it.
        return pa.array([key.as_py().decode("utf-8", "replace") for key in keys], pa.string()), values
