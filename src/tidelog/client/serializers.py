"""From what an application has to the bytes of a message. Replaceable per producer; a tombstone (None) stays one by default."""

import json
from typing import Any, Protocol

from tidelog.client.errors import SerializationError


class Serializer(Protocol):
    """Bytes for ``value`` in ``topic``, or None for a tombstone. Any exception of it becomes a SerializationError."""

    def __call__(self, value: Any, topic: str) -> bytes | None: ...


def serialize(value: Any, topic: str) -> bytes | None:  # noqa: ARG001 - the protocol's; the default is the same everywhere
    """The default: None stays None, bytes-like stay as they are, text becomes UTF-8, anything else compact JSON in UTF-8.

    JSON means JSON: NaN and infinity are refused, keys of objects are text, and there is no guessing about dates or classes.
    """
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def serialized(serializer: Serializer, value: Any, topic: str, what: str) -> bytes | None:
    """``serializer`` applied; ``what`` is ``key`` or ``value``. SerializationError names the type and the topic."""
    try:
        data = serializer(value, topic)
    except Exception as error:
        raise SerializationError(
            f"the {what} for {topic} is a {_type_name(value)} that cannot become bytes ({error}): "
            f"send bytes, text or what JSON can hold, or give the producer a {what}_serializer"
        ) from error
    if data is not None and not isinstance(data, bytes):
        raise SerializationError(
            f"the {what}_serializer made a {_type_name(data)} of a {_type_name(value)} for {topic}: it must return bytes or None"
        )
    return data


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
