"""A message as a line: its value, all of it, JSON, or a template.

Keys and values are bytes. As text, what is not UTF-8 shows as escapes. As JSON it is under a name of its own, in base64, so that
nothing is lost: ``produce --jsonl`` reads it back.
"""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tidelog.cli.errors import CommandFailed

TIMESTAMP_NOT_AVAILABLE = 0
_NULL = "null"


def make_formatter(name: str) -> Callable[[Any], str]:
    """``text``, ``full``, ``json``, or a template with the fields of ``json`` in braces."""
    if name in _FORMATS:
        return _FORMATS[name]
    if "{" not in name:
        raise CommandFailed(f"--format {name}: expected {', '.join(_FORMATS)}, or a template with fields such as {{value}}")

    def from_template(message: Any) -> str:
        return name.format_map(_fields(message))

    try:
        name.format_map(_EXAMPLE)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise CommandFailed(f"--format {name}: {error}: the fields are {', '.join(_EXAMPLE)}") from None
    return from_template


def _text(message: Any) -> str:
    return shown(message.value())


def _full(message: Any) -> str:
    fields = _fields(message)
    headers = f" {fields['headers']}" if fields["headers"] else ""
    return f"{fields['partition']}:{fields['offset']} {fields['time']} {fields['key']}{headers} {fields['value']}"


def _json(message: Any) -> str:
    document: dict[str, object] = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
    document["timestamp"] = _timestamp(message)
    for name, content in (("key", message.key()), ("value", message.value())):
        document.update(json_field(name, content))
    document["headers"] = [[name, _header(content)] for name, content in message.headers() or ()]
    return json.dumps(document, ensure_ascii=False)


def json_field(name: str, content: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        assert content is not None, "only bytes can fail to be text"
        return {f"{name}_base64": base64.b64encode(content).decode()}


def _fields(message: Any) -> dict[str, object]:
    timestamp = _timestamp(message)
    time = "-" if timestamp is None else datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": -1 if timestamp is None else timestamp,
        "time": time.replace("+00:00", "Z"),
        "key": shown(message.key()),
        "value": shown(message.value()),
        "headers": ",".join(f"{name}={_header(content)}" for name, content in message.headers() or ()),
    }


_EXAMPLE = {"topic": "", "partition": 0, "offset": 0, "timestamp": 0, "time": "", "key": "", "value": "", "headers": ""}
_FORMATS: dict[str, Callable[[Any], str]] = {"text": _text, "full": _full, "json": _json}


def _timestamp(message: Any) -> int | None:
    kind, timestamp = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else int(timestamp)


def shown(content: bytes | None) -> str:
    return _NULL if content is None else content.decode("utf-8", "backslashreplace")


def _header(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")
