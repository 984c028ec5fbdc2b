"""How a command ends: the table of exit codes, the error that ends it, and the lines on standard error.

Standard error is for people unless the command line asks for JSON (``--json``): then every line of it is one JSON object with
``error`` and ``exit_code``, or with ``warning``, so that a script never has to guess. ``main`` decides which of the two holds for
the command that it runs.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum

from tidelog.cli.hints import completed


class ExitCode(IntEnum):
    """Every command ends with one of these. docs/reference/command-line.md has the same table."""

    SUCCESS = 0
    ERROR = 1
    """The command could not do what was asked; the line on standard error says why."""
    USAGE = 2
    """The command line makes no sense."""
    FOUND = 3
    """A check did its work and found what it looks for: damage, a difference, or more than a limit allows."""
    UNFINISHED = 4
    """The command stopped before its work was complete; what is left is done again at the next start."""
    INTERRUPTED = 130
    """Ctrl-C."""


class CommandFailed(Exception):
    """The command could not do what was asked: no broker answers, a request was refused, or the input makes no sense. Its message
    is the one line that the user sees."""


_is_json: ContextVar[bool] = ContextVar("is_json", default=False)


@contextmanager
def reporting(*, as_json: bool) -> Iterator[None]:
    """Decide the form of standard error for one command."""
    token = _is_json.set(as_json)
    try:
        yield
    finally:
        _is_json.reset(token)


def warn(line: str) -> None:
    text = completed(line)
    _write(json.dumps({"warning": text}) if _is_json.get() else f"warning: {text}")


def fail(message: str, code: int) -> int:
    """Print one line, so that it stays readable in a log and can be searched for."""
    line = completed(" ".join(message.split()))
    _write(json.dumps({"error": line, "exit_code": code}) if _is_json.get() else f"tidelog: {line}")
    return code


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
