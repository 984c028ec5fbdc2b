"""Messages of kio's for every API and version, as the oracle for ours: chance values, and unknown tagged fields where wanted."""

import datetime
import importlib
import io
import random
import uuid
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.serial._serialize import get_field_writer

from tidelog.wire.messages import Direction
from tidelog.wire.primitives import write_compact_length, write_tagged_field, write_unsigned_varint

INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
UNKNOWN_TAG = 10_000
STRINGS = ["", "a", "orders", "größe", "x" * 200]
BYTES = [b"", b"\0", b"payload", b"z" * 300]


def api_keys() -> list[int]:
    return sorted(api_key_map)


def message_classes(api_key: int, direction: Direction) -> Iterator[tuple[int, type[Any]]]:
    """Version and class."""
    for version, paths in schema_name_map[api_key_map[api_key]].items():
        for entity_type, path in paths.items():
            if entity_type.name == direction.value:
                module_name, class_name = path.split(":")
                yield version, getattr(importlib.import_module(module_name), class_name)


def kio_bytes(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def chance_message(message_class: type[Any], chance: random.Random) -> Any:
    return message_class(**{field.name: _chance_value(field, field.type, chance) for field in fields(message_class)})


def _chance_value(field: Any, field_type: Any, chance: random.Random) -> Any:
    arguments = get_args(field_type)
    if type(None) in arguments:
        # In an array only ids may be None, and as an id None is zero.
        (inner,) = (argument for argument in arguments if argument is not type(None))
        is_left_out = field.metadata.get("tag") is not None and field.default is not None
        return None if chance.random() < 0.3 and not is_left_out else _chance_value(field, inner, chance)
    if get_origin(field_type) is tuple:
        return tuple(_chance_value(field, arguments[0], chance) for _ in range(chance.choice([0, 1, 1, 2, 5])))
    if is_dataclass(field_type):
        return chance_message(field_type, chance)  # type: ignore[arg-type]  # is_dataclass of a type, not of an instance
    return _chance_primitive(field.metadata["kafka_type"], chance)


def _chance_primitive(kafka_type: str, chance: random.Random) -> Any:
    if kafka_type in INTEGER_BITS:
        limit = 1 << (INTEGER_BITS[kafka_type] - 1)
        return chance.choice([0, 1, -1, limit - 1, -limit, chance.randrange(-limit, limit)])
    match kafka_type:
        case "bool":
            return chance.random() < 0.5
        case "uint16":
            return chance.randrange(1 << 16)
        case "float64":
            return chance.uniform(-1e9, 1e9)
        case "string":
            return chance.choice(STRINGS)
        case "bytes" | "records":
            return chance.choice(BYTES)
        case "uuid":
            return uuid.UUID(bytes=chance.randbytes(16))
        case "error_code":
            return chance.choice(list(KioErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=chance.randrange(-(2**31), 2**31))
        case "datetime_i64":
            return datetime.datetime.fromtimestamp(chance.randrange(2**31), datetime.UTC)
    raise AssertionError(f"no values for {kafka_type}")


def bytes_with_unknown_tags(message: Any, tag: int = UNKNOWN_TAG) -> bytes:
    """As kio writes it, but for one unknown tagged field more in every struct, at every depth."""
    out = io.BytesIO()
    tagged = []
    for field in fields(message):
        field_tag = field.metadata.get("tag")
        value = getattr(message, field.name)
        if field_tag is None:
            _write_field(out, field, value, tag)
        elif value is not None and value != field.default:
            encoded = io.BytesIO()
            _write_field(encoded, field, value, tag)
            tagged.append((field_tag, encoded.getvalue()))
    tagged.append((tag, b"unknown"))
    out.write(write_unsigned_varint(len(tagged)))
    for field_tag, encoded_value in sorted(tagged):
        out.write(write_tagged_field(field_tag, encoded_value))
    return out.getvalue()


def _write_field(out: io.BytesIO, field: Any, value: Any, tag: int) -> None:
    if "kafka_type" in field.metadata or value is None:
        is_tagged = field.metadata.get("tag") is not None
        get_field_writer(field, flexible=True, is_request_header=False, is_tag=is_tagged)(out, value)
    elif isinstance(value, tuple):
        out.write(write_compact_length(len(value)))
        for element in value:
            out.write(bytes_with_unknown_tags(element, tag))
    else:
        if type(None) in get_args(field.type):
            out.write(b"\1")
        out.write(bytes_with_unknown_tags(value, tag))
