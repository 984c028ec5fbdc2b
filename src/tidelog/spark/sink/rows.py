"""Checks the columns of rows for topics, and turns Arrow columns into calls of ``produce``.

**Columns** are checked before anything runs. As in the stock connector, ``value`` (text or bytes) is required; ``key``,
``headers``, ``partition`` and ``topic`` are optional, and ``timestamp`` is our addition. Without the option ``topic`` the column
is required; with the option the column is ignored.

**Rows** are sent with as little Python per row as possible: text and bytes are cut from the column's single buffer by their
offsets, without decoding. Rows that cannot be written are found by examining whole columns before the first row of the batch is
sent, and are named by the task's partition, their number in it (from 0) and their key.
"""

from collections.abc import Callable
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from tidelog.client.errors import DeliveryFailed, InvalidArgument, TidelogError, kafka_errors

# -- columns ------------------------------------------------------------------------------------------------------------------


_TEXT = (StringType, BinaryType)
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": (_TEXT, "string or binary"),
    "value": (_TEXT, "string or binary"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "timestamp": ((TimestampType,), "timestamp"),
}
_HEADERS = "array<struct<key:string,value:binary>>"


class SinkColumns(NamedTuple):
    """The index of each column in the batches; None if it is absent."""

    value: int
    key: int | None
    headers: int | None
    partition: int | None
    timestamp: int | None
    topic: int | None


def check_columns(schema: StructType, topic: str | None) -> SinkColumns:
    places = {field.name.lower(): index for index, field in enumerate(schema.fields)}
    known = [*_TYPES, "headers"]
    for field in schema.fields:
        if field.name.lower() not in known:
            raise InvalidArgument(
                f"the sink has no column {field.name}: select those of {', '.join(known)} (to_json(struct(...)) makes one value "
                "of several columns)"
            )
        _check_type(field.name, field.dataType)
    if "value" not in places:
        raise InvalidArgument(f"the column value is missing: there are {', '.join(schema.fieldNames()) or 'none'}")
    if "topic" not in places and topic is None:
        raise InvalidArgument("the destination is missing: give the option topic, or a column topic")
    return SinkColumns(
        places["value"],
        places.get("key"),
        places.get("headers"),
        places.get("partition"),
        places.get("timestamp"),
        places.get("topic") if topic is None else None,
    )


def _check_type(name: str, found: DataType) -> None:
    if name.lower() == "headers":
        is_right = (
            isinstance(found, ArrayType)
            and isinstance(found.elementType, StructType)
            and [(field.name, type(field.dataType)) for field in found.elementType.fields]
            == [("key", StringType), ("value", BinaryType)]
        )
        wanted = _HEADERS
    else:
        types, wanted = _TYPES[name.lower()]
        is_right = isinstance(found, types)
    if not is_right:
        raise InvalidArgument(f"the column {name} is {wanted}: not {found.simpleString()}")


# -- rows ---------------------------------------------------------------------------------------------------------------------


# An upper bound for what a record and its batch need in addition to key, value and headers.
RECORD_OVERHEAD_BYTES = 100
SHOWN_KEY_BYTES = 50

Produce = Callable[..., None]
SizeLimit = Callable[[str], int]
"""Returns the maximum size of a message of this topic; raises if there is no such topic."""


class RowRefused(TidelogError):
    """A row that cannot be written as it is. Nothing of the batch becomes visible."""


