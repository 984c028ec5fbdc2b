"""The ``tidelog`` command: one app, to which each command group adds its own.

A command group is a module of this package with a typer app; ``COMMANDS`` lists them, and nothing else connects them. An app with
a command of its module's own name (``start``) is that command, any other is a group of commands (``topics list``). Only the
module that a command line names is imported, so that starting a broker does not wait for a Kafka client to load. A command may
return its exit code (for example ``verify`` if it found damage); returning nothing means 0.

``main`` is the only place where exceptions become exit codes: 0 for success, 1 for an error that the user can act on (one line on
stderr), 2 for a command line that makes no sense, 130 for an interrupt. Anything else is a bug of ours and keeps its traceback.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from tidelog import __version__
from tidelog.cli.errors import CommandFailed
from tidelog.config.file import UnreadableFile
from tidelog.config.types import InvalidSetting
from tidelog.log.errors import LogError
from tidelog.ports.executor import ChildTaskError
from tidelog.records.errors import RecordError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# The modules of this package that are commands, in the order in which help shows them.
COMMANDS = (
    "start",
    "topics",
    "produce",
    "consume",
    "groups",
    "worker",
    "dlq",
    "pipeline",
    "transactions",
    "configs",
    "quotas",
    "cluster",
    "bench",
    "log",
)

# Errors that a user's input or machine can cause, besides OSError. Their messages are written for the user.
KNOWN_ERRORS: tuple[type[Exception], ...] = (
    CommandFailed,
    InvalidSetting,
    UnreadableFile,
    LogError,
    RecordError,
    ChildTaskError,
)


def main(arguments: Sequence[str] | None = None, command_groups: Mapping[str, typer.Typer] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    app = _build(_load(words) if command_groups is None else command_groups)
    try:
        result = app(words, prog_name="tidelog", standalone_mode=False)
    except typer.TyperException as error:
        return _fail(error.format_message() + _hint(error), error.exit_code)
    except typer.Abort:
        return EXIT_INTERRUPTED
    except OSError as error:
        return _fail(_describe(error), EXIT_ERROR)
    except KNOWN_ERRORS as error:
        return _fail(str(error), EXIT_ERROR)
    return result if isinstance(result, int) else 0


def _hint(error: typer.TyperException) -> str:
    """Refer to the help of the command that was meant, as far as it is known."""
    if error.exit_code != EXIT_USAGE:
        return ""
    context = getattr(error, "ctx", None)
    return f" (try: {'tidelog' if context is None else context.command_path} --help)"


def _load(words: Sequence[str]) -> dict[str, typer.Typer]:
    """The app that the command line names, or all of them if it names none: help and hints need them."""
    wanted = words[:1] if words and words[0] in COMMANDS else COMMANDS
    return {name: import_module(f"tidelog.cli.{name}").app for name in wanted}


def _build(command_groups: Mapping[str, typer.Typer]) -> typer.Typer:
    app = typer.Typer(name="tidelog", add_completion=False, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_tidelog)
    for name, group in command_groups.items():
        is_command = any(command.name == name for command in group.registered_commands)
        app.add_typer(group, name=None if is_command else name)
    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"tidelog {__version__}")
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
    """Print one line, so that it stays readable in a log and can be searched for."""
    typer.echo(f"tidelog: {' '.join(message.split())}", err=True)
    return code
