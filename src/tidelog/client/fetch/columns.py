"""Converts the records of a fetch response to Arrow columns, all records of many batches, and of many partitions, at once.

**Batches.** A loop over the lengths finds where batches begin (``whole_batches``), and numpy reads the header fields of all of
them together, so that a log of one record per batch does not cost Python code for each. Checksums are computed one by one, in C.

**What a reader may see.** Under read_committed the response names the aborted transactions as (producer id, first offset). From
that offset on until the producer's abort marker, its transactional batches are left out. The response names all transactions that
concern its records, so nothing is remembered from one response to the next. Control batches are always left out. A response may
end within a batch; the next response has that batch again.

**Columns.** Batches are decoded in chunks: where they lie if they are not compressed, else decompressed and laid end to end.
``scan`` finds where each record begins; from there numpy reads every field of all records, first the varints and then the bytes.
Keys and values are not collected one by one. The buffer itself is viewed as an Arrow array whose elements are in turn a key, a
value and what lies between them (their ends ascend), and Arrow's ``take`` picks the keys and the values out of it at the speed of
memcpy.

Nothing is trusted: each length is checked against the end of its record, offsets must ascend and lie within their batch, and
whatever does not fit raises BrokenBatch, which names the first batch that does not.

Headers are decoded only on request. Most records have few of them, so the first headers of all records are read at once, then the
second of those that have two, and so on. The headers of a record with very many are read one by one beyond a limit, so that it
does not cost a pass over all records for each.
"""

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastcrc.crc32 import iscsi as crc32c

from tidelog.client.fetch.errors import BrokenBatch
from tidelog.client.fetch.scan import RECORD_BYTES_MIN, Bytes, Integers, read_deltas, read_lengths, record_positions
from tidelog.client.fetch.types import HEADERS_TYPE, MICROSECONDS, MILLISECONDS_MAX, SCHEMA, FetchRange
from tidelog.ports.disk import Buffer
from tidelog.records.compression import compression_type, decompress
from tidelog.records.control import ControlType, read_control_type
from tidelog.records.errors import CorruptBatch, InvalidBatch, RecordError
from tidelog.records.header import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_MIN,
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_MASK,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    iterate_headers,
    read_header,
)
from tidelog.records.varint import VARINT_BITS, read_zigzag

# The limit for one batch. A producer compresses about a megabyte at a time; a hundred times that is a bomb.
DECOMPRESSED_BYTES_MAX = 100 << 20
# Batches are decoded together up to this many bytes, or the rows of an Arrow batch. What fits into a processor's cache is cheaper
# to copy, here and in Spark: with messages of 1 kB this takes 15 % less processor time than 8 MB.
CHUNK_BYTES = 2 << 20

HeaderFields: TypeAlias = npt.NDArray[Any]

_HEADER_FIELDS = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
_LENGTH_POSITION = 8
_unpack_length = struct.Struct(">i").unpack_from
_NULL = 1
_TIMESTAMP = SCHEMA.field("timestamp").type
# This many headers of each record are read together with those of other records.
_ROUNDS_MAX = 64
_KEY_START, _KEY_END, _VALUE_START, _VALUE_END = range(4)


# -- batches ------------------------------------------------------------------------------------------------------------------


class FetchedBatches(NamedTuple):
    """The batches of one range in a response."""

    wanted: FetchRange
    records: memoryview
    positions: Sequence[int]
    """Where its whole batches begin."""
    aborted: Sequence[tuple[int, int]] | None = None


def whole_batches(records: memoryview) -> list[int]:
    """Where the whole batches begin. Raises UnsupportedMagic or CorruptBatch for what is not a batch."""
    found: list[int] = []
    position, last_start = 0, len(records) - HEADER_SIZE
    while position <= last_start:
        (length,) = _unpack_length(records, position + _LENGTH_POSITION)
        if length < BATCH_LENGTH_MIN or records[position + MAGIC_POSITION] != MAGIC:
            break
        following = position + length + LOG_OVERHEAD
        if following > len(records):
            return found
        found.append(position)
        position = following
    # What is left is the beginning of a batch, or not a batch, which this refuses.
    for _ in iterate_headers(records, position):
        pass
    return found


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


