"""The ``tidelog`` command: one app, to which each command group adds its own.

A command group is a module of this package with a typer app; ``COMMANDS`` lists them, and nothing else connects them. An app with
a command of its module's own name (``start``) is that command, any other is a group of commands (``topics list``). Only the
module that a command line names is imported: neither help nor the start of a broker waits for a Kafka client to load. A command
may return its exit code; returning nothing means success.

``main`` is the only place where exceptions become exit codes (``errors.ExitCode`` is the table). Anything that it does not know
is a bug of ours and keeps its traceback.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # typer does not list it, but documents no other way
from typer.main import get_command

from tidelog import __version__
from tidelog.build import build_name
from tidelog.cli import hints, profile
from tidelog.cli.errors import CommandFailed, ExitCode, fail, reporting
from tidelog.cli.look import ReadableGroup, command_of
from tidelog.config.file import UnreadableFile
from tidelog.config.types import InvalidSetting
from tidelog.log.errors import LogError
from tidelog.ports.executor import ChildTaskError
from tidelog.raft.errors import QuorumError
from tidelog.records.errors import RecordError

# The modules of this package that are commands, in the order in which help shows them, and what help says about each. A test
# compares it with what the modules say themselves; they are not asked because importing all of them takes a second.
COMMANDS = {
    "start": "Start a broker on this machine.",
    "up": "Run a cluster on this machine: one process per broker.",
    "storage": "Format the data directory of a node, and show to whom it belongs.",
    "topics": "List, create, describe, alter and delete topics, delete their oldest messages, and find their hot keys.",
    "produce": "Send the lines of a file, or of standard input, as messages.",
    "consume": "Print the messages of topics. Looking changes nothing; with --group, the printed messages are committed.",
    "groups": "List, describe, reset and delete consumer groups; show their offsets, their lag and how many consumers they need.",
    "queues": "Create, list, describe, purge and delete queues; send jobs to them and receive jobs from them.",
    "worker": "Run a worker.",
    "dlq": "Dead letters: list, show, replay, discard and count them.",
    "pipeline": "Run a pipeline on Spark: topics to tables and back.",
    "transactions": "List and describe transactions, find hanging ones and end them.",
    "configs": "Describe and alter the settings of topics and brokers.",
    "quotas": "List, set and delete quotas of client ids, users and addresses.",
    "cluster": "Describe the cluster, show whether it is healthy, elect leaders, and remove brokers.",
    "reassign": "Move partitions between brokers: plan, execute, verify, cancel.",
    "drain": "Move all replicas of a broker to the others.",
    "quorum": "Show the metadata quorum, and change its voters.",
    "bench": "Measure a broker quickly: messages in, messages out, and the latency of single messages.",
    "log": "Inspect, verify and repair a data directory.",
    "profile": "Name clusters, and choose the one that commands talk to.",
    "completion": "Print the script that completes commands, topics and groups in a shell.",
}

# Errors that a user's input or machine can cause, besides OSError. Their messages are written for the user.
KNOWN_ERRORS: tuple[type[Exception], ...] = (
    CommandFailed,
    InvalidSetting,
    UnreadableFile,
    LogError,
    RecordError,
    QuorumError,
    ChildTaskError,
)


def main(arguments: Sequence[str] | None = None, command_groups: Mapping[str, typer.Typer] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    with reporting(as_json="--json" in words), hints.remembering():
        return _run(words, command_groups)


def _run(words: list[str], command_groups: Mapping[str, typer.Typer] | None) -> int:
    try:
        result = _root(command_groups).main(words, prog_name="tidelog", standalone_mode=False)
    except typer.TyperException as error:
        return fail(error.format_message() + _hint(error), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):  # The latter while the command is still being imported.
        return ExitCode.INTERRUPTED
    except OSError as error:
        return fail(_describe(error), ExitCode.ERROR)
    except KNOWN_ERRORS as error:
        return fail(str(error), ExitCode.ERROR)
    return result if isinstance(result, int) else ExitCode.SUCCESS


class RootGroup(ReadableGroup):
    """The command itself. Its groups are imported when they are named."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._is_planted = False
        # typer suggests one of these names when it does not know one; what belongs to a name is loaded on use.
        self.commands = LazyCommands()

    def plant(self, groups: Mapping[str, typer.Typer]) -> None:
        """Serve these groups instead."""
        self._is_planted = True
        self.commands = {name: command_of(app, name) for name, app in groups.items()}

    def summaries(self, ctx: Any) -> Mapping[str, str]:
        return super().summaries(ctx) if self._is_planted else COMMANDS


class LazyCommands(dict[str, Any]):
    """``COMMANDS``, each imported when it is asked for."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(COMMANDS))

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        if self[name] is None:
            self[name] = command_of(import_module(f"tidelog.cli.{name}").app, name)
        return self[name]


def _root(command_groups: Mapping[str, typer.Typer] | None) -> RootGroup:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(cls=RootGroup, invoke_without_command=True)(_tidelog)
    # typer itself answers a shell that asks for completions, once it has been told of the shells.
    completion_init()
    root = get_command(app)
    assert isinstance(root, RootGroup)
    if command_groups is not None:
        root.plant(command_groups)
    return root


def _hint(error: typer.TyperException) -> str:
    """Refer to the help of the command that was meant, as far as it is known."""
    if error.exit_code != ExitCode.USAGE:
        return ""
    context = getattr(error, "ctx", None)
    return f" (try: {'tidelog' if context is None else context.command_path} --help)"


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"tidelog {__version__} ({build_name()})")
        raise typer.Exit


def _tidelog(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
    profile_name: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="Talk to the cluster of this profile (tidelog profile list).")
    ] = None,
) -> None:
    """One durable log, every way to queue: a message queue that speaks Kafka."""
    profile.choose(profile_name)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _describe(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
