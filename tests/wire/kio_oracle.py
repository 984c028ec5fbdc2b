"""kio's codec as the oracle for ours: the same message written by both must be the same bytes.

A message is given to kio as nested dictionaries in kio's own names; lists are arrays of structures.
"""

import dataclasses
import datetime
import importlib
import io
import typing
import uuid
from typing import Any

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer

KIO_ERROR_CODES = frozenset(int(code) for code in KioErrorCode)


def kio_bytes(api: str, kind: str, version: int, fields: dict[str, Any]) -> bytes:
    """A message written by kio; ``kind`` is "request" or "response"."""
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
    entity_type = getattr(module, "".join(map(str.capitalize, [*api.split("_"), kind])))
    buffer = io.BytesIO()
    entity_writer(entity_type)(buffer, _entity(entity_type, fields))
    return buffer.getvalue()


def milliseconds(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


def instant(value_ms: int) -> datetime.datetime | None:
    return (
        None if value_ms < 0 else datetime.datetime.fromtimestamp(value_ms // 1000, datetime.UTC) + milliseconds(value_ms % 1000)
    )


def kio_uuid(value: bytes | None) -> uuid.UUID | None:
    return uuid.UUID(bytes=value) if value and any(value) else None


def kio_error(code: int) -> KioErrorCode:
    return KioErrorCode(int(code))


def _entity(entity_type: Any, fields: dict[str, Any]) -> Any:
    """Fields that the version lacks are left out; a field that no version has would be missed by the comparison of the bytes."""
    known = {field.name: field.type for field in dataclasses.fields(entity_type)}
    return entity_type(**{name: _value(known[name], value) for name, value in fields.items() if name in known})


def _value(field_type: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return _entity(field_type, value)
    if isinstance(value, list):
        element_type = _element_type(field_type)
        return tuple(_entity(element_type, item) if isinstance(item, dict) else item for item in value)
    return value


def _element_type(field_type: Any) -> Any:
    """Of ``tuple[X, ...]`` or ``tuple[X, ...] | None``."""
    arguments = typing.get_args(field_type)
    return arguments[0] if typing.get_origin(field_type) is tuple else _element_type(arguments[0])