class _Response(NamedTuple):
    """All batches of a response, laid end to end, and the fields of their headers by the number of the batch."""

    fetched: Sequence[FetchedBatches]
    data: bytes
    positions: Integers
    ends: Integers
    fields: HeaderFields
    range_of_batch: Integers
    base_offsets: Integers
    last_offsets: Integers


def _laid_out(fetched: Sequence[FetchedBatches]) -> _Response:
    data = b"".join([each.records for each in fetched])
    starts = np.cumsum([0, *(len(each.records) for each in fetched)])
    counts = [len(each.positions) for each in fetched]
    range_of_batch = np.repeat(np.arange(len(fetched)), counts)
    positions = np.array([position for each in fetched for position in each.positions], np.int64) + starts[range_of_batch]
    array = np.frombuffer(data, np.uint8)
    if len(positions):
        rows = np.lib.stride_tricks.sliding_window_view(array, HEADER_SIZE)[positions]
        fields = rows.view(_HEADER_FIELDS).reshape(-1)
    else:
        fields = np.empty(0, _HEADER_FIELDS)
    ends = positions + fields["batch_length"] + LOG_OVERHEAD
    base_offsets = fields["base_offset"].astype(np.int64)
    last_offsets = base_offsets + fields["last_offset_delta"]
    return _Response(fetched, data, positions, ends, fields, range_of_batch, base_offsets, last_offsets)


def _first_corrupt(response: _Response) -> int | None:
    """The number of the first batch that fails its checksum."""
    view = memoryview(response.data)
    places = zip((response.positions + ATTRIBUTES_POSITION).tolist(), response.ends.tolist(), strict=True)
    crcs = np.array([crc32c(view[start:end]) for start, end in places], np.uint32)
    wrong = np.flatnonzero(crcs != response.fields["crc"])
    return int(wrong[0]) if wrong.size else None


def _visible(response: _Response) -> npt.NDArray[np.bool_]:
    """Which batches have records that the reader wants and may see."""
    fields = response.fields
    starts, ends = _bounds(response.fetched)
    is_visible: npt.NDArray[np.bool_] = (fields["attributes"] & CONTROL_MASK == 0) & (fields["record_count"] != 0)
    is_visible &= response.last_offsets >= starts[response.range_of_batch]
    is_visible &= response.base_offsets < ends[response.range_of_batch]
    for number, each in enumerate(response.fetched):
        if each.aborted:
            is_hidden = AbortedFilter(each.aborted).is_aborted
            hidden = [is_hidden(each.records, place, read_header(each.records, place)) for place in each.positions]
            is_visible[response.range_of_batch == number] &= ~np.array(hidden, np.bool_)
    return is_visible


def _bounds(fetched: Sequence[FetchedBatches]) -> tuple[Integers, Integers]:
    starts = [each.wanted.start for each in fetched]
    return np.array(starts, np.int64), np.array([each.wanted.end for each in fetched], np.int64)


def decoded_batches(fetched: Sequence[FetchedBatches], *, checks_crcs: bool) -> Iterator[pa.RecordBatch]:
    """The wanted records of a response as Arrow batches, in order by range. Each batch is decompressed only when the caller
    reaches it.

    BrokenBatch names the first batch that is not valid; what comes before it is returned first.
    """
    response = _laid_out(fetched)
    corrupt = _first_corrupt(response) if checks_crcs else None
    visible = np.flatnonzero(_visible(response)[:corrupt])
    for numbers, bodies in _chunks(response, visible.tolist()):
        yield from _decoded_chunk(response, numbers, bodies)
    if corrupt is not None:
        error = CorruptBatch(f"the batch at offset {response.base_offsets[corrupt]} fails its checksum")
        raise _broken(response, corrupt, error)


