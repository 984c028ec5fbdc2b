"""Encodes Arrow columns as record batches, all rows of a chunk at once: the reverse of ``fetch.columns``.

Rows are sorted by their partition, in their order, and cut into batches. numpy computes the lengths of all varints, and from them
the length of every record, and writes the varints of all records into buffers of a fixed width per row. The bytes of a record are
then five pieces: what is before the key, the key, the length of the value, the value, and the headers. All pieces of one kind are
an Arrow array, and Arrow's ``take`` copies them in turn into one buffer, at the speed of memcpy. A batch is a slice of it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fastcrc.crc32 import iscsi as crc32c

from tidelog.client.fetch.scan import Bytes, Integers
from tidelog.ports.disk import Buffer
from tidelog.records.compression import CompressionType, compress
from tidelog.records.header import (
    CHECKSUMMED_HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    PREFIX_MAGIC_CRC,
    TRANSACTIONAL_MASK,
)

# The bytes of a record beside key, value and headers: length, attributes, two deltas, two lengths, and the count of headers.
RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5
_PREFIX_WIDTH = 5 + 1 + 10 + 5 + 5
_VARINT_WIDTH = 5
_CONTINUES = 0x80
_SHIFT = 7
_NULL = 1
_SEED = np.uint32(0x9747B28C)
_MIX = np.uint32(0x5BD1E995)


class MessageColumns(NamedTuple):
    """The messages of a chunk, row by row."""

    keys: pa.Array | None
    """Binary; None if no message has a key."""
    values: pa.Array
    timestamps_ms: Integers
    headers: pa.Array | None
    """list<struct<key: string, value: binary>>"""

    @property
    def sizes(self) -> Integers:
        """The bytes of key, value and headers of each row."""
        sizes = lengths_of(self.values)
        if self.keys is not None:
            sizes = sizes + lengths_of(self.keys)
        if self.headers is not None:
            _, ends = _header_bytes(self.headers)
            sizes = sizes + np.diff(ends)
        return sizes


class BatchBody(NamedTuple):
    """The records of a batch, without what depends on its producer."""

    place: int
    """The number of the destination, as given to ``encode``."""
    records: memoryview
    record_count: int
    first_timestamp_ms: int
    max_timestamp_ms: int


class ProducerIdentity(NamedTuple):
    producer_id: int
    producer_epoch: int
    is_transactional: bool


def encode(columns: MessageColumns, places: Integers, limits: Integers) -> Iterator[BatchBody]:
    """Encode the rows. ``places`` is the destination of each row, ``limits`` the most bytes of a batch by destination.

    The batches of a destination come one after the other, with its rows in their order.
    """
    order = np.argsort(places, kind="stable")
    places = places[order]
    firsts = _batch_starts(columns.sizes[order] + RECORD_OVERHEAD_MAX, places, limits)
    counts = np.diff([*firsts, len(order)])
    offset_deltas = np.arange(len(order)) - np.repeat(firsts, counts)
    timestamps = columns.timestamps_ms[order]
    deltas = timestamps - np.repeat(timestamps[firsts], counts)
    data, ends = _records(columns, order, deltas, offset_deltas)
    latest = np.maximum.reduceat(timestamps, firsts) if len(firsts) else timestamps
    for first, count, max_ms in zip(firsts.tolist(), counts.tolist(), latest.tolist(), strict=True):
        body = data[int(ends[first]) : int(ends[first + count])]
        yield BatchBody(int(places[first]), body, count, int(timestamps[first]), max_ms)


def build(body: BatchBody, producer: ProducerIdentity, base_sequence: int, compression: CompressionType) -> bytes:
    """The whole batch, ready to be sent; not compressed if that would not make it smaller."""
    records: Buffer = body.records
    if compression is not CompressionType.NONE:
        compressed = compress(compression, body.records)
        compression = compression if len(compressed) < len(records) else CompressionType.NONE
        records = compressed if compression is not CompressionType.NONE else records
    checksummed = CHECKSUMMED_HEADER.pack(
        compression | (TRANSACTIONAL_MASK if producer.is_transactional else 0),
        body.record_count - 1,
        body.first_timestamp_ms,
        body.max_timestamp_ms,
        producer.producer_id,
        producer.producer_epoch,
        base_sequence,
        body.record_count,
    )
    crc = crc32c(records, crc32c(checksummed))
    length = HEADER_SIZE - LOG_OVERHEAD + len(records)
    return b"".join([PREFIX_MAGIC_CRC.pack(0, length, NO_LEADER_EPOCH, MAGIC, crc), checksummed, records])


def _batch_starts(sizes: Integers, places: Integers, limits: Integers) -> Integers:
    """The first row of each batch. A batch ends where the next row might not fit, or belongs elsewhere.

    Rows are cut at multiples of a step: the limit without the largest row of the destination, so that the last row of a batch
    still fits. The step is at least half of the limit, and rows that do not fit into the rest have a batch to themselves.
    """
    if not len(sizes):
        return np.empty(0, np.int64)
    begins = np.cumsum(sizes) - sizes
    is_start = np.ones(len(sizes), np.bool_)
    is_start[1:] = places[1:] != places[:-1]
    destinations = np.flatnonzero(is_start)
    counts = np.diff([*destinations, len(sizes)])
    begins = begins - np.repeat(begins[destinations], counts)
    room = limits[places] - HEADER_SIZE
    steps = np.maximum(room - np.repeat(np.maximum.reduceat(sizes, destinations), counts), room // 2)
    parts = begins // np.maximum(steps, 1)
    is_large = sizes > room - steps
    is_start[1:] |= (parts[1:] != parts[:-1]) | is_large[1:] | is_large[:-1]
    return np.flatnonzero(is_start)


# -- records ------------------------------------------------------------------------------------------------------------------


def _records(
    columns: MessageColumns, order: Integers, timestamp_deltas: Integers, offset_deltas: Integers
) -> tuple[memoryview, Integers]:
    """All records, and where each begins; the last number is where the last one ends."""
    count = len(order)
    key_lengths = np.full(count, _NULL) if columns.keys is None else _zigzag_lengths(columns.keys)[order]
    value_lengths = _zigzag_lengths(columns.values)[order]
    time_zigzags = (timestamp_deltas << 1) ^ (timestamp_deltas >> 63)
    offset_zigzags = offset_deltas << 1
    if columns.headers is None:
        headers, header_sizes = pa.array([b"\0"], pa.binary()), np.ones(count, np.int64)
        header_index = np.zeros(count, np.int64)
    else:
        header_data, header_ends = _header_bytes(columns.headers)
        headers = _binary(header_data, header_ends)
        header_sizes, header_index = np.diff(header_ends)[order], order
    sizes = 1 + _widths(time_zigzags) + _widths(offset_zigzags) + _widths(key_lengths) + _widths(value_lengths)
    sizes = sizes + np.where(key_lengths & 1, 0, key_lengths >> 1) + np.where(value_lengths & 1, 0, value_lengths >> 1)
    sizes = sizes + header_sizes
    prefixes = _varint_elements(count, _PREFIX_WIDTH, [sizes << 1, None, time_zigzags, offset_zigzags, key_lengths])
    middles = _varint_elements(count, _VARINT_WIDTH, [value_lengths])
    pieces = [(prefixes, 2 * np.arange(count))]
    if columns.keys is not None:
        pieces.append((columns.keys, order))
    pieces += [(middles, 2 * np.arange(count)), (columns.values, order), (headers, header_index)]
    return _interleaved(pieces)


def _interleaved(pieces: Sequence[tuple[pa.Array, Integers]]) -> tuple[memoryview, Integers]:
    """The bytes of the first element of each piece, then of the second of each, and so on; and where each round begins."""
    count = len(pieces[0][1])
    index = np.empty((count, len(pieces)), np.int64)
    base = 0
    for column, (array, wanted) in enumerate(pieces):
        index[:, column] = wanted + base
        base += len(array)
    taken = pa.concat_arrays([array for array, _ in pieces]).take(pa.array(index.reshape(-1)))
    _, ends, data = taken.buffers()
    edges = np.frombuffer(ends, np.int32)[: len(taken) + 1][:: len(pieces)].astype(np.int64)
    return memoryview(data if data is not None else b""), edges


def _header_bytes(headers: pa.Array) -> tuple[memoryview, Integers]:
    """The encoded headers of each row, with their count before them, and where those of each row begin."""
    counts = np.where(pc.is_null(headers).to_numpy(zero_copy_only=False), 0, _list_lengths(headers))
    flat = pc.list_flatten(headers)
    keys = pc.struct_field(flat, "key").cast(pa.binary())
    values = pc.struct_field(flat, "value").cast(pa.binary())
    total = len(flat)
    every = np.arange(total)
    key_lengths = _varint_elements(total, _VARINT_WIDTH, [_zigzag_lengths(keys)])
    value_lengths = _varint_elements(total, _VARINT_WIDTH, [_zigzag_lengths(values)])
    data, ends = _interleaved([(key_lengths, 2 * every), (keys, every), (value_lengths, 2 * every), (values, every)])
    rows = ends[np.concatenate(([0], np.cumsum(counts)))]
    starts = _varint_elements(len(counts), _VARINT_WIDTH, [counts << 1])
    return _interleaved([(starts, 2 * np.arange(len(counts))), (_binary(data, rows), np.arange(len(counts)))])


def _list_lengths(lists: pa.Array) -> Integers:
    found: Integers = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _binary(data: memoryview, ends: Integers) -> pa.Array:
    """The parts of ``data`` between the ends as an array."""
    return pa.Array.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)], null_count=0
    )


def lengths_of(array: pa.Array) -> Integers:
    """In bytes; 0 for null."""
    found: Integers = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _zigzag_lengths(array: pa.Array) -> Integers:
    """The lengths as a record has them: zigzag, with -1 for null."""
    lengths = lengths_of(array) << 1
    if not array.null_count:
        return lengths
    return np.where(pc.is_null(array).to_numpy(zero_copy_only=False), _NULL, lengths)


def _widths(zigzags: Integers) -> Integers:
    """How many bytes each varint takes."""
    widths = np.ones(len(zigzags), np.int64)
    numbers = zigzags.view(np.uint64)
    greatest = int(numbers.max(initial=0))
    bits = _SHIFT
    while greatest >> bits:
        widths += numbers >= np.uint64(1 << bits)
        bits += _SHIFT
    return widths


def _varint_elements(count: int, width: int, fields: Sequence[Integers | None]) -> pa.Array:
    """One element per row with the varints of all fields (None is a byte of zero), at every second place; between them is what
    is left of the width."""
    begins = np.arange(count) * width
    buffer = np.zeros(count * width, np.uint8)
    places = begins
    for field in fields:
        places = places + 1 if field is None else _write_varints(buffer, places, field.view(np.uint64))
    ends = np.empty((count, 2), np.int32)
    ends[:, 0], ends[:, 1] = begins, places
    every = np.append(ends.reshape(-1), np.int32(count * width))
    return pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(every), pa.py_buffer(buffer)], null_count=0)


def _write_varints(buffer: Bytes, places: Integers, numbers: npt.NDArray[np.uint64]) -> Integers:
    """Write the numbers at their places; returns the places after them."""
    after = places + 1
    continues = numbers >= _CONTINUES
    buffer[places] = (numbers & np.uint64(0x7F)).astype(np.uint8) | (continues.astype(np.uint8) << _SHIFT)
    active = np.flatnonzero(continues)
    rest = numbers[active] >> np.uint64(_SHIFT)
    while active.size:
        continues = rest >= _CONTINUES
        buffer[after[active]] = (rest & np.uint64(0x7F)).astype(np.uint8) | (continues.astype(np.uint8) << _SHIFT)
        after[active] += 1
        active, rest = active[continues], rest[continues] >> np.uint64(_SHIFT)
    return after


# -- partitions ---------------------------------------------------------------------------------------------------------------


def murmur2_of(keys: pa.Array) -> Integers:
    """Kafka's hash of each key, as Java clients compute it (31 bits); 0 for null. Keys of one length are hashed together."""
    found = np.zeros(len(keys), np.int64)
    if not len(keys):
        return found
    starts = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys)].astype(np.int64)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    lengths = lengths_of(keys)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        places = starts[rows][:, None] + np.arange(length)
        found[rows] = _murmur2(data[places], length)
    if keys.null_count:
        found[pc.is_null(keys).to_numpy(zero_copy_only=False)] = 0
    return found


def _murmur2(keys: Bytes, length: int) -> Integers:
    """``keys`` has a row for each key; all have the same length."""
    hashed = np.full(len(keys), _SEED ^ np.uint32(length), np.uint32)
    whole = length & ~3
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4").astype(np.uint32)
    for column in range(whole // 4):
        mixed = words[:, column] * _MIX
        mixed ^= mixed >> np.uint32(24)
        hashed = (hashed * _MIX) ^ (mixed * _MIX)
    if length > whole:
        tail = np.zeros(len(keys), np.uint32)
        for place in range(length - whole):
            tail |= keys[:, whole + place].astype(np.uint32) << np.uint32(8 * place)
        hashed = (hashed ^ tail) * _MIX
    hashed ^= hashed >> np.uint32(13)
    hashed = hashed * _MIX
    hashed ^= hashed >> np.uint32(15)
    return (hashed & np.uint32(0x7FFFFFFF)).astype(np.int64)
