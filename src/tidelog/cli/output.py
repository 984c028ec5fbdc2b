"""Prints lines, tables, JSON, and messages of a topic. Results go to standard output, warnings and questions to standard error.

Keys and values are bytes. As text, bytes that are not UTF-8 appear as escapes. As JSON they get a field of their own, in base64,
so that nothing is lost: ``produce --jsonl`` reads it back.
"""

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from tidelog.cli.errors import CommandFailed

if TYPE_CHECKING:  # Commands that do not talk to a broker should not wait for a Kafka client to load.
    from tidelog.client.message import Message

# The width of a table in a file or a pipe, where there is no terminal to ask.
_PLAIN_WIDTH = 200
_BYTES_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NULL = "null"


def make_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def say(console: Console, line: str, style: str = "") -> None:
    """Print a line as it is: names may look like markup, and a line that is searched for must not be folded."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def show_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns of numbers are aligned to the right, all others to the left."""
    table = Table(box=SIMPLE)
    for index, title in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(title, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(cell) for cell in row))
    console.print(table, markup=False, highlight=False)


def show_json(document: object) -> None:
    sys.stdout.write(json.dumps(document) + "\n")


def warn(line: str) -> None:
    typer.echo(f"warning: {line}", err=True)


def confirm(question: str, is_sure: bool) -> None:
    """Ask, if there is a person to ask: a script has already decided. The answer no ends the command."""
    if not is_sure and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)


@contextmanager
def tolerate_closed_pipe() -> Iterator[None]:
    """End quietly when the reader of a pipe has seen enough (``| head``). Python would complain at its last flush."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def format_bytes(count: int) -> str:
    value = float(count)
    for unit in _BYTES_UNITS[:-1]:
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_BYTES_UNITS[-1]}"


def count_of(count: int, singular: str) -> str:
    return f"{count:,} {singular}" if count == 1 else f"{count:,} {singular}s"


def partitions_text(partitions: Sequence[tuple[str, int]]) -> str:
    """``orders(0,1,2), returns(4)``, as Kafka's tools write it."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(str(partition))
    return ", ".join(f"{topic}({','.join(indexes)})" for topic, indexes in by_topic.items()) or "-"


def _cell(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.2f}" if cell < 100 else f"{cell:,.0f}"
    return "" if cell is None else str(cell)


# -- messages of a topic ---------------------------------------------------------------------------------------------------------


def make_formatter(name: str) -> "Callable[[Message], str]":
    """``text``, ``full``, ``json``, or a template that names the fields of ``json`` in braces."""
    if name in _FORMATS:
        return _FORMATS[name]
    if "{" not in name:
        raise CommandFailed(f"--format {name}: expected {', '.join(_FORMATS)}, or a template with fields such as {{value}}")
    try:
        name.format_map(_EXAMPLE)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise CommandFailed(f"--format {name}: {error}: the fields are {', '.join(_EXAMPLE)}") from None
    return lambda message: name.format_map(_fields(message))


def bytes_text(content: bytes | None) -> str:
    return _NULL if content is None else content.decode("utf-8", "backslashreplace")


def json_field(name: str, content: bytes | None) -> dict[str, str | None]:
    """Add the bytes under ``name`` if they are UTF-8, otherwise in base64 under ``name_base64``."""
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        assert content is not None, "only bytes can fail to be text"
        return {f"{name}_base64": base64.b64encode(content).decode()}


def _text_line(message: "Message") -> str:
    return bytes_text(message.value)


def _full_line(message: "Message") -> str:
    fields = _fields(message)
    headers = f" {fields['headers']}" if fields["headers"] else ""
    return f"{fields['partition']}:{fields['offset']} {fields['time']} {fields['key']}{headers} {fields['value']}"


def _json_line(message: "Message") -> str:
    document = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        **json_field("key", message.key),
        **json_field("value", message.value),
        "headers": [[name, header_text(content)] for name, content in message.headers_list],
    }
    return json.dumps(document, ensure_ascii=False)


def _fields(message: "Message") -> dict[str, object]:
    timestamp = message.timestamp
    time = "-" if timestamp is None else datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": -1 if timestamp is None else timestamp,
        "time": time.replace("+00:00", "Z"),
        "key": bytes_text(message.key),
        "value": bytes_text(message.value),
        "headers": ",".join(f"{name}={header_text(content)}" for name, content in message.headers_list),
    }


def header_text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")


_EXAMPLE = {"topic": "", "partition": 0, "offset": 0, "timestamp": 0, "time": "", "key": "", "value": "", "headers": ""}
_FORMATS: "dict[str, Callable[[Message], str]]" = {"text": _text_line, "full": _full_line, "json": _json_line}
