"""Records as tables: which fields a key and a value have, in which order, since which version.

A version before ``flexible_since`` has strings with an int16 length, bytes and arrays with an int32 length and no tagged fields;
from it on all lengths are varints, and every structure ends with tagged fields (see ``wire.primitives``). A field with a tag
travels among these, and only when it differs from its default; tags that the table does not have are skipped. A field that a
version does not have gets its default.
"""

from collections.abc import Callable
from typing import Any

from tidelog.coordinator.errors import UnreadableShard
from tidelog.wire.primitives import (
    INT8,
    INT16,
    INT32,
    INT64,
    Reader,
    write_bytes_length,
    write_compact_length,
    write_compact_nullable_string,
    write_compact_string,
    write_nullable_string,
    write_string,
    write_tagged_field,
    write_unsigned_varint,
)


class Encoding:
    """One version: its number, and whether it is flexible."""

    __slots__ = ("is_flexible", "version")

    def __init__(self, version: int, is_flexible: bool) -> None:
        self.version = version
        self.is_flexible = is_flexible


class FieldType:
    __slots__ = ("read", "write")

    def __init__(self, read: Callable[[Reader, Encoding], Any], write: Callable[[Any, Encoding], bytes]) -> None:
        self.read = read
        self.write = write


class Field:
    __slots__ = ("default", "name", "since", "tag", "type")

    def __init__(self, name: str, type_: FieldType, *, since: int = 0, tag: int | None = None, default: Any = None) -> None:
        """``default`` counts for fields with a tag or a first version only."""
        self.name = name
        self.type = type_
        self.since = since
        self.tag = tag
        self.default = default


def _fixed(read: Callable[[Reader], Any], write: Callable[[Any], bytes]) -> FieldType:
    return FieldType(lambda reader, _: read(reader), lambda value, _: write(value))


def _by_flexibility(
    read: Callable[[Reader], Any],
    read_compact: Callable[[Reader], Any],
    write: Callable[[Any], bytes],
    write_compact: Callable[[Any], bytes],
) -> FieldType:
    return FieldType(
        lambda reader, encoding: read_compact(reader) if encoding.is_flexible else read(reader),
        lambda value, encoding: write_compact(value) if encoding.is_flexible else write(value),
    )


INTEGER_8 = _fixed(Reader.int8, INT8.pack)
INTEGER_16 = _fixed(Reader.int16, INT16.pack)
INTEGER_32 = _fixed(Reader.int32, INT32.pack)
INTEGER_64 = _fixed(Reader.int64, INT64.pack)
UUID = _fixed(Reader.uuid, bytes)
STRING = _by_flexibility(Reader.string, Reader.compact_string, write_string, write_compact_string)
NULLABLE_STRING = _by_flexibility(
    Reader.nullable_string, Reader.compact_nullable_string, write_nullable_string, write_compact_nullable_string
)
BYTES = _by_flexibility(
    lambda reader: bytes(reader.bytes_()),
    lambda reader: bytes(reader.compact_bytes()),
    lambda value: write_bytes_length(len(value)) + value,
    lambda value: write_compact_length(len(value)) + value,
)


def array_of(element: FieldType) -> FieldType:
    def read(reader: Reader, encoding: Encoding) -> tuple[Any, ...]:
        count = reader.compact_array_length() if encoding.is_flexible else reader.array_length()
        return tuple([element.read(reader, encoding) for _ in range(count)])

    def write(values: tuple[Any, ...], encoding: Encoding) -> bytes:
        length = write_compact_length(len(values)) if encoding.is_flexible else write_bytes_length(len(values))
        return length + b"".join([element.write(value, encoding) for value in values])

    return FieldType(read, write)


def nullable_array_of(element: FieldType) -> FieldType:
    """An array without a tag that may be null, which is None here."""
    array = array_of(element)

    def read(reader: Reader, encoding: Encoding) -> tuple[Any, ...] | None:
        before = reader.position
        length = reader.compact_nullable_array_length() if encoding.is_flexible else reader.nullable_array_length()
        if length is None:
            return None
        reader.position = before
        found: tuple[Any, ...] = array.read(reader, encoding)
        return found

    def write(values: tuple[Any, ...] | None, encoding: Encoding) -> bytes:
        if values is None:
            return b"\0" if encoding.is_flexible else INT32.pack(-1)
        return array.write(values, encoding)

    return FieldType(read, write)


