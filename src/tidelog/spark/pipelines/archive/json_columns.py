"""Parses JSON values into columns in the task that reads them, without Spark: the values that are certainly good.

``rows`` defines what is good and why another value is bad, in Spark's terms. This module accepts a value only if Spark would
accept it, with the same fields, and leaves everything else to Spark: bad values, and good ones in forms that are read differently
(a number for a STRING, a DECIMAL that rounds, a time with a zone). So it decides how fast a value is read, not how it is judged.

``pyarrow.json`` parses a document for each value, ``{"v":VALUE}``, with the schema of the table. These rules make that exact:

- A line end follows each document. ``}``, a line end and ``{`` occur together neither in JSON nor in one of its texts, so no
  document has parts of two values. As many documents as values, therefore, are one for each.
- A value that continues as the object around it does, such as ``{"id":1},"other":{"id":2}``, has a ``}`` before a comma. Values
  that have it stand in their document twice, ``{"v":VALUE,"w":[VALUE]}``: nothing continues both an object and a list.
- What pyarrow takes and Spark does not is recognized in the text: NaN and infinity, and values beyond the limits of Spark.
- Dates and times are read as text, and converted if they have the one form in which both agree.

pyarrow parses all values or none, so bad ones are found by halving, or by the row that an error names. Attempts are limited: if
most values are bad, Spark judges the rest, at the price that it always had.
"""

import re
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

# So many values are parsed together: more are not cheaper, and a bad one spoils the attempt.
ROWS_PER_ATTEMPT = 500
# So few values that could not be parsed together are not worth another attempt.
ROWS_PER_ATTEMPT_MIN = 4
# So often is each value parsed on average before the rest is left to Spark. An attempt takes as long as so many values more.
ATTEMPTS_MAX = 6
ROWS_OF_AN_ATTEMPT = 100
# pyarrow parses one block at once, and rows in errors are counted from the start of the block.
BYTES_PER_ATTEMPT_MAX = 64 << 20
# Spark's parser limits the nesting (1000), the digits of a number (1000) and the length of a name (50,000): only values beyond
# the first of these are looked at more closely, and values beyond the second are left to it.
SHORT_BYTES_MAX, LONG_BYTES_MAX = 900, 50_000

_OPEN, _CLOSE = b'{"v":', b"}\n"
_OPEN_AGAIN, _CLOSE_AGAIN = b',"w":[', b"]}\n"
_GOES_ON_AFTER_OBJECT = r"\}\s*,"
# The first of them would end the input.
_ONLY_OF_ARROW = r"\x00|[:,\[]\s*-?(NaN|Inf)"
_MANY_DIGITS = re.compile(rb"[0-9]{500}")
_ROW_IN_ERROR = re.compile(r"in row (\d+)")

_SAME_IN_ARROW = (BooleanType, ByteType, ShortType, IntegerType, LongType, DoubleType, DecimalType)
# The years in which all calendars and limits of times agree. Whether the month has that day is seen when it is converted.
_DATE = r"(1[6-9]|20|21)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?"
_DIGITS = Context(prec=40)
_LAST_DAYS = r"^.{8}(29|3[01])"
_FORM = {pa.date32(): f"^{_DATE}$", pa.timestamp("us", "UTC"): f"^{_DATE}[T ]{_TIME}Z?$"}


class _Uncertain(Exception):
    """Something among the values is left to Spark."""


class ParsedValues(NamedTuple):
    fields: pa.StructArray
    """The fields of each value; null where there are none: for uncertain values, and for messages without a value."""
    is_certain: pa.BooleanArray


class JsonColumns:
    def __init__(self, schema: StructType) -> None:
        """``schema`` is one that ``can_parse``."""
        self._kind: pa.StructType = to_arrow_type(as_nullable(schema), timezone="UTC")
        self._with_required: pa.StructType = to_arrow_type(schema, timezone="UTC")
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema([("v", _as_text(self._kind))]),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        )

    def parse(self, values: pa.Array) -> ParsedValues:
        """``values`` are bytes."""
        is_present = pc.is_valid(values).to_numpy(zero_copy_only=False)
        present = np.flatnonzero(is_present)
        # For every value the place of its fields among the parsed ones.
        places = np.full(len(values), -1, np.int64)
        parts: list[pa.StructArray] = []
        parsed = 0
        for numbers, fields in self._parsed(values.drop_null()):
            places[present[numbers]] = np.arange(parsed, parsed + len(fields))
            parts.append(fields)
            parsed += len(fields)
        found = pa.concat_arrays(parts) if parts else pa.array([], self._kind)
        if parsed < len(values):
            found = found.take(pa.array(places, mask=places < 0))
        return ParsedValues(found, pa.array((places >= 0) | ~is_present))

    def _parsed(self, texts: pa.Array) -> Iterator[tuple[npt.NDArray[np.int64], pa.StructArray]]:
        """Numbers of values and their fields, in order."""
        left = ATTEMPTS_MAX * (len(texts) + ROWS_PER_ATTEMPT)
        for first in range(0, len(texts), ROWS_PER_ATTEMPT):
            part = texts.slice(first, ROWS_PER_ATTEMPT)
            numbers = np.flatnonzero(_read_alike(part))
            documents = _documents(part.take(pa.array(numbers)))
            waiting = [(0, len(documents))]
            while waiting and left > 0:
                start, end = waiting.pop()
                if start == end:
                    continue
                left -= ROWS_OF_AN_ATTEMPT + end - start
                try:
                    found = self._attempt(documents.slice(start, end - start))
                except (_Uncertain, pa.ArrowInvalid) as error:
                    row = _ROW_IN_ERROR.search(str(error))
                    if row is not None:
                        # What comes before it was not converted yet. A value of several documents shifts the number.
                        last = min(start + int(row[1]), end - 1)
                        waiting += [(last + 1, end), (start, last)]
                    elif end - start > ROWS_PER_ATTEMPT_MIN:
                        last = (start + end) // 2
                        waiting += [(last, end), (start, last)]
                    continue
                is_uncertain = _truths(pc.is_null(found)) | _are_uncertain(self._with_required, found)
                certain = found.filter(pa.array(~is_uncertain)) if is_uncertain.any() else found
                yield first + numbers[start:end][~is_uncertain], _converted(certain, self._kind)

    def _attempt(self, documents: pa.Array) -> pa.StructArray:
        """What pyarrow parses."""
        offsets = np.frombuffer(documents.buffers()[1], np.int32)[documents.offset : documents.offset + len(documents) + 1]
        # The texts of an array are one after the other in memory.
        text = documents.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        if text.size > BYTES_PER_ATTEMPT_MAX and len(documents) > 1:
            raise _Uncertain
        found = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=self._options,
        )
        if found.num_rows != len(documents):
            raise _Uncertain
        return found.column("v").combine_chunks()