_Body: TypeAlias = Buffer | None
"""The decompressed records of a batch; None where they are not compressed and stay where they are."""


def _chunks(response: _Response, visible: Sequence[int]) -> Iterator[tuple[list[int], list[_Body]]]:
    rows_max = response.fetched[0].wanted.max_rows_per_batch if response.fetched else 0
    codes = (response.fields["attributes"] & COMPRESSION_MASK).tolist()
    counts = response.fields["record_count"].tolist()
    sizes = (response.ends - response.positions).tolist()
    numbers: list[int] = []
    bodies: list[_Body] = []
    rows = size = 0
    for number in visible:
        body = None
        if codes[number]:
            try:
                body = _decompressed(response, number, codes[number])
            except RecordError as error:
                if numbers:
                    yield numbers, bodies
                raise _broken(response, number, error) from error
        numbers.append(number)
        bodies.append(body)
        rows += counts[number]
        size += sizes[number] if body is None else len(body)
        if rows >= rows_max or size >= CHUNK_BYTES:
            yield numbers, bodies
            numbers, bodies, rows, size = [], [], 0, 0
    if numbers:
        yield numbers, bodies


def _decompressed(response: _Response, number: int, code: int) -> Buffer:
    body = memoryview(response.data)[int(response.positions[number]) + HEADER_SIZE : int(response.ends[number])]
    return decompress(compression_type(code), body, DECOMPRESSED_BYTES_MAX)


def _decoded_chunk(response: _Response, numbers: list[int], bodies: list[_Body]) -> Iterator[pa.RecordBatch]:
    try:
        yield from _record_batches(_rows_of(response, numbers, bodies))
    except RecordError as problem:
        # Batches are decoded together, so the broken one is found by decoding one at a time.
        for number, body in zip(numbers, bodies, strict=True):
            try:
                for _ in _record_batches(_rows_of(response, [number], [body])):
                    pass
            except RecordError as error:
                raise _broken(response, number, error) from error
        raise _broken(response, numbers[0], problem) from problem


def _broken(response: _Response, number: int, error: RecordError) -> BrokenBatch:
    wanted = response.fetched[int(response.range_of_batch[number])].wanted
    return BrokenBatch(f"{wanted.name} at offset {response.base_offsets[number]}: {error}")


# -- columns ------------------------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Where the records of a chunk lie in ``data``, by row, and the batches that they belong to."""

    data: bytes
    array: Bytes
    positions: Integers
    batch_of_row: Integers
    fields: HeaderFields
    base_offsets: Integers
    range_of_batch: Integers
    starts: Integers
    """By batch: the first offset that is wanted."""
    ends: Integers
    is_whole: bool
    """Whether the records of all batches are wanted."""
    ranges: Sequence[FetchRange]


def _rows_of(response: _Response, numbers: Sequence[int], bodies: Sequence[_Body]) -> _Rows:
    """Find all records. InvalidBatch if a batch does not match its header."""
    chosen = np.array(numbers, np.int64)
    if any(body is not None for body in bodies):
        view = memoryview(response.data)
        parts = [
            view[int(response.positions[number]) + HEADER_SIZE : int(response.ends[number])] if body is None else body
            for number, body in zip(numbers, bodies, strict=True)
        ]
        data = b"".join(parts)
        edges = np.cumsum([0, *(len(part) for part in parts)])
        begins, finishes = edges[:-1], edges[1:]
    else:
        data = response.data
        begins, finishes = response.positions[chosen] + HEADER_SIZE, response.ends[chosen]
    fields = response.fields[chosen]
    range_of_batch = response.range_of_batch[chosen]
    starts, ends = (bound[range_of_batch] for bound in _bounds(response.fetched))
    base_offsets = response.base_offsets[chosen]
    is_whole = bool((base_offsets >= starts).all() and (response.last_offsets[chosen] < ends).all())
    counts = fields["record_count"].astype(np.int64)
    array = np.frombuffer(data, np.uint8)
    positions = _positions(data, array, begins, finishes, counts)
    batch_of_row = np.repeat(np.arange(len(chosen)), counts)
    ranges = [each.wanted for each in response.fetched]
    return _Rows(data, array, positions, batch_of_row, fields, base_offsets, range_of_batch, starts, ends, is_whole, ranges)


