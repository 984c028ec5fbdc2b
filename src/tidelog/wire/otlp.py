"""Reads the numbers in OpenTelemetry's MetricsData, the Protocol Buffers message that clients push (KIP-714).

    MetricsData      1: ResourceMetrics*
    ResourceMetrics  2: ScopeMetrics*
    ScopeMetrics     2: Metric*
    Metric           1: name    5: Gauge    7: Sum
    Gauge, Sum       1: NumberDataPoint*
    NumberDataPoint  4: double  6: sfixed64  7: KeyValue*
    KeyValue         1: key     2: AnyValue (1: string  2: bool  3: int64  4: double)

Clients push gauges and sums. Histograms and everything else are skipped, which costs nothing, because a field states its length.
The bytes come from strangers: their work is bounded by ``FIELDS_MAX`` and ``points_max``, and what lies beyond is left out. Like
every decoder of this package it raises only ``MalformedRequest``.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.wire.errors import MalformedRequest

# Some ten milliseconds of work. A data point with three attributes has about twenty fields.
FIELDS_MAX = 20_000
# Longer names and attributes are cut.
TEXT_CHARACTERS_MAX = 200

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_SIZES = {_I64: 8, _I32: 4}
_VARINT_BYTES_MAX = 10

_unpack_double = struct.Struct("<d").unpack_from
_unpack_integer = struct.Struct("<q").unpack_from

Attributes = tuple[tuple[str, str], ...]


class DataPoint(NamedTuple):
    metric: str
    attributes: Attributes
    value: float


class DecodedMetrics(NamedTuple):
    points: list[DataPoint]
    is_cut: bool
    """Whether there was more than the limits allow."""


class _Field(NamedTuple):
    number: int
    kind: int
    start: int
    end: int


class _LimitReached(Exception):
    """The rest is left out."""


def decode_metrics(data: bytes, points_max: int) -> DecodedMetrics:
    reader = _MetricsReader(data, points_max)
    try:
        reader.read()
    except _LimitReached:
        return DecodedMetrics(reader.points, True)
    return DecodedMetrics(reader.points, False)


class _MetricsReader:
    def __init__(self, data: bytes, points_max: int) -> None:
        self._data = data
        self._points_max = points_max
        self._fields_left = FIELDS_MAX
        self.points: list[DataPoint] = []

    def read(self) -> None:
        for resource in self._messages(0, len(self._data), 1):
            for scope in self._messages(resource.start, resource.end, 2):
                for metric in self._messages(scope.start, scope.end, 2):
                    self._read_metric(metric)

    def _read_metric(self, metric: _Field) -> None:
        name = ""
        contents: list[_Field] = []
        for field in self._fields(metric.start, metric.end):
            if field.number == 1:
                name = self._text(field)
            elif field.number in (5, 7):
                contents.append(field)
        for content in contents:
            for point in self._messages(content.start, content.end, 1):
                self._read_point(name, point)

    def _read_point(self, name: str, point: _Field) -> None:
        value: float | None = None
        attributes: list[tuple[str, str]] = []
        for field in self._fields(point.start, point.end):
            if field.number == 4 and field.kind == _I64:
                (value,) = _unpack_double(self._data, field.start)
            elif field.number == 6 and field.kind == _I64:
                (value,) = _unpack_integer(self._data, field.start)
            elif field.number == 7:
                attributes.append(self._attribute(field))
        if value is None:
            return
        if len(self.points) == self._points_max:
            raise _LimitReached
        self.points.append(DataPoint(name, tuple(attributes), value))

    def _attribute(self, attribute: _Field) -> tuple[str, str]:
        key = value = ""
        for field in self._fields(attribute.start, attribute.end):
            if field.number == 1:
                key = self._text(field)
            elif field.number == 2:
                for each in self._fields(field.start, field.end):
                    value = self._any_value(each)
        return key, value

    def _any_value(self, field: _Field) -> str:
        if field.number == 1:
            return self._text(field)
        if field.number == 4 and field.kind == _I64:
            return str(_unpack_double(self._data, field.start)[0])
        if field.kind == _VARINT:
            number, _ = self._varint(field.start, field.end)
            if field.number == 2:
                return "true" if number else "false"
            if field.number == 3:
                return str(number - (1 << 64) if number >= 1 << 63 else number)
        return ""

    def _text(self, field: _Field) -> str:
        # A character takes at most four bytes, so this much is enough for what is kept.
        end = min(field.end, field.start + 4 * TEXT_CHARACTERS_MAX)
        return self._data[field.start : end].decode(errors="replace")[:TEXT_CHARACTERS_MAX]

    def _messages(self, start: int, end: int, number: int) -> Iterator[_Field]:
        return (field for field in self._fields(start, end) if field.number == number and field.kind == _LEN)

    def _fields(self, position: int, end: int) -> Iterator[_Field]:
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise _LimitReached
            key, position = self._varint(position, end)
            kind = key & 7
            if kind == _LEN:
                size, position = self._varint(position, end)
                stop = position + size
            elif kind == _VARINT:
                _, stop = self._varint(position, end)
            elif kind in _SIZES:
                stop = position + _SIZES[kind]
            else:
                raise MalformedRequest(f"a field of the metrics has the unknown type {kind}")
            if stop > end:
                raise MalformedRequest(f"a field of the metrics ends at {stop}, past its message's end at {end}")
            yield _Field(key >> 3, kind, position, stop)
            position = stop

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            if position >= end:
                raise MalformedRequest("the metrics end within a number")
            byte = self._data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
        raise MalformedRequest("a number in the metrics has more than 64 bits")
