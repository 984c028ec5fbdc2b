"""Prints lines, tables, JSON, and messages of a topic. Results go to standard output, warnings and questions to standard error.

Keys and values are bytes. As text, bytes that are not UTF-8 appear as escapes. As JSON they get a field of their own, in base64,
so that nothing is lost: ``produce --jsonl`` reads it back.
"""

import base64
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from tidelog.cli.errors import CommandFailed
from tidelog.cli.hints import completed

if TYPE_CHECKING:  # Commands that do not talk to a broker should not wait for a Kafka client to load.
    from tidelog.client.message import Message

# The width of a table in a file or a pipe, where there is no terminal to ask.
_PLAIN_WIDTH = 200
_BYTES_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NULL = "null"
# Between two columns of a table.
_GAP = "  "
# Less than this is read before a progress bar could be noticed.
PROGRESS_BYTES_MIN = 64 << 20
_PROGRESS_STEP_BYTES = 4 << 20


def make_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def say(console: Console, line: str, style: str = "") -> None:
    """Print a line for a person, with its hints completed. Names may look like markup, and a line that is searched for must not
    be folded."""
    _print(console, completed(line), style)


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def show_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns of numbers are aligned to the right, all others to the left. No name is ever broken: if the table is too wide for
    the terminal, texts are wrapped between their words; if that is not enough, each row becomes a block of lines."""
    header, *lines = table_lines(columns, rows, console.width)
    _print(console, header, "bold")
    for line in lines:
        _print(console, line)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> list[str]:
    """The title line and the rows, in at most ``width`` columns unless a single name is longer."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    numbers = [bool(rows) and all(isinstance(row[index], int | float) for row in rows) for index in range(len(columns))]
    widths = _column_widths(columns, cells, width)
    if widths is None:
        return _blocks(columns, cells, width)
    lines = []
    for row in [list(columns), *cells]:
        wrapped = [_wrap(cell, size) for cell, size in zip(row, widths, strict=True)]
        for line in zip_longest(*wrapped, fillvalue=""):
            parts = [
                part.rjust(size) if is_number else part.ljust(size)
                for part, size, is_number in zip(line, widths, numbers, strict=True)
            ]
            lines.append(_GAP.join(parts).rstrip())
    return lines


def _column_widths(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """How wide each column is, or None if even wrapped texts do not fit. What is left goes to the columns that want it most."""
    by_column = [[title, *(row[index] for row in cells)] for index, title in enumerate(columns)]
    wanted = [max(map(len, texts)) for texts in by_column]
    least = [max((len(word) for text in texts for word in text.split()), default=0) for texts in by_column]
    left = width - sum(least) - len(_GAP) * (len(columns) - 1)
    if left < 0:
        return None
    widths = list(least)
    # The widest texts first would take everything; one column at a time shares evenly.
    while left > 0 and (narrow := [index for index, size in enumerate(widths) if size < wanted[index]]):
        for index in narrow[:left]:
            widths[index] += 1
        left -= len(narrow[:left])
    return widths


def _blocks(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[str]:
    margin = max(map(len, columns)) + len(_GAP)
    lines: list[str] = []
    for row in cells:
        lines += [""] if lines else []
        for title, cell in zip(columns, row, strict=True):
            first, *rest = _wrap(cell, max(1, width - margin))
            lines += [f"{title.ljust(margin)}{first}".rstrip(), *(" " * margin + part for part in rest)]
    return lines or [_GAP.join(columns)]


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False) or [""]


def show_json(document: object) -> None:
    sys.stdout.write(json.dumps(document) + "\n")


def confirm(question: str, is_sure: bool) -> None:
    """Ask before something is lost. The answer no ends the command. A script has nobody to answer, so it must have said yes on
    the command line: input that happens to be there is not an answer."""
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question} Nothing was changed, because standard input is not a terminal: to go ahead, add --yes")
    typer.confirm(question, abort=True, err=True)


@contextmanager
def progress_of_bytes(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over ``total`` bytes, on a terminal, if there are enough of them to take a while. Call what it yields with each
    count of bytes."""
    if total < PROGRESS_BYTES_MIN:
        yield lambda _: None
        return
    with progress_bar(title, total, is_bytes=True) as advance:
        pending = 0

        def on_bytes(count: int) -> None:
            # The bar is redrawn ten times a second; updating it for every batch would cost more than reading the batch.
            nonlocal pending
            pending += count
            if pending >= _PROGRESS_STEP_BYTES:
                advance(pending)
                pending = 0

        yield on_bytes


@contextmanager
def progress_bar(title: str, total: int, *, is_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that goes away when it is done. A script does not get one."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn(binary_units=True) if is_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


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
    """``text``, ``full``, ``json``, ``jsonl`` or a template that names the fields of ``json`` in braces."""
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
    return _json_document(message, message.timestamp)


def _jsonl_line(message: "Message") -> str:
    return _json_document(message, None if message.timestamp is None else _iso(message.timestamp))


def _json_document(message: "Message", timestamp: int | str | None) -> str:
    document = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": timestamp,
        **json_field("key", message.key),
        **json_field("value", message.value),
        "headers": [[name, header_text(content)] for name, content in message.headers_list],
    }
    return json.dumps(document, ensure_ascii=False)


def _fields(message: "Message") -> dict[str, object]:
    timestamp = message.timestamp
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": -1 if timestamp is None else timestamp,
        "time": "-" if timestamp is None else _iso(timestamp),
        "key": bytes_text(message.key),
        "value": bytes_text(message.value),
        "headers": ",".join(f"{name}={header_text(content)}" for name, content in message.headers_list),
    }


def _iso(timestamp_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def header_text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")


_EXAMPLE = {"topic": "", "partition": 0, "offset": 0, "timestamp": 0, "time": "", "key": "", "value": "", "headers": ""}
_FORMATS: "dict[str, Callable[[Message], str]]" = {
    "text": _text_line,
    "full": _full_line,
    "json": _json_line,
    "jsonl": _jsonl_line,
}
