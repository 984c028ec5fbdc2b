"""Converts the records of a fetch response to Arrow columns, all records of many batches at once.

**Opening.** Only batches that a reader may see are opened, that is checked and decompressed. Under read_committed the response
names the aborted transactions as (producer id, first offset). From that offset on until the producer's abort marker, its
transactional batches are left out. The response names all transactions that concern its records, so nothing is remembered from
one response to the next. Control batches are always left out. A response may end within a batch; the next response has that batch
again.

**Columns.** Opened batches are laid end to end in one buffer. ``scan`` finds where each record begins; from there numpy reads
every field of all records, first the varints and then the bytes. Keys and values are not collected one by one. The buffer itself
is viewed as an Arrow array whose elements are in turn a key, a value and what lies between them (their ends ascend), and Arrow's
``take`` picks the keys and the values out of it at the speed of memcpy.

Nothing is trusted: each length is checked against the end of its record, offsets must ascend and lie within their batch, and
whatever does not fit raises InvalidBatch. The checksum was checked before.

Headers are decoded only on request. Most records have few of them, so the first headers of all records are read at once, then the
second of those that have two, and so on. The headers of a record with very many are read one by one beyond a limit, so that it
does not cost a pass over all records for each.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.client.fetch.scan import Bytes, Integers, read_deltas, read_lengths, record_positions
from tidelog.client.fetch.types import HEADERS_TYPE, MICROSECONDS, MILLISECONDS_MAX, SCHEMA, FetchRange, schema_of
from tidelog.ports.disk import Buffer
from tidelog.records.compression import CompressionType, decompress
from tidelog.records.control import ControlType, read_control_type
from tidelog.records.errors import CorruptBatch, InvalidBatch
from tidelog.records.header import HEADER_SIZE, BatchHeader, crc_is_valid, iterate_headers
from tidelog.records.varint import VARINT_BITS, read_zigzag

# The limit for one batch. A producer compresses about a megabyte at a time; a hundred times that is a bomb.
DECOMPRESSED_BYTES_MAX = 100 << 20

PlacedHeader = tuple[int, BatchHeader]

_NULL = 1
_TIMESTAMP = SCHEMA.field("timestamp").type
# This many headers of each record are read together with those of other records.
_ROUNDS_MAX = 64
_KEY_START, _KEY_END, _VALUE_START, _VALUE_END = range(4)


class OpenedBatch(NamedTuple):
    header: BatchHeader
    records: Buffer
    """The decompressed records."""


# -- opening ------------------------------------------------------------------------------------------------------------------


class AbortedFilter:
    """Decides which batches belong to aborted transactions. It must see the batches in the order of their offsets."""

    __slots__ = ("_active", "_waiting")

    def __init__(self, aborted: Sequence[tuple[int, int]] | None) -> None:
        self._waiting = deque(sorted(aborted or (), key=lambda transaction: transaction[1]))
        self._active: set[int] = set()

    def is_aborted(self, records: memoryview, position: int, header: BatchHeader) -> bool:
        while self._waiting and self._waiting[0][1] <= header.last_offset:
            self._active.add(self._waiting.popleft()[0])
        if header.is_control:
            if header.producer_id in self._active and read_control_type(records, position, header) is ControlType.ABORT:
                self._active.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._active


def whole_batches(records: memoryview) -> list[PlacedHeader]:
    return list(iterate_headers(records))


def opened_batches(
    records: memoryview,
    placed: Sequence[PlacedHeader],
    aborted: Sequence[tuple[int, int]] | None,
    start: int,
    end: int,
    *,
    checks_crcs: bool,
) -> Iterator[OpenedBatch]:
    """The batches with offsets between ``start`` and ``end``. Each is decompressed only when the caller reaches it."""
    is_hidden = AbortedFilter(aborted).is_aborted
    for position, header in placed:
        if checks_crcs and not crc_is_valid(records, position, header):
            raise CorruptBatch(f"the batch at offset {header.base_offset} fails its checksum")
        if is_hidden(records, position, header) or header.is_control:
            continue
        if header.last_offset < start or header.base_offset >= end or not header.record_count:
            continue
        body = records[position + HEADER_SIZE : position + header.size]
        if header.compression is not CompressionType.NONE:
            yield OpenedBatch(header, decompress(header.compression, body, DECOMPRESSED_BYTES_MAX))
        else:
            yield OpenedBatch(header, body)


# -- columns ------------------------------------------------------------------------------------------------------------------


class _Batches(NamedTuple):
    """The header fields of the batches, by the number of the batch."""

    base_offsets: Integers
    last_offset_deltas: Integers
    base_timestamps: Integers
    append_timestamps: Integers
    is_append_time: Integers
    counts: Integers


class RecordRows(NamedTuple):
    """Where the records lie in ``data``, by row."""

    data: bytes
    array: Bytes
    positions: Integers
    batch_of_row: Integers
    batches: _Batches


class ConstantColumns:
    """The columns that are the same in every row of a partition: made once for ``rows_max`` rows, and sliced for each batch."""

    __slots__ = ("_create_time", "_partition", "_topic")

    def __init__(self, topic: str, partition: int, rows_max: int) -> None:
        self._topic = pa.repeat(pa.scalar(topic, pa.string()), rows_max)
        self._partition = pa.repeat(pa.scalar(partition, pa.int32()), rows_max)
        self._create_time = pa.repeat(pa.scalar(0, pa.int32()), rows_max)

    def topic(self, count: int) -> pa.Array:
        return self._topic.slice(0, count)

    def partition(self, count: int) -> pa.Array:
        return self._partition.slice(0, count)

    def timestamp_type(self, is_append_time: Integers) -> pa.Array:
        """0 for the producer's time, 1 for the broker's. A topic has both if its setting was changed."""
        if not is_append_time.any():
            return self._create_time.slice(0, len(is_append_time))
        return pa.array(is_append_time.astype(np.int32))


def lay_out(opened: Sequence[OpenedBatch]) -> RecordRows:
    """Find all records. InvalidBatch if a batch does not match its header."""
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
    return RecordRows(data, array, np.concatenate(positions) if positions else np.empty(0, np.int64), batch_of_row, batches)


def record_batches(opened: Sequence[OpenedBatch], constants: ConstantColumns, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
    """The wanted records as Arrow batches of about equal size, each within ``wanted.max_rows_per_batch`` rows."""
    rows = lay_out(opened)
    count = len(rows.positions)
    if not count:
        return
    parts = -(-count // wanted.max_rows_per_batch)
    part_rows = -(-count // parts)
    for first in range(0, count, part_rows):
        batch = decode_rows(rows, slice(first, min(count, first + part_rows)), constants, wanted)
        if batch.num_rows:
            yield batch


def decode_rows(rows: RecordRows, part: slice, constants: ConstantColumns, wanted: FetchRange) -> pa.RecordBatch:
    """A part of the rows, without those whose offsets are not wanted."""
    try:
        return _decode_rows(rows, part, constants, wanted)
    except IndexError:
        raise InvalidBatch("a record claims more bytes than there are") from None


def _decode_rows(rows: RecordRows, part: slice, constants: ConstantColumns, wanted: FetchRange) -> pa.RecordBatch:
    data = rows.array
    lengths, position = read_lengths(data, rows.positions[part])
    record_ends = position + (lengths >> 1)
    timestamp_deltas, position = read_deltas(data, position + 1)
    offset_deltas, position = read_lengths(data, position)
    key_lengths, key_starts = read_lengths(data, position)
    key_ends = key_starts + (key_lengths >> 1)
    value_lengths, value_starts = read_lengths(data, key_ends)
    value_ends = value_starts + (value_lengths >> 1)

    batch_of_row = rows.batch_of_row[part]
    offsets = rows.batches.base_offsets[batch_of_row] + (offset_deltas >> 1)
    _check(lengths, offset_deltas, rows.batches.last_offset_deltas[batch_of_row], offsets)
    # At least one byte must be left for the count of headers.
    if (value_ends >= record_ends).any():
        raise InvalidBatch("a key or value claims more bytes than its record has")
    low, high = np.searchsorted(offsets, (wanted.start, wanted.end))
    chosen = slice(int(low), int(high))
    count = int(high - low)

    ends = np.empty((count, 4), np.int32)
    for column, places in enumerate((key_starts, key_ends, value_starts, value_ends)):
        ends[:, column] = places[chosen]
    elements = pa.Array.from_buffers(
        pa.binary(), max(0, 4 * count - 1), [None, pa.py_buffer(ends), pa.py_buffer(rows.data)], null_count=0
    )
    times = _timestamps(rows.batches, batch_of_row[chosen], timestamp_deltas[chosen])
    columns = [
        _picked(elements, 0, key_lengths[chosen]),
        _picked(elements, 2, value_lengths[chosen]),
        constants.topic(count),
        constants.partition(count),
        pa.array(offsets[chosen]),
        pa.Array.from_buffers(_TIMESTAMP, count, [None, pa.py_buffer(times)], null_count=0),
        constants.timestamp_type(rows.batches.is_append_time[batch_of_row[chosen]]),
    ]
    if wanted.include_headers:
        columns.append(_headers_column(rows.data, data, value_ends[chosen], record_ends[chosen]))
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(wanted.include_headers))


def _check(lengths: Integers, offset_deltas: Integers, last_offset_deltas: Integers, offsets: Integers) -> None:
    if (lengths & 1).any():
        raise InvalidBatch("the length of a record is negative")
    if (offset_deltas & 1).any() or ((offset_deltas >> 1) > last_offset_deltas).any():
        raise InvalidBatch("the offset of a record is outside of its batch")
    if (offsets[1:] <= offsets[:-1]).any():
        raise InvalidBatch("the offsets of the records do not ascend")


def _picked(elements: pa.Array, first: int, lengths: Integers) -> pa.Array:
    """Every fourth element from ``first`` on; null where the length is -1."""
    is_null = (lengths & 1).astype(np.bool_)
    if not is_null.any():
        return elements.take(pa.array(np.arange(first, first + 4 * len(lengths), 4)))
    if (lengths[is_null] != _NULL).any():
        raise InvalidBatch("the length of a key or value is below -1")
    if is_null.all():
        return pa.nulls(len(lengths), pa.binary())
    return elements.take(pa.array(np.arange(first, first + 4 * len(lengths), 4), mask=is_null))


def _timestamps(batches: _Batches, batch_of_row: Integers, deltas: Integers) -> Integers:
    """The timestamps in microseconds."""
    times = batches.base_timestamps[batch_of_row] + deltas
    if batches.is_append_time.any():
        times = np.where(batches.is_append_time[batch_of_row], batches.append_timestamps[batch_of_row], times)
    np.clip(times, -MILLISECONDS_MAX, MILLISECONDS_MAX, out=times)
    times *= MICROSECONDS
    return times


# -- headers ------------------------------------------------------------------------------------------------------------------


def _headers_column(data: bytes, array: Bytes, positions: Integers, record_ends: Integers) -> pa.Array:
    """The headers of records whose header counts are at ``positions`` and whose headers end at ``record_ends``."""
    zigzags, positions = read_lengths(array, positions)
    counts = zigzags >> 1
    # A header takes at least two bytes.
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
    """Read up to ``_ROUNDS_MAX`` headers of each record; returns the positions after them."""
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
        # Not UTF-8, which no client forbids: decode it as Kafka's own client does.
        return pa.array([key.as_py().decode("utf-8", "replace") for key in keys], pa.string()), values
