"""Reads any message by its schema.

A schema becomes a tree of closures once; reading is then a walk of ``Reader`` over the bytes. We read ourselves although kio has
a fast reader, because that one cannot be given bytes from strangers: it allocates what an array's length claims, so a request of
a hundred bytes ends the process, and it fails on tagged fields that it does not know, which KIP-482 says to ignore.
"""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

from tidelog.wire.primitives import Reader
from tidelog.wire.schema import STRUCT, Direction, FieldSchema, StructSchema, field_in_any_version, message_schema

ReadField = Callable[[Reader], Any]

# The fewest bytes that a value takes, before flexible versions and in them.
_SIZES_MIN: dict[str, tuple[int, int]] = {
    "bool": (1, 1),
    "int8": (1, 1),
    "int16": (2, 2),
    "int32": (4, 4),
    "int64": (8, 8),
    "uint16": (2, 2),
    "float64": (8, 8),
    "uuid": (16, 16),
    "string": (2, 1),
    "bytes": (4, 1),
}
_ARRAY_SIZE_MIN = (4, 1)


class DecodedMessage(SimpleNamespace):
    """A message that was read, or a struct in it: its fields are attributes, arrays are tuples.

    A field that the message's version lacks reads as its default, as in Kafka's own classes, so that a handler need not ask for
    the version. Only a field that no version has is an AttributeError.
    """

    schema_: ClassVar[StructSchema]

    def __getattr__(self, name: str) -> Any:
        schema = self.schema_
        field = None if name.startswith("_") else field_in_any_version(schema.api_key, schema.direction, schema.path, name)
        if field is None:
            raise AttributeError(f"no version of {schema.name} has a field {name}")
        return default_value(field)


@cache
def _message_class(schema: StructSchema) -> type[DecodedMessage]:
    return type(schema.name, (DecodedMessage,), {"schema_": schema})


def default_value(field: FieldSchema) -> Any:
    if field.struct is None or field.is_array or field.default is None:
        return field.default
    values = {nested.name: default_value(nested) for nested in field.struct.fields}
    return _message_class(field.struct)(**(values | field.default))


@cache
def message_reader(api_key: int, version: int, direction: Direction) -> Callable[[Reader], DecodedMessage]:
    """KeyError when there is no such API or version."""
    return _struct_reader(message_schema(api_key, version, direction))


def _struct_reader(schema: StructSchema) -> Callable[[Reader], DecodedMessage]:
    message_class = _message_class(schema)
    plan = [(field.name, _field_reader(field, schema.is_flexible)) for field in schema.fields if field.tag is None]
    tagged = {field.tag: (field.name, _field_reader(field, True)) for field in schema.fields if field.tag is not None}
    tagged_defaults = {field.name: default_value(field) for field in schema.fields if field.tag is not None}

    def read_plain(reader: Reader) -> DecodedMessage:
        return message_class(**{name: read(reader) for name, read in plan})

    def read_flexible(reader: Reader) -> DecodedMessage:
        values = {name: read(reader) for name, read in plan}
        reader.skip_tagged_fields()
        return message_class(**values)

    def read_tagged(reader: Reader) -> DecodedMessage:
        values = {name: read(reader) for name, read in plan}
        values.update(tagged_defaults)
        for tag, view in reader.tagged_fields():
            if tag in tagged:
                name, read = tagged[tag]
                field_reader = Reader(view, 0, reader.elements_left)
                values[name] = read(field_reader)
                field_reader.expect_end()
                reader.elements_left = field_reader.elements_left
        return message_class(**values)

    if not schema.is_flexible:
        return read_plain
    return read_tagged if tagged else read_flexible


def _field_reader(field: FieldSchema, is_flexible: bool) -> ReadField:
    if not field.is_array:
        return _value_reader(field, is_flexible, field.is_nullable)
    read_element = _value_reader(field, is_flexible, False)
    element_size_min = _element_size_min(field, is_flexible)
    read_length = Reader.compact_nullable_array_length if is_flexible else Reader.nullable_array_length
    read_length_not_null = Reader.compact_array_length if is_flexible else Reader.array_length

    def read_nullable_array(reader: Reader) -> tuple[Any, ...] | None:
        length = read_length(reader, element_size_min)
        return None if length is None else tuple([read_element(reader) for _ in range(length)])

    def read_array(reader: Reader) -> tuple[Any, ...]:
        return tuple([read_element(reader) for _ in range(read_length_not_null(reader, element_size_min))])

    return read_nullable_array if field.is_nullable else read_array


def _value_reader(field: FieldSchema, is_flexible: bool, is_nullable: bool) -> ReadField:
    if field.struct is not None:
        read_struct = _struct_reader(field.struct)
        return _nullable_struct_reader(read_struct) if is_nullable else read_struct
    if field.type == "string":
        if is_flexible:
            return Reader.compact_nullable_string if is_nullable else Reader.compact_string
        return Reader.nullable_string if is_nullable else Reader.string
    if field.type == "bytes":
        if is_flexible:
            return _copying(Reader.compact_nullable_bytes if is_nullable else Reader.compact_bytes)
        return _copying(Reader.nullable_bytes if is_nullable else Reader.bytes_)
    return _FIXED_READERS[field.type]


_FIXED_READERS: dict[str, ReadField] = {
    "bool": Reader.boolean,
    "int8": Reader.int8,
    "int16": Reader.int16,
    "int32": Reader.int32,
    "int64": Reader.int64,
    "uint16": Reader.uint16,
    "float64": Reader.float64,
    "uuid": Reader.uuid,
}


def _nullable_struct_reader(read_struct: Callable[[Reader], DecodedMessage]) -> Callable[[Reader], DecodedMessage | None]:
    """KIP-893: a byte before the struct, negative for null."""

    def read(reader: Reader) -> DecodedMessage | None:
        return None if reader.int8() < 0 else read_struct(reader)

    return read


def _copying(read_view: Callable[[Reader], memoryview | None]) -> Callable[[Reader], bytes | None]:
    """The message outlives the frame, whose buffer is used again."""

    def read(reader: Reader) -> bytes | None:
        view = read_view(reader)
        return None if view is None else bytes(view)

    return read


def _element_size_min(field: FieldSchema, is_flexible: bool) -> int:
    if field.struct is None:
        return _SIZES_MIN[field.type][is_flexible]
    return _struct_size_min(field.struct)


def _struct_size_min(schema: StructSchema) -> int:
    is_flexible = schema.is_flexible
    size = 1 if is_flexible else 0
    for field in schema.fields:
        if field.tag is not None:
            continue
        if field.is_array:
            size += _ARRAY_SIZE_MIN[is_flexible]
        elif field.type == STRUCT and field.is_nullable:
            size += 1
        else:
            size += _element_size_min(field, is_flexible)
    return size
