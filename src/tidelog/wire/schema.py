"""Kafka's messages as data: which fields a request or response has, in which version, of which type.

The definitions are kio's: one module of dataclasses per API, version and direction, whose fields carry Kafka's types as
metadata. A module is imported when its message is first used; importing all of them takes seconds and tens of megabytes.

Our vocabulary is Kafka's in snake case, with plain values: times are integers of milliseconds (``throttle_time_ms``, which kio
calls ``throttle_time`` and makes a timedelta, which overflows), ids are 16 bytes, error codes are integers. What a field is when
nobody sets it is Kafka's default, or null where it may be null, or else the zero of its type.
"""

import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from tidelog.wire.primitives import ZERO_UUID


class Direction(Enum):
    REQUEST = "request"
    RESPONSE = "response"


# kio's type of a struct's field; the others are Kafka's own names.
STRUCT: Final = "struct"
_MILLISECONDS = {"timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
_TYPES = {"error_code": "int16", "records": "bytes"} | _MILLISECONDS
_NO_TIMESTAMP_MS = -1

ZEROS: dict[str, object] = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "uint16": 0,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "uuid": ZERO_UUID,
}


@dataclass(frozen=True, slots=True, eq=False)
class FieldSchema:
    name: str
    # Of the field, or of one element if it is an array.
    type: str
    struct: "StructSchema | None"
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any


@dataclass(frozen=True, slots=True, eq=False)
class StructSchema:
    """A message, or a struct inside of one; ``path`` has the names of the fields that lead to it."""

    name: str
    api_key: int
    version: int
    direction: Direction
    path: tuple[str, ...]
    is_flexible: bool
    fields: tuple[FieldSchema, ...]


def versions(api_key: int, direction: Direction) -> list[int]:
    """The versions that have a definition, in rising order; none for an unknown key."""
    return sorted(_class_paths(api_key, direction))


@cache
def message_schema(api_key: int, version: int, direction: Direction) -> StructSchema:
    """KeyError when there is no such API or version."""
    module_name, _, class_name = _class_paths(api_key, direction)[version].partition(":")
    message: type[Any] = getattr(_import_definitions(module_name), class_name)
    return _struct_schema(message, api_key, version, direction, ())


@cache
def field_in_any_version(api_key: int, direction: Direction, path: tuple[str, ...], name: str) -> FieldSchema | None:
    """The newest definition of a field, whatever the version; None if no version has it."""
    for version in reversed(versions(api_key, direction)):
        struct: StructSchema | None = message_schema(api_key, version, direction)
        for step in path:
            struct = next((field.struct for field in struct.fields if field.name == step), None) if struct else None
        for field in struct.fields if struct else ():
            if field.name == name:
                return field
    return None


@cache
def _class_paths(api_key: int, direction: Direction) -> dict[int, str]:
    """Version to "module:class", from kio's index."""
    index = _import_definitions("kio.schema.index")
    types_by_version = index.schema_name_map.get(index.api_key_map.get(api_key), {})
    return {
        version: class_path
        for version, types in types_by_version.items()
        for entity_type, class_path in types.items()
        if entity_type.name == direction.value
    }


def _import_definitions(module_name: str) -> Any:
    """Without Hypothesis, which kio would import wherever it is installed: 0.3 s and 20 MB for nothing, in a process that
    others start for their tests and wait for.
    """
    if "hypothesis" in sys.modules or "kio.static.primitive" in sys.modules:
        return import_module(module_name)
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # None is how an import is made to fail
    try:
        import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]
    return import_module(module_name)


def _struct_schema(
    struct_class: type[Any], api_key: int, version: int, direction: Direction, path: tuple[str, ...]
) -> StructSchema:
    def field_schema(field: Any) -> FieldSchema:
        field_type, is_nullable = _without_none(field.type)
        is_array = get_origin(field_type) is tuple
        element_type = get_args(field_type)[0] if is_array else field_type
        kio_type = field.metadata.get("kafka_type", STRUCT)
        name = f"{field.name}_ms" if kio_type in _MILLISECONDS else field.name
        if kio_type in ("uuid", "datetime_i64") and not is_array:
            # kio's None stands for a value of the type here: zero, or -1.
            is_nullable = False
        struct = _struct_schema(element_type, api_key, version, direction, (*path, name)) if kio_type == STRUCT else None
        default = _default(field, kio_type, is_array, is_nullable)
        return FieldSchema(
            name, _TYPES.get(kio_type, kio_type), struct, is_array, is_nullable, field.metadata.get("tag"), default
        )

    field_schemas = tuple(map(field_schema, fields(struct_class)))
    return StructSchema(struct_class.__name__, api_key, version, direction, path, struct_class.__flexible__, field_schemas)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    (inner,) = (argument for argument in get_args(annotation) if argument is not NoneType)
    return inner, True


def _default(field: Any, kio_type: str, is_array: bool, is_nullable: bool) -> Any:
    if field.default is not MISSING:
        return _plain_value(field.default, kio_type, is_array)
    if is_nullable:
        return None
    if is_array:
        return ()
    return {} if kio_type == STRUCT else ZEROS[_TYPES.get(kio_type, kio_type)]


def _plain_value(value: Any, kio_type: str, is_array: bool) -> Any:
    """A value of kio's in our vocabulary."""
    if is_array:
        return None if value is None else tuple([_plain_value(element, kio_type, False) for element in value])
    if kio_type == "uuid":
        return ZERO_UUID if value is None else value.bytes
    if kio_type == "datetime_i64":
        return _NO_TIMESTAMP_MS if value is None else round(value.timestamp() * 1000)
    if kio_type in _MILLISECONDS:
        return round(value.total_seconds() * 1000)
    if kio_type == "error_code":
        return int(value)
    return plain_fields(value) if is_dataclass(value) else value


def plain_fields(message: Any) -> dict[str, Any]:
    """A message of kio's as a mapping in our vocabulary."""
    values = {}
    for field in fields(message):
        kio_type = field.metadata.get("kafka_type", STRUCT)
        name = f"{field.name}_ms" if kio_type in _MILLISECONDS else field.name
        is_array = get_origin(_without_none(field.type)[0]) is tuple
        values[name] = _plain_value(getattr(message, field.name), kio_type, is_array)
    return values
