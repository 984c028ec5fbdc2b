"""Records to Arrow columns, all records of many batches at once.

Batches that were opened are laid end to end in one buffer. ``scan`` finds where each record begins; from there every field is
read for all records by numpy: varints first, and then the bytes. Keys and values are not gathered one by one: the buffer itself
is seen as an Arrow array whose elements are key, value and what lies between them in turns (their ends ascend), and Arrow's
``take`` picks the keys out of it, and the values, at the speed of memcpy.

Nothing is trusted: each length is checked against the end of its record, offsets must ascend and be within their batch, and
what does not fit raises InvalidBatch. Headers are looked at only where they are wanted. The checksum was checked before.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.client.fetch.constant_columns import ConstantColumns
from tidelog.client.fetch.header_columns import headers_column
from tidelog.client.fetch.scan import record_positions
from tidelog.client.fetch.schema import MICROSECONDS, MILLISECONDS_MAX, SCHEMA, SCHEMA_WITH_HEADERS
from tidelog.client.fetch.varints import Bytes, Integers, read_deltas, read_lengths
from tidelog.ports.disk import Buffer
from tidelog.records.errors import InvalidBatch
from tidelog.records.header import BatchHeader

_NULL = 1
_TIMESTAMP = SCHEMA.field("timestamp").type


class OpenedBatch(NamedTuple):
    header: BatchHeader
    records: Buffer
    """Decompressed."""


class _Batches(NamedTuple):
    """Of each batch, by its number."""

    base_offsets: Integers
    last_offset_deltas: Integers
    base_timestamps: Integers
    append_timestamps: Integers
    is_append_time: Integers
    counts: Integers


class Rows(NamedTuple):
    """The records that lie in ``data``, by row."""

    data: bytes
    array: Bytes
    positions: Integers
    batch_of_row: Integers
    batches: _Batches


def lay_out(opened: Sequence[OpenedBatch]) -> Rows:
    """All records' places. InvalidBatch when a batch is not what its header says."""
    data = b"".join([batch.records for batch in opened])
    array = np.frombuffer(data, np.uint8)
    positions: list[Integers] = []
    begin = 0
    for header, records in opened:
        finish = begin + len(records)
        positions += record_positions(data, array, begin, finish, header.record_count)
        begin = finish
    fields = [
        (
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.is_log_append_time,
            header.record_count,
        )
        for header, _ in opened
    ]
    batches = _Batches(*np.array(fields, np.int64).reshape(-1, len(_Batches._fields)).T)
    batch_of_row = np.repeat(np.arange(len(opened)), batches.counts)
    return Rows(data, array, np.concatenate(positions) if positions else np.empty(0, np.int64), batch_of_row, batches)


def record_batches(
    opened: Sequence[OpenedBatch], constants: ConstantColumns, start: int, end: int, rows_max: int, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of up to ``rows_max`` rows, about equal in size, of the records with ``start <= offset < end``."""
    rows = lay_out(opened)
    count = len(rows.positions)
    if not count:
        return
    parts = -(-count // rows_max)
    part_rows = -(-count // parts)
    for first in range(0, count, part_rows):
        batch = decode_rows(rows, first, min(count, first + part_rows), constants, start, end, include_headers)
        if batch.num_rows:
            yield batch


def decode_rows(
    rows: Rows, first: int, last: int, constants: ConstantColumns, start: int, end: int, include_headers: bool
) -> pa.RecordBatch:
    """Rows ``first`` to before ``last``, without those whose offsets are not wanted."""
    try:
        return _decode_rows(rows, first, last, constants, start, end, include_headers)
    except IndexError:
        raise InvalidBatch("a record claims more bytes than there are") from None


def _decode_rows(
    rows: Rows, first: int, last: int, constants: ConstantColumns, start: int, end: int, include_headers: bool
) -> pa.RecordBatch:
    data = rows.array
    lengths, position = read_lengths(data, rows.positions[first:last])
    record_ends = position + (lengths >> 1)
    timestamp_deltas, position = read_deltas(data, position + 1)
    offset_deltas, position = read_lengths(data, position)
    key_lengths, key_starts = read_lengths(data, position)
    key_ends = key_starts + (key_lengths >> 1)
    value_lengths, value_starts = read_lengths(data, key_ends)
    value_ends = value_starts + (value_lengths >> 1)

    batch_of_row = rows.batch_of_row[first:last]
    offsets = rows.batches.base_offsets[batch_of_row] + (offset_deltas >> 1)
    _check(lengths, offset_deltas, rows.batches.last_offset_deltas[batch_of_row], offsets)
    # One byte at least must be left for the count of headers.
    if (value_ends >= record_ends).any():
        raise InvalidBatch("a key or value claims more bytes than its record has")
    low, high = np.searchsorted(offsets, (start, end))
    wanted = slice(int(low), int(high))
    count = int(high - low)

    ends = np.empty((count, 4), np.int32)
    for column, places in enumerate((key_starts, key_ends, value_starts, value_ends)):
        ends[:, column] = places[wanted]
    elements = pa.Array.from_buffers(
        pa.binary(), max(0, 4 * count - 1), [None, pa.py_buffer(ends), pa.py_buffer(rows.data)], null_count=0
    )
    times = _timestamps(rows.batches, batch_of_row[wanted], timestamp_deltas[wanted])
    columns = [
        _picked(elements, 0, key_lengths[wanted]),
        _picked(elements, 2, value_lengths[wanted]),
        constants.topic(count),
        constants.partition(count),
        pa.array(offsets[wanted]),
        pa.Array.from_buffers(_TIMESTAMP, count, [None, pa.py_buffer(times)], null_count=0),
        constants.timestamp_type(rows.batches.is_append_time[batch_of_row[wanted]]),
    ]
    if include_headers:
        columns.append(headers_column(rows.data, data, value_ends[wanted], record_ends[wanted]))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS if include_headers else SCHEMA)


def _check(lengths: Integers, offset_deltas: Integers, last_offset_deltas: Integers, offsets: Integers) -> None:
    if (lengths & 1).any():
        raise InvalidBatch("the length of a record is negative")
    if (offset_deltas & 1).any() or ((offset_deltas >> 1) > last_offset_deltas).any():
        raise InvalidBatch("the offset of a record is outside of its batch")
    if (offsets[1:] <= offsets[:-1]).any():
        raise InvalidBatch("the offsets of the records do not ascend")


def _picked(elements: pa.Array, first: int, lengths: Integers) -> pa.Array:
    """Every fourth element from ``first`` on; null where the length says so."""
    is_null = (lengths & 1).astype(np.bool_)
    if not is_null.any():
        return elements.take(pa.array(np.arange(first, first + 4 * len(lengths), 4)))
    if (lengths[is_null] != _NULL).any():
        raise InvalidBatch("the length of a key or value is below -1")
    if is_null.all():
        return pa.nulls(len(lengths), pa.binary())
    return elements.take(pa.array(np.arange(first, first + 4 * len(lengths), 4), mask=is_null))


def _timestamps(batches: _Batches, batch_of_row: Integers, deltas: Integers) -> Integers:
    """In microseconds."""
    times = batches.base_timestamps[batch_of_row] + deltas
    if batches.is_append_time.any():
        times = np.where(batches.is_append_time[batch_of_row], batches.append_timestamps[batch_of_row], times)
    np.clip(times, -MILLISECONDS_MAX, MILLISECONDS_MAX, out=times)
    times *= MICROSECONDS
    return times