def or_null(type_: FieldType, is_marked: bool) -> FieldType:
    """A tagged array or structure that may be null, where null is also the default and so is never written. An array's length
    can say null by itself; a structure is ``is_marked``: a byte before it says whether it is there."""

    def read(reader: Reader, encoding: Encoding) -> Any:
        if is_marked:
            return None if reader.int8() < 0 else type_.read(reader, encoding)
        if reader.remaining() and not reader.view[reader.position]:
            reader.take(1)
            return None
        return type_.read(reader, encoding)

    def write(value: Any, encoding: Encoding) -> bytes:
        return (b"\1" if is_marked else b"") + type_.write(value, encoding)

    return FieldType(read, write)


def structure(value_type: Callable[..., Any], *fields: Field) -> FieldType:
    """``value_type`` is a named tuple whose fields are these, in their order."""
    by_tag = {field.tag: (index, field) for index, field in enumerate(fields) if field.tag is not None}

    def read(reader: Reader, encoding: Encoding) -> Any:
        version = encoding.version
        values = [
            field.default if field.tag is not None or field.since > version else field.type.read(reader, encoding)
            for field in fields
        ]
        if encoding.is_flexible:
            for tag, data in reader.tagged_fields():
                if tag in by_tag:
                    index, field = by_tag[tag]
                    tagged = Reader(data)
                    values[index] = field.type.read(tagged, encoding)
                    tagged.expect_end()
        return value_type(*values)

    def write(value: Any, encoding: Encoding) -> bytes:
        parts = []
        tagged = []
        for field, content in zip(fields, value, strict=True):
            if field.tag is not None:
                if content != field.default:
                    tagged.append((field.tag, field.type.write(content, encoding)))
            elif field.since <= encoding.version:
                parts.append(field.type.write(content, encoding))
        if encoding.is_flexible:
            # Tags rise, whatever the order of the fields.
            parts += (write_unsigned_varint(len(tagged)), *[write_tagged_field(tag, data) for tag, data in sorted(tagged)])
        return b"".join(parts)

    return FieldType(read, write)


class RecordTable:
    """One kind of record. Its key is always in the encoding of version 0, never flexible."""

    __slots__ = ("_encodings", "_key_fields", "_kind", "_record_type", "_value", "_written")

    def __init__(
        self,
        kind: int,
        record_type: type[Any],
        key_fields: int,
        value: FieldType,
        *,
        version_max: int = 0,
        version_written: int = 0,
        flexible_since: int = 0,
    ) -> None:
        """``key_fields`` is how many strings the key has: they are the record's first fields."""
        self._kind = INT16.pack(kind)
        self._record_type = record_type
        self._key_fields = key_fields
        self._value = value
        self._encodings = [Encoding(version, version >= flexible_since) for version in range(version_max + 1)]
        self._written = self._encodings[version_written]

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        key = self._kind + b"".join([write_string(text) for text in record[:-1]])
        value = record[-1]
        if value is None:
            return key, None
        return key, INT16.pack(self._written.version) + self._value.write(value, self._written)

    def decode(self, key: bytes, value: bytes | None) -> Any:
        """MalformedRequest when the bytes are not what the table says."""
        reader = Reader(memoryview(key), len(self._kind))
        fields = [reader.string() for _ in range(self._key_fields)]
        reader.expect_end()
        return self._record_type(*fields, None if value is None else self._decode_value(value))

    def _decode_value(self, value: bytes) -> Any:
        reader = Reader(memoryview(value))
        version = reader.int16()
        if not 0 <= version < len(self._encodings):
            name = self._record_type.__name__
            raise UnreadableShard(f"{name} has version {version}, known are 0 to {len(self._encodings) - 1}")
        found = self._value.read(reader, self._encodings[version])
        reader.expect_end()
        return found
