"""The ``tidelog`` command: one app, to which each command group adds its own.

A command group is a module of this package with a typer app; ``COMMAND_GROUPS`` lists them, and nothing else ties them in. A
command may return its exit code (``verify`` that found damage, say); returning nothing is 0.

``main`` is the one place where exceptions become exit codes: 0 done, 1 an error that the user can act on (one line on stderr),
2 a command line that makes no sense, 130 interrupted. Anything else is a bug of ours and keeps its traceback.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from tidelog.cli import log
from tidelog.config.types import InvalidSetting
from tidelog.log.errors import LogError
from tidelog.ports.executor import ChildTaskError
from tidelog.records.errors import RecordError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# Each command group's app, by the name it is called by.
COMMAND_GROUPS: Mapping[str, typer.Typer] = {"log": log.app}

# What a user's input or machine can cause, beside OSError. Their messages are written for the user.
KNOWN_ERRORS: tuple[type[Exception], ...] = (InvalidSetting, LogError, RecordError, ChildTaskError)


def main(arguments: Sequence[str] | None = None, command_groups: Mapping[str, typer.Typer] = COMMAND_GROUPS) -> int:
    """Run one command line and return its exit code."""
    app = _build(command_groups)
    try:
        result = app(sys.argv[1:] if arguments is None else list(arguments), prog_name="tidelog", standalone_mode=False)
    except typer.TyperException as error:
        hint = " (try: tidelog --help)" if error.exit_code == EXIT_USAGE else ""
        return _fail(error.format_message() + hint, error.exit_code)
    except typer.Abort:
        return EXIT_INTERRUPTED
    except OSError as error:
        return _fail(_describe(error), EXIT_ERROR)
    except KNOWN_ERRORS as error:
        return _fail(str(error), EXIT_ERROR)
    return result if isinstance(result, int) else 0


def _build(command_groups: Mapping[str, typer.Typer]) -> typer.Typer:
    app = typer.Typer(name="tidelog", add_completion=False, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_tidelog)
    for name, group in command_groups.items():
        app.add_typer(group, name=name)
    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"tidelog {version('tidelog')}")
        raise typer.Exit


def _tidelog(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """One durable log, every way to queue: a message queue that speaks Kafka."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _describe(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def _fail(message: str, code: int) -> int:
    """One line, so that it stays readable in a log and can be searched for."""
    typer.echo(f"tidelog: {' '.join(message.split())}", err=True)
    return code
