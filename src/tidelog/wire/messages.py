"""Requests and responses of every API, by kio's definitions: the codec of all APIs that do not have a hand-written one.

kio has one module of dataclasses per API, version and direction, whose fields carry Kafka's types as metadata. A module is
imported when its message is first used; importing all of them takes seconds and tens of megabytes. Here each becomes a
``schema.Struct``, and reading and writing is the schema's business. We do not use kio's own reader, because it cannot be given
bytes from strangers: it allocates what an array's length claims, so a request of a hundred bytes ends the process, and it fails
on unknown tagged fields, which KIP-482 says to ignore.

Both directions use one vocabulary: Kafka's names in snake case, and plain values. Times are integers of milliseconds
(``throttle_time_ms``, which kio calls ``throttle_time`` and makes a timedelta, which overflows), ids are 16 bytes, error codes
are integers. A field that nobody sets has Kafka's default, or null where it may be null, or else the zero of its type.

A handler is written once for all versions: a decoded message gives the default of a field that its version lacks, and encoding
leaves out fields that the version lacks. A name that no version has is a mistake of the program. Bytes after the end of a body
are ignored, as in Kafka.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from tidelog.ports.steps import Steps
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.own_fields import OWN_FIELDS
from tidelog.wire.primitives import ELEMENTS_MAX, ZERO_UUID, Reader
from tidelog.wire.protocol import RequestHeader
from tidelog.wire.schema import (
    FIELD_TYPES,
    UNSET,
    Field,
    FieldType,
    ReadValue,
    SlicedOutput,
    SlicedReader,
    Struct,
    WriteValue,
    sliced_struct_reader,
    sliced_struct_writer,
    struct_reader,
    struct_writer,
)

_NO_TIMESTAMP_MS = -1
# kio's types that are not Kafka's.
_MILLISECONDS = {"timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
_TYPE_NAMES = {"error_code": "int16", "records": "bytes"} | _MILLISECONDS


class Direction(StrEnum):
    REQUEST = "request"
    RESPONSE = "response"


# Python 3.11 is slow to look up a member of an enumeration, and every message needs one.
_REQUEST = Direction.REQUEST
_RESPONSE = Direction.RESPONSE


class _Origin(NamedTuple):
    """The place of a struct in Kafka's protocol: an API's request or response, and the fields that lead to the struct."""

    name: str
    api_key: int
    direction: Direction
    path: tuple[str, ...]

    def find_field(self, name: str) -> Field | None:
        """Return None if no version has the field."""
        return field_in_any_version(self.api_key, self.direction, self.path, name)


class DecodedMessage:
    """A message that was read, or a struct in it: its fields are attributes, arrays are tuples.

    A field that the message's version lacks reads as its default, as in Kafka's own classes. Only a field that no version has is
    an AttributeError.
    """

    __slots__ = ("__dict__", "_origin")

    def __init__(self, origin: _Origin, names: list[str], values: list[Any]) -> None:
        self._origin = origin
        self.__dict__ = dict(zip(names, values))  # noqa: B905 - naming ``strict`` takes as long as the rest

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        field = self._origin.find_field(name)
        if field is None:
            raise AttributeError(f"no version of {self._origin.name} has a field {name}")
        return field.default

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecodedMessage) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # its fields may be changed

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{self._origin.name}({values})"


Fields = Mapping[str, Any] | DecodedMessage


# Encoding and decoding.


def decode_request(header: RequestHeader, frame: memoryview, elements_max: int = ELEMENTS_MAX) -> DecodedMessage:
    """Decode the body that follows ``header`` in ``frame``; nothing in the result refers to the frame. Raises only
    MalformedRequest."""
    message: DecodedMessage = request_reader(header)(Reader(frame, header.body_position, elements_max))
    return message


def request_reader(header: RequestHeader) -> ReadValue:
    """Return the function that reads a request's body. Raises only MalformedRequest."""
    try:
        return message_reader(header.api_key, header.api_version, _REQUEST)
    except KeyError:
        raise _no_such_version(header) from None


def decode_request_in_slices(header: RequestHeader, frame: memoryview, elements_max: int) -> Steps[Any]:
    """Decode a large request. The generator returns the same as ``decode_request``; the frame must stay as it is until then."""
    try:
        struct = message_struct(header.api_key, header.api_version, _REQUEST)
    except KeyError:
        raise _no_such_version(header) from None
    return (yield from sliced_struct_reader(*struct)(SlicedReader(frame, header.body_position, elements_max)))


def _no_such_version(header: RequestHeader) -> MalformedRequest:
    return MalformedRequest(f"api key {header.api_key} has no version {header.api_version}")


def encode_response_in_slices(api_key: int, version: int, fields: Fields) -> Steps[Any]:
    """Encode a large response. The generator returns the same as ``encode_response``."""
    out = SlicedOutput()
    yield from sliced_struct_writer(*message_struct(api_key, version, _RESPONSE))(out, fields)
    return out


def encode_response(api_key: int, version: int, fields: Fields) -> bytes:
    """Encode the body, without a header."""
    return _encode(api_key, version, _RESPONSE, fields)


def encode_request(api_key: int, version: int, fields: Fields) -> bytes:
    """Encode the body, without a header, for the client's side."""
    return _encode(api_key, version, _REQUEST, fields)


def decode_response(api_key: int, version: int, frame: memoryview, position: int = 0) -> DecodedMessage:
    """Decode the body at ``position``, for the client's side. Only the frame bounds the number of elements, because a client may
    ask for a large response."""
    read = message_reader(api_key, version, _RESPONSE)
    message: DecodedMessage = read(Reader(frame, position, elements_max=len(frame)))
    return message