def _positions(data: bytes, array: Bytes, begins: Integers, finishes: Integers, counts: Integers) -> Integers:
    """Where each record begins. Batches of one record need no search, only the check that it fills its batch."""
    impossible = np.flatnonzero((counts < 0) | (counts > (finishes - begins) // RECORD_BYTES_MIN))
    if impossible.size:
        first = impossible[0]
        raise InvalidBatch(f"{finishes[first] - begins[first]} bytes cannot hold {counts[first]} records")
    found = np.empty(int(counts.sum()), np.int64)
    first_rows = np.cumsum(counts) - counts
    is_single = counts == 1
    if is_single.any():
        try:
            lengths, bodies = read_lengths(array, begins[is_single])
        except IndexError:
            raise InvalidBatch("a record claims more bytes than there are") from None
        if (bodies + (lengths >> 1) != finishes[is_single]).any():
            raise InvalidBatch("a record does not end where its batch does")
        found[first_rows[is_single]] = begins[is_single]
    for number in np.flatnonzero(~is_single).tolist():
        row, count = int(first_rows[number]), int(counts[number])
        parts = record_positions(data, array, int(begins[number]), int(finishes[number]), count)
        found[row : row + count] = np.concatenate(parts) if parts else ()
    return found


def _record_batches(rows: _Rows) -> Iterator[pa.RecordBatch]:
    """The wanted records as Arrow batches of about equal size."""
    count = len(rows.positions)
    if not count:
        return
    parts = -(-count // rows.ranges[0].max_rows_per_batch)
    part_rows = -(-count // parts)
    for first in range(0, count, part_rows):
        try:
            batch = _decode_rows(rows, slice(first, min(count, first + part_rows)))
        except IndexError:
            raise InvalidBatch("a record claims more bytes than there are") from None
        if batch.num_rows:
            yield batch


def _decode_rows(rows: _Rows, part: slice) -> pa.RecordBatch:
    """A part of the rows, without those whose offsets are not wanted."""
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
    offsets = rows.base_offsets[batch_of_row] + (offset_deltas >> 1)
    _check(rows, batch_of_row, lengths, offset_deltas, offsets)
    # At least one byte must be left for the count of headers.
    if (value_ends >= record_ends).any():
        raise InvalidBatch("a key or value claims more bytes than its record has")
    chosen: slice | Integers = slice(None)
    if not rows.is_whole:
        chosen = np.flatnonzero((offsets >= rows.starts[batch_of_row]) & (offsets < rows.ends[batch_of_row]))
    batch_of_row, offsets = batch_of_row[chosen], offsets[chosen]
    count = len(offsets)

    names = rows.ranges[0].schema.names
    found: dict[str, pa.Array] = {"offset": pa.array(offsets)}
    lengths_of = {"key": key_lengths[chosen], "value": value_lengths[chosen]}
    nulls = {name: _nulls(each) for name, each in lengths_of.items()}
    if not nulls.keys().isdisjoint(names):
        ends = np.empty((count, 4), np.int32)
        for column, places in enumerate((key_starts, key_ends, value_starts, value_ends)):
            ends[:, column] = places[chosen]
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(rows.data)]
        elements = pa.Array.from_buffers(pa.binary(), max(0, 4 * count - 1), buffers, null_count=0)
        for first, name in ((0, "key"), (2, "value")):
            if name in names:
                found[name] = _picked(elements, first, nulls[name])
    if "topic" in names or "partition" in names:
        found["topic"], found["partition"] = _places(rows, batch_of_row)
    if "timestamp" in names or "timestampType" in names:
        is_append_time = (rows.fields["attributes"] & LOG_APPEND_TIME_MASK != 0)[batch_of_row]
        times = _timestamps(rows.fields, batch_of_row, timestamp_deltas[chosen], is_append_time)
        found["timestamp"] = pa.Array.from_buffers(_TIMESTAMP, count, [None, pa.py_buffer(times)], null_count=0)
        # 0 for the producer's time, 1 for the broker's. A topic has both if its setting was changed.
        found["timestampType"] = pa.array(is_append_time.astype(np.int32))
    if "headers" in names:
        found["headers"] = _headers_column(rows.data, data, value_ends[chosen], record_ends[chosen])
    return pa.RecordBatch.from_arrays([found[name] for name in names], schema=rows.ranges[0].schema)


def _check(rows: _Rows, batch_of_row: Integers, lengths: Integers, offset_deltas: Integers, offsets: Integers) -> None:
    if (lengths & 1).any():
        raise InvalidBatch("the length of a record is negative")
    if (offset_deltas & 1).any() or ((offset_deltas >> 1) > rows.fields["last_offset_delta"][batch_of_row]).any():
        raise InvalidBatch("the offset of a record is outside of its batch")
    is_behind = offsets[1:] <= offsets[:-1]
    if is_behind.any():
        range_of_row = rows.range_of_batch[batch_of_row]
        if (is_behind & (range_of_row[1:] == range_of_row[:-1])).any():
            raise InvalidBatch("the offsets of the records do not ascend")


def _places(rows: _Rows, batch_of_row: Integers) -> tuple[pa.Array, pa.Array]:
    """The columns topic and partition."""
    numbers = np.array([each.partition for each in rows.ranges], np.int32)
    range_of_row = rows.range_of_batch[batch_of_row]
    names = list(dict.fromkeys(each.topic for each in rows.ranges))
    if len(names) == 1:
        topics = pa.repeat(pa.scalar(names[0], pa.string()), len(batch_of_row))
    else:
        codes = np.array([names.index(each.topic) for each in rows.ranges], np.int32)
        topics = pa.array(names, pa.string()).take(pa.array(codes[range_of_row]))
    return topics, pa.array(numbers[range_of_row])


def _nulls(lengths: Integers) -> npt.NDArray[np.bool_]:
    """Where the length is -1."""
    is_null = (lengths & 1).astype(np.bool_)
    if (lengths[is_null] != _NULL).any():
        raise InvalidBatch("the length of a key or value is below -1")
    return is_null


def _picked(elements: pa.Array, first: int, is_null: npt.NDArray[np.bool_]) -> pa.Array:
    """Every fourth element from ``first`` on."""
    if is_null.all():
        return pa.nulls(len(is_null), pa.binary())
    return elements.take(pa.array(np.arange(first, first + 4 * len(is_null), 4), mask=is_null if is_null.any() else None))


def _timestamps(
    fields: HeaderFields, batch_of_row: Integers, deltas: Integers, is_append_time: npt.NDArray[np.bool_]
) -> Integers:
    """The timestamps in microseconds."""
    times = fields["base_timestamp"].astype(np.int64)[batch_of_row] + deltas
    if is_append_time.any():
        times = np.where(is_append_time, fields["max_timestamp"].astype(np.int64)[batch_of_row], times)
    np.clip(times, -MILLISECONDS_MAX, MILLISECONDS_MAX, out=times)
    times *= MICROSECONDS
    return times


class HeldRows:
    """Holds small Arrow batches back until together they have enough rows: each batch costs Spark about as much as a thousand
    rows."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
        if self._rows + batch.num_rows > rows_max:
            yield from self.flush()
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= rows_max or self._bytes >= CHUNK_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        batches, self._batches = self._batches, []
        self._rows = self._bytes = 0
        if batches:
            yield batches[0] if len(batches) == 1 else pa.concat_batches(batches)


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
