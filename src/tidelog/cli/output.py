"""What commands print: lines, tables, JSON. Results go to standard output; warnings and questions to standard error."""

import json
import sys
from collections.abc import Sequence

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

# A table in a file or pipe is as wide as it needs to be, within reason.
_PLAIN_WIDTH = 200
_BYTES_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def make_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def say(console: Console, line: str, style: str = "") -> None:
    """Names may hold what looks like markup, and a line is never folded: it is there to be searched for."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def show_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """The first column is a name and keeps its place; columns of whole numbers are set to the right."""
    table = Table(box=SIMPLE)
    for index, title in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(title, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    console.print(table, markup=False, highlight=False)


def show_json(document: object) -> None:
    sys.stdout.write(json.dumps(document) + "\n")


def warn(line: str) -> None:
    typer.echo(f"warning: {line}", err=True)


def confirm(question: str, is_sure: bool) -> None:
    """Ask, where there is somebody to ask: a script has decided already. No ends the command."""
    if not is_sure and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)


def format_bytes(count: int) -> str:
    value = float(count)
    for unit in _BYTES_UNITS[:-1]:
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_BYTES_UNITS[-1]}"


def count_of(count: int, singular: str) -> str:
    return f"{count:,} {singular}" if count == 1 else f"{count:,} {singular}s"


def _plain(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.2f}" if cell < 100 else f"{cell:,.0f}"
    return "" if cell is None else str(cell)