def _read_alike(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values have nothing in their text that Spark might read otherwise."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([_decoded(value) for value in values.to_pylist()], pa.string())
    alike = _truths(pc.invert(pc.fill_null(pc.match_substring_regex(texts, _ONLY_OF_ARROW), True)))
    sizes = _truths(pc.binary_length(values))
    for number in np.flatnonzero(alike & (sizes > SHORT_BYTES_MAX)):
        value = values[number].as_py()
        alike[number] = (
            len(value) <= LONG_BYTES_MAX
            and value.count(b"{") + value.count(b"[") <= SHORT_BYTES_MAX
            and _MANY_DIGITS.search(value) is None
        )
    return alike


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _documents(values: pa.Array) -> pa.Array:
    parts = [_OPEN, values, _CLOSE]
    if pc.any(pc.match_substring_regex(values, _GOES_ON_AFTER_OBJECT)).as_py():
        parts = [_OPEN, values, _OPEN_AGAIN, values, _CLOSE_AGAIN]
    scalars = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, pa.scalar(b"", pa.binary()))


# -- types --------------------------------------------------------------------------------------------------------------------


def can_parse(kind: DataType) -> bool:
    """Whether there are values of this type that pyarrow and Spark certainly read as the same."""
    if isinstance(kind, StructType):
        return bool(kind.fields) and all(can_parse(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return can_parse(kind.elementType)
    return type(kind) in (*_SAME_IN_ARROW, DateType, TimestampType) or kind == StringType()


def as_nullable(schema: StructType) -> StructType:
    """The same with nothing required, as what is parsed is before it is judged."""
    return StructType([StructField(field.name, _as_nullable(field.dataType), True) for field in schema.fields])


def _as_nullable(kind: DataType) -> DataType:
    if isinstance(kind, ArrayType):
        return ArrayType(_as_nullable(kind.elementType), True)
    return as_nullable(kind) if isinstance(kind, StructType) else kind


def _as_text(kind: pa.DataType) -> pa.DataType:
    """The type to parse: dates and times are text in JSON."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_text(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_text(kind.value_type))
    return pa.string() if kind in _FORM else kind


def _converted(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Dates and times of texts that have their form."""
    if pa.types.is_struct(kind):
        columns = [_converted(pc.struct_field(found, [number]), field.type) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=pc.is_null(found))
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_whole_offsets(found), _converted(found.flatten(), kind.value_type), type=kind)
    return _as_times(found, kind) if kind in _FORM else found


def _as_times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.replace_substring(texts, "Z", "").cast(pa.timestamp("us")).cast(kind)


def _whole_offsets(lists: pa.ListArray) -> pa.Array:
    """Where each list begins among ``flatten()``, null for one that is null."""
    ends = np.concatenate([[0], np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False))])
    is_null = np.append(pc.is_null(lists).to_numpy(zero_copy_only=False), False)
    return pa.array(ends.astype(np.int32), mask=is_null)


def _are_uncertain(kind: pa.DataType, found: pa.Array) -> npt.NDArray[np.bool_]:
    """Where a required field is null and its parent is not, a number has too many digits, or a date or time has another form or
    does not exist."""
    uncertain = np.zeros(len(found), np.bool_)
    if pa.types.is_struct(kind):
        for number, field in enumerate(kind):
            column = pc.struct_field(found, [number])
            if not field.nullable and column.null_count:
                uncertain |= _truths(pc.and_(pc.is_null(column), pc.is_valid(found)))
            uncertain |= _are_uncertain(field.type, column)
    elif pa.types.is_list(kind):
        parents = pc.list_parent_indices(found).to_numpy(zero_copy_only=False)
        uncertain[parents[_are_uncertain(kind.value_type, found.flatten())]] = True
    elif pa.types.is_decimal(kind):
        # pyarrow checks the digits of the text, and not those of the number with its zeros after the point.
        greatest = pa.scalar(Decimal(10**kind.precision - 1).scaleb(-kind.scale, _DIGITS), pa.decimal128(38, kind.scale))
        is_beyond = pc.greater(pc.abs(found.cast(greatest.type)), greatest)
        uncertain = _truths(pc.fill_null(is_beyond, False))
    elif kind in _FORM:
        has_form = pc.match_substring_regex(found, _FORM[kind])
        uncertain = ~_truths(pc.fill_null(has_form, True))
        try:
            _as_times(found.filter(has_form), kind)
        except pa.ArrowInvalid:
            uncertain |= _truths(pc.fill_null(pc.match_substring_regex(found, _LAST_DAYS), False))
    return uncertain


def _truths(found: pa.Array) -> npt.NDArray[np.bool_]:
    truths: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return truths
