"""A generic codec for metadata records: a table of fields per record, and two functions that walk it.

A record's value in the log, all in Kafka's flexible encoding::

    frame version uvarint (1) | api key uvarint | version uvarint | fields in the table's order | tagged fields

A field belongs to the versions from ``since`` on; one with a ``tag`` travels among the tagged fields, and only when it differs
from its default. Defaults stand in the dataclass. Tags that the table does not have are skipped: a newer Kafka may add some to
a version.
"""

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidelog.metadata.errors import MalformedRecord, UnsupportedRecord
from tidelog.ports.disk import Buffer
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import (
    COMPACT_NULL,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_TAGGED_FIELDS,
    UUID_SIZE,
    Reader,
    write_compact_length,
    write_compact_nullable_string,
    write_compact_string,
    write_tagged_field,
    write_unsigned_varint,
)

FRAME_VERSION = 1
_UINT16 = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class FieldType:
    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]
    size_min: int


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: FieldType
    since: int = 0
    tag: int | None = None


class Schema:
    """One kind of record: its dataclass, its number, and its fields by version."""

    __slots__ = ("api_key", "by_tag", "defaults", "fields", "record_type", "version_max")

    def __init__(self, record_type: type, api_key: int, version_max: int, fields: tuple[Field, ...]) -> None:
        self.record_type = record_type
        self.api_key = api_key
        self.version_max = version_max
        self.fields = fields
        self.by_tag = {field.tag: field for field in fields if field.tag is not None}
        self.defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(record_type)}
        assert [field.name for field in fields] == list(self.defaults), f"{record_type.__name__}: table and dataclass differ"


def _write_boolean(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def _read_uint16(reader: Reader) -> int:
    value: int = _UINT16.unpack_from(reader.view, reader.take(2))[0]
    return value


def _write_uuid(value: bytes) -> bytes:
    if len(value) != UUID_SIZE:
        raise ValueError(f"an id of {len(value)} bytes, not {UUID_SIZE}")
    return value


BOOLEAN = FieldType(Reader.boolean, _write_boolean, 1)
INTEGER_8 = FieldType(Reader.int8, INT8.pack, 1)
INTEGER_16 = FieldType(Reader.int16, INT16.pack, 2)
UNSIGNED_16 = FieldType(_read_uint16, _UINT16.pack, 2)
INTEGER_32 = FieldType(Reader.int32, INT32.pack, 4)
INTEGER_64 = FieldType(Reader.int64, INT64.pack, 8)
FLOAT_64 = FieldType(Reader.float64, FLOAT64.pack, 8)
UUID = FieldType(Reader.uuid, _write_uuid, UUID_SIZE)
STRING = FieldType(Reader.compact_string, write_compact_string, 1)
NULLABLE_STRING = FieldType(Reader.compact_nullable_string, write_compact_nullable_string, 1)


def array_of(element: FieldType) -> FieldType:
    def read(reader: Reader) -> tuple[Any, ...]:
        return tuple([element.read(reader) for _ in range(reader.compact_array_length(element.size_min))])

    def write(values: tuple[Any, ...]) -> bytes:
        return write_compact_length(len(values)) + b"".join(map(element.write, values))

    return FieldType(read, write, 1)


def nullable_array_of(element: FieldType) -> FieldType:
    array = array_of(element)

    def read(reader: Reader) -> tuple[Any, ...] | None:
        length = reader.compact_nullable_array_length(element.size_min)
        return None if length is None else tuple([element.read(reader) for _ in range(length)])

    def write(values: tuple[Any, ...] | None) -> bytes:
        return COMPACT_NULL if values is None else array.write(values)

    return FieldType(read, write, 1)


def structure(record_type: type, fields: tuple[tuple[str, FieldType], ...]) -> FieldType:
    """An element of an array with fields of its own, the same in all versions."""

    def read(reader: Reader) -> Any:
        values = {name: field.read(reader) for name, field in fields}
        reader.skip_tagged_fields()
        return record_type(**values)

    def write(value: Any) -> bytes:
        return b"".join([field.write(getattr(value, name)) for name, field in fields]) + NO_TAGGED_FIELDS

    return FieldType(read, write, 1 + sum(field.size_min for _, field in fields))


def encode(schema: Schema, record: object, version: int) -> bytes:
    """The record's value in the log. ValueError when the version cannot say what the record says."""
    if not 0 <= version <= schema.version_max:
        raise ValueError(f"{type(record).__name__} has no version {version}")
    parts = [write_unsigned_varint(FRAME_VERSION), write_unsigned_varint(schema.api_key), write_unsigned_varint(version)]
    tagged: list[tuple[int, bytes]] = []
    for field in schema.fields:
        value = getattr(record, field.name)
        if version < field.since:
            if value != schema.defaults[field.name]:
                raise ValueError(f"{type(record).__name__} version {version} has no {field.name}")
        elif field.tag is None:
            parts.append(field.type.write(value))
        elif value != schema.defaults[field.name]:
            tagged.append((field.tag, field.type.write(value)))
    parts.append(write_unsigned_varint(len(tagged)))
    parts += [write_tagged_field(tag, value) for tag, value in sorted(tagged)]
    return b"".join(parts)


def decode(schemas: dict[int, Schema], value: Buffer) -> tuple[Any, int]:
    """(record, version). UnsupportedRecord for what a later Kafka may have written, MalformedRecord for what nobody did."""
    reader = Reader(memoryview(value))
    try:
        return _decode(schemas, reader)
    except MalformedRequest as error:
        raise MalformedRecord(f"a metadata record of {len(value)} bytes cannot be read: {error}") from error


def _decode(schemas: dict[int, Schema], reader: Reader) -> tuple[Any, int]:
    frame_version = reader.unsigned_varint()
    if frame_version != FRAME_VERSION:
        raise UnsupportedRecord(f"a metadata record has frame version {frame_version}, known is {FRAME_VERSION}")
    api_key, version = reader.unsigned_varint(), reader.unsigned_varint()
    schema = schemas.get(api_key)
    if schema is None:
        raise UnsupportedRecord(f"metadata record of unknown kind {api_key}, version {version}")
    if version > schema.version_max:
        name = schema.record_type.__name__
        raise UnsupportedRecord(f"{name} has version {version}, known are 0 to {schema.version_max}")
    values = {field.name: field.type.read(reader) for field in schema.fields if field.tag is None and version >= field.since}
    for tag, data in reader.tagged_fields():
        field = schema.by_tag.get(tag)
        if field is not None and version >= field.since:
            tagged = Reader(data)
            values[field.name] = field.type.read(tagged)
            tagged.expect_end()
    reader.expect_end()
    return schema.record_type(**values), version