class SinkRows:
    """The rows of one Arrow batch. ``first_row`` is the number of its first in the task."""

    def __init__(self, batch: pa.RecordBatch, columns: SinkColumns, topic: str | None, partition: int, first_row: int) -> None:
        self._batch = batch
        self._columns = columns
        self._topic = topic
        self._task_partition = partition
        self._first_row = first_row

    def check(self, limit_of: SizeLimit, partitions_of: Callable[[str], int] | None = None) -> None:
        """Raises RowRefused for a row without a topic, with a topic that does not exist, with too many bytes for it, or with a
        field out of range. ``partitions_of`` returns the number of partitions of a topic that exists."""
        self._check_values()
        if self._columns.topic is None:
            self._check_sizes(limit_of, self._topic or "", None)
            self._check_partitions(partitions_of, self._topic or "", None)
            return
        topics = self._batch.column(self._columns.topic)
        if topics.null_count:
            raise self.refusal(int(np.argmax(pc.is_null(topics).to_numpy(zero_copy_only=False))), "the topic is null")
        for topic in pc.unique(topics).to_pylist():
            mask = pc.equal(topics, topic).to_numpy(zero_copy_only=False)
            self._check_sizes(limit_of, topic, mask)
            self._check_partitions(partitions_of, topic, mask)

    def _check_values(self) -> None:
        columns = self._columns
        for place, name in ((columns.partition, "partition"), (columns.timestamp, "timestamp")):
            if place is not None:
                numbers = self._batch.column(place).cast(pa.int64())
                is_wrong = pc.fill_null(pc.less(numbers, 0), False).to_numpy(zero_copy_only=False)
                if is_wrong.any():
                    raise self.refusal(int(np.argmax(is_wrong)), f"the {name} is below 0")
        if columns.headers is not None:
            headers = self._batch.column(columns.headers)
            is_null = pc.is_null(pc.struct_field(pc.list_flatten(headers), "key")).to_numpy(zero_copy_only=False)
            if is_null.any():
                row = pc.list_parent_indices(headers)[int(np.argmax(is_null))].as_py()
                raise self.refusal(row, "a header has no name")

    def _check_partitions(self, partitions_of: Callable[[str], int] | None, topic: str, mask: Any) -> None:
        if partitions_of is None or self._columns.partition is None:
            return
        count = partitions_of(topic)
        numbers = pc.fill_null(self._batch.column(self._columns.partition), 0).to_numpy(zero_copy_only=False)
        is_wrong = numbers >= count if mask is None else (numbers >= count) & mask
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            raise self.refusal(row, f"there is no partition {numbers[row]}: topic {topic} has {count}")

    def _check_sizes(self, limit_of: SizeLimit, topic: str, mask: Any) -> None:
        first = 0 if mask is None else int(np.argmax(mask))
        try:
            limit = limit_of(topic)
        except RowRefused as error:
            raise self.refusal(first, str(error)) from error
        sizes = self._sizes()
        if mask is not None:
            sizes = np.where(mask, sizes, 0)
        if len(sizes) and int(sizes.max()) + RECORD_OVERHEAD_BYTES > limit:
            row = int(np.argmax(sizes + RECORD_OVERHEAD_BYTES > limit))
            raise self.refusal(row, f"{int(sizes[row])} bytes are too many: topic {topic} takes messages of up to {limit}")

    def _sizes(self) -> Any:
        """Sizes of key, value and headers together."""
        sizes = np.zeros(self._batch.num_rows, np.int64)
        for place in (self._columns.value, self._columns.key):
            if place is not None:
                sizes += _lengths(self._batch.column(place))
        if self._columns.headers is not None:
            headers = self._batch.column(self._columns.headers)
            flat = pc.list_flatten(headers)
            parents = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
            for field in ("key", "value"):
                np.add.at(sizes, parents, _lengths(pc.struct_field(flat, field)))
        return sizes

    def refusal(self, row: int, reason: str) -> RowRefused:
        key = ""
        if self._columns.key is not None:
            found = _texts(self._batch.column(self._columns.key).slice(row, 1))[0]
            key = "" if found is None else f" (key {found[:SHOWN_KEY_BYTES]!r})"
        number = self._first_row + row
        return RowRefused(f"row {number} of task {self._task_partition}{key}: {reason}. Nothing of the batch was committed")

    def send(self, produce: Produce, wait: Callable[[], None]) -> None:
        """``wait`` is called when the producer's queue is full, and returns when there may be room."""
        columns, count = self._columns, self._batch.num_rows
        topics = repeat(self._topic, count) if columns.topic is None else self._batch.column(columns.topic).to_pylist()
        arguments = [topics, _texts(self._batch.column(columns.value))]
        if columns.key is not None:
            arguments.append(_texts(self._batch.column(columns.key)))
        optional = self._optional()
        row = 0
        try:
            with kafka_errors("produce", "", otherwise=DeliveryFailed):
                for row, given in enumerate(zip(*arguments, strict=True)):
                    while True:
                        try:
                            if optional is None:
                                produce(*given)
                            else:
                                produce(*given, **optional[row])
                            break
                        except BufferError:
                            wait()
        except RowRefused:
            raise
        except TidelogError as error:
            raise self.refusal(row, str(error)) from error

    def _optional(self) -> list[dict[str, Any]] | None:
        """Optional arguments of each row, by the names that ``produce`` gives them."""
        columns = self._columns
        found: dict[str, list[Any]] = {}
        if columns.partition is not None:
            found["partition"] = self._batch.column(columns.partition).to_pylist()
        if columns.timestamp is not None:
            times = self._batch.column(columns.timestamp).cast(pa.int64())
            found["timestamp"] = [None if time_us is None else time_us // 1000 for time_us in times.to_pylist()]
        if columns.headers is not None:
            headers = self._batch.column(columns.headers).to_pylist()
            found["headers"] = [each and [(header["key"], header["value"]) for header in each] for each in headers]
        if not found:
            return None
        return [
            {name: value for name, value in zip(found, values, strict=True) if value is not None}
            for values in zip(*found.values(), strict=True)
        ]


def _offsets(array: pa.Array) -> Any:
    """Where each value begins in the buffer, and where the last one ends."""
    width = np.int64 if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type) else np.int32
    return np.frombuffer(array.buffers()[1], width)[array.offset : array.offset + len(array) + 1]


def _lengths(array: pa.Array) -> Any:
    """The lengths; 0 for null."""
    if not len(array):
        return np.zeros(0, np.int64)
    lengths = np.diff(_offsets(array)).astype(np.int64)
    return np.where(pc.is_null(array).to_numpy(zero_copy_only=False), 0, lengths) if array.null_count else lengths


def _texts(array: pa.Array) -> list[bytes | None]:
    """Yield bytes as they are, and text in UTF-8."""
    if not len(array):
        return []
    ends = _offsets(array).tolist()
    data = array.buffers()[2]
    # Use only this array's part of the buffer: it may be a slice.
    first = ends[0]
    whole = b"" if data is None else data.slice(first, ends[-1] - first).to_pybytes()
    found: list[bytes | None] = [whole[start - first : end - first] for start, end in pairwise(ends)]
    if array.null_count:
        for row in np.flatnonzero(pc.is_null(array).to_numpy(zero_copy_only=False)).tolist():
            found[row] = None
    return found
