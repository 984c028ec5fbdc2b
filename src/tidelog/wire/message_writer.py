"""Writes any message by its schema, from nested mappings.

A schema becomes a tree of closures once. Runs of fixed-size fields are packed by one ``struct`` call. A field that the mapping
lacks is written as its default; a field that the version lacks is left out, so that a handler gives all it knows and need not
ask for the version. A name that no version has is a mistake of the program and raises TypeError.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from tidelog.wire.message_reader import DecodedMessage
from tidelog.wire.primitives import (
    COMPACT_NULL,
    NO_TAGGED_FIELDS,
    NULL_LENGTH,
    NULL_STRING,
    UUID_SIZE,
    write_bytes_length,
    write_compact_length,
    write_compact_string,
    write_string,
    write_tagged_field,
    write_unsigned_varint,
)
from tidelog.wire.schema import Direction, FieldSchema, StructSchema, field_in_any_version, message_schema

Fields = Mapping[str, Any] | DecodedMessage
_WriteStruct = Callable[[bytearray, Fields], None]
_WriteValue = Callable[[bytearray, Any], None]
_WriteStep = Callable[[bytearray, Mapping[str, Any]], None]

_FORMATS = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "float64": "d"}
_NULL_STRUCT = b"\xff"
_NOT_NULL_STRUCT = b"\x01"


@cache
def message_writer(api_key: int, version: int, direction: Direction) -> _WriteStruct:
    """KeyError when there is no such API or version."""
    return _struct_writer(message_schema(api_key, version, direction))


def _struct_writer(schema: StructSchema) -> _WriteStruct:
    names = frozenset(field.name for field in schema.fields)
    steps = _steps([field for field in schema.fields if field.tag is None], schema.is_flexible)
    if schema.is_flexible:
        steps.append(_tagged_fields_writer([field for field in schema.fields if field.tag is not None]))

    def write(out: bytearray, values: Fields) -> None:
        if isinstance(values, DecodedMessage):
            values = vars(values)
        if not values.keys() <= names:
            _refuse_unknown_names(schema, values.keys() - names)
        for step in steps:
            step(out, values)

    return write


def _refuse_unknown_names(schema: StructSchema, names: set[str]) -> None:
    for name in sorted(names):
        if field_in_any_version(schema.api_key, schema.direction, schema.path, name) is None:
            raise TypeError(f"no version of {schema.name} has a field {name}")


def _steps(fields: Sequence[FieldSchema], is_flexible: bool) -> list[_WriteStep]:
    steps: list[_WriteStep] = []
    run: list[FieldSchema] = []
    for field in fields:
        if field.type in _FORMATS and not field.is_array:
            run.append(field)
            continue
        if run:
            steps.append(_fixed_run_writer(run))
            run = []
        steps.append(_field_writer(field, is_flexible))
    if run:
        steps.append(_fixed_run_writer(run))
    return steps


def _fixed_run_writer(run: Sequence[FieldSchema]) -> _WriteStep:
    pack = struct.Struct(">" + "".join(_FORMATS[field.type] for field in run)).pack
    names_and_defaults = [(field.name, field.default) for field in run]

    def write(out: bytearray, values: Mapping[str, Any]) -> None:
        get = values.get
        out += pack(*[get(name, default) for name, default in names_and_defaults])

    return write


def _field_writer(field: FieldSchema, is_flexible: bool) -> _WriteStep:
    name = field.name
    default = field.default
    write_value = _value_writer(field, is_flexible)

    def write(out: bytearray, values: Mapping[str, Any]) -> None:
        write_value(out, values.get(name, default))

    return write


def _tagged_fields_writer(fields: Sequence[FieldSchema]) -> _WriteStep:
    plan = []
    for field in sorted(fields, key=lambda field: field.tag or 0):
        write_value = _value_writer(field, True)
        default = bytearray()
        if field.default is not None:
            write_value(default, field.default)
        plan.append((field.tag or 0, field.name, write_value, bytes(default)))

    def write(out: bytearray, values: Mapping[str, Any]) -> None:
        written = []
        for tag, name, write_value, default in plan:
            value = values.get(name)
            if value is not None:
                encoded = bytearray()
                write_value(encoded, value)
                if encoded != default:
                    written.append(write_tagged_field(tag, bytes(encoded)))
        out += write_unsigned_varint(len(written))
        out += b"".join(written)

    def write_none(out: bytearray, _values: Mapping[str, Any]) -> None:
        out += NO_TAGGED_FIELDS

    return write if plan else write_none


def _value_writer(field: FieldSchema, is_flexible: bool) -> _WriteValue:
    if field.is_array:
        null = COMPACT_NULL if is_flexible else NULL_LENGTH
        write_value = _array_writer(field, is_flexible)
    elif field.struct is not None:
        null = _NULL_STRUCT
        write_value = _struct_writer(field.struct)
        if field.is_nullable:
            write_value = _marked(write_value)
    elif field.type == "string":
        null = COMPACT_NULL if is_flexible else NULL_STRING
        write_value = _appending(write_compact_string if is_flexible else write_string)
    elif field.type == "bytes":
        null = COMPACT_NULL if is_flexible else NULL_LENGTH
        write_value = _bytes_writer(is_flexible)
    else:
        return _write_uuid if field.type == "uuid" else _appending(struct.Struct(">" + _FORMATS[field.type]).pack)
    return _or_null(write_value, null) if field.is_nullable else write_value


def _or_null(write_value: _WriteValue, null: bytes) -> _WriteValue:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out += null
        else:
            write_value(out, value)

    return write


def _marked(write_struct: _WriteStruct) -> _WriteValue:
    def write(out: bytearray, value: Fields) -> None:
        out += _NOT_NULL_STRUCT
        write_struct(out, value)

    return write


def _appending(encode: Callable[[Any], bytes]) -> _WriteValue:
    def write(out: bytearray, value: Any) -> None:
        out += encode(value)

    return write


def _write_uuid(out: bytearray, value: bytes) -> None:
    if len(value) != UUID_SIZE:
        raise ValueError(f"an id of {len(value)} bytes, not {UUID_SIZE}")
    out += value


def _bytes_writer(is_flexible: bool) -> _WriteValue:
    write_length = write_compact_length if is_flexible else write_bytes_length

    def write(out: bytearray, value: bytes) -> None:
        out += write_length(len(value))
        out += value

    return write


def _array_writer(field: FieldSchema, is_flexible: bool) -> _WriteValue:
    write_length = write_compact_length if is_flexible else write_bytes_length
    number_format = _FORMATS.get(field.type)
    write_element = _element_writer(field, is_flexible)

    def write(out: bytearray, elements: Sequence[Any]) -> None:
        out += write_length(len(elements))
        for element in elements:
            write_element(out, element)

    def write_numbers(out: bytearray, numbers: Sequence[Any]) -> None:
        out += write_length(len(numbers))
        out += struct.pack(f">{len(numbers)}{number_format}", *numbers)

    return write_numbers if number_format else write


def _element_writer(field: FieldSchema, is_flexible: bool) -> _WriteValue:
    if field.struct is not None:
        return _struct_writer(field.struct)
    if field.type == "string":
        return _appending(write_compact_string if is_flexible else write_string)
    return _bytes_writer(is_flexible) if field.type == "bytes" else _write_uuid