def _encode(api_key: int, version: int, direction: Direction, fields: Fields) -> bytes:
    out = bytearray()
    message_writer(api_key, version, direction)(out, fields)
    return bytes(out)


@cache
def message_reader(api_key: int, version: int, direction: Direction) -> ReadValue:
    """Raises KeyError when there is no such API or version."""
    return struct_reader(*message_struct(api_key, version, direction))


@cache
def message_writer(api_key: int, version: int, direction: Direction) -> WriteValue:
    """Raises KeyError when there is no such API or version."""
    return struct_writer(*message_struct(api_key, version, direction))


# Definitions.


def versions(api_key: int, direction: Direction) -> list[int]:
    """The versions that have a definition, in ascending order; empty for an unknown key."""
    return sorted(_class_paths(api_key, direction))


@cache
def message_struct(api_key: int, version: int, direction: Direction) -> tuple[Struct, int, bool]:
    """Return the struct, its version, and whether that is flexible. Raises KeyError when there is no such API or version."""
    module_name, _, class_name = _class_paths(api_key, direction)[version].partition(":")
    message: type[Any] = getattr(_import_definitions(module_name), class_name)
    return _convert_struct(message, _Origin(class_name, api_key, direction, ())), version, message.__flexible__


@cache
def field_in_any_version(api_key: int, direction: Direction, path: tuple[str, ...], name: str) -> Field | None:
    """Return the newest definition of a field, whatever the version; None if no version has it."""
    for version in reversed(versions(api_key, direction)):
        struct: FieldType | Struct | None = message_struct(api_key, version, direction)[0]
        for step in (*path, name):
            field = next((field for field in struct.fields if field.name == step), None) if isinstance(struct, Struct) else None
            struct = field.type if field else None
        if field is not None:
            return field
    return None


@cache
def _class_paths(api_key: int, direction: Direction) -> dict[int, str]:
    """Map each version to "module:class", from kio's index."""
    index = _import_definitions("kio.schema.index")
    types_by_version = index.schema_name_map.get(index.api_key_map.get(api_key), {})
    return {
        version: class_path
        for version, types in types_by_version.items()
        for entity_type, class_path in types.items()
        if entity_type.name == direction.value
    }


def _import_definitions(module_name: str) -> Any:
    """Import kio without Hypothesis, which kio would import wherever it is installed: 0.3 s and 20 MB for nothing, in a process
    that others start for their tests and wait for.
    """
    if "hypothesis" in sys.modules or "kio.static.primitive" in sys.modules:
        return import_module(module_name)
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # None is how an import is made to fail
    try:
        import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]
    return import_module(module_name)


def _convert_struct(kio_class: type[Any], origin: _Origin) -> Struct:
    converted = [_convert_field(field, origin) for field in fields(kio_class)]
    converted += OWN_FIELDS.get((origin.api_key, origin.direction.value, origin.path), ())
    make = partial(DecodedMessage, origin, [field.name for field in converted])
    return Struct(origin.name, converted, make, _values_of(converted, origin))


def _values_of(struct_fields: list[Field], origin: _Origin) -> Callable[[Fields], list[Any]]:
    names = [field.name for field in struct_fields]
    defaults = [field.default for field in struct_fields]
    known = frozenset(names)

    def values_of(message: Fields) -> list[Any]:
        values = message.__dict__ if isinstance(message, DecodedMessage) else message
        if not values.keys() <= known:
            for name in sorted(values.keys() - known):
                if origin.find_field(name) is None:
                    raise TypeError(f"no version of {origin.name} has a field {name}")
        return list(map(values.get, names, defaults))

    return values_of


def _convert_field(kio_field: Any, origin: _Origin) -> Field:
    annotation, is_nullable = _without_none(kio_field.type)
    is_array = get_origin(annotation) is tuple
    kio_type: str | None = kio_field.metadata.get("kafka_type")
    name = _name(kio_field, kio_type)
    if kio_type in ("uuid", "datetime_i64") and not is_array:
        # In kio None stands for a value of the type here: zero, or -1.
        is_nullable = False
    kind: FieldType | Struct
    if kio_type is None:
        struct_class = get_args(annotation)[0] if is_array else annotation
        kind = _convert_struct(struct_class, origin._replace(name=struct_class.__name__, path=(*origin.path, name)))
    else:
        kind = FIELD_TYPES[_TYPE_NAMES.get(kio_type, kio_type)]
    default = UNSET
    if kio_field.default is not MISSING:
        default = _plain_value(kio_field.default, kio_type, is_array)
    elif kio_type is None and not is_array and not is_nullable:
        default = {}
    if isinstance(default, dict) and isinstance(kind, Struct) and kind.values_of is not None:
        default = kind.make([*kind.values_of(default)])
    return Field(name, kind, is_array, is_nullable, tag=kio_field.metadata.get("tag"), default=default).with_default()


def _name(kio_field: Any, kio_type: str | None) -> str:
    name: str = kio_field.name
    return f"{name}_ms" if kio_type in _MILLISECONDS else name


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    (inner,) = (argument for argument in get_args(annotation) if argument is not NoneType)
    return inner, True


def _plain_value(value: Any, kio_type: str | None, is_array: bool) -> Any:
    """Convert a value of kio to our vocabulary; a struct becomes a mapping."""
    if is_array:
        return None if value is None else tuple([_plain_value(element, kio_type, is_array=False) for element in value])
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
    """Convert a message of kio to a mapping in our vocabulary."""
    values = {}
    for field in fields(message):
        kio_type = field.metadata.get("kafka_type")
        is_array = get_origin(_without_none(field.type)[0]) is tuple
        values[_name(field, kio_type)] = _plain_value(getattr(message, field.name), kio_type, is_array)
    return values
