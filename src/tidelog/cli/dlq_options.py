"""What the commands about dead letters share: which letters are meant, the way to the cluster, the bar that shows progress."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tidelog.cli.consume import read_timestamp
from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_reset_plan import read_duration
from tidelog.cli.kafka import Cluster, read_pairs
from tidelog.client.errors import TidelogError
from tidelog.deadletters.dead_letters import DeadLetters, FilterArguments
from tidelog.deadletters.replay import Progress

_AGE = re.compile(r"[0-9.]+[a-z]|P.*")
_PLACE = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="A dead-letter topic: TOPIC.GROUP.dlq.")]
TopicsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC...", help="Dead-letter topics; without them, all there are.")
]
ErrorOption = Annotated[
    list[str] | None,
    typer.Option("--error", "-e", metavar="CLASS", help="Only this exception class, with or without module; several are fine."),
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="Only messages with this key.")]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Last failed then or later: ISO 8601, milliseconds, or an age such as 2h."),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Last failed before that.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")]
OffsetsOption = Annotated[
    str | None,
    typer.Option("--offsets", metavar="FIRST-LAST", help="Only these offsets of the dead-letter topic; 5-, -9 and 7 too."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def read_filters(
    error: Sequence[str] | None,
    key: str | None,
    since: str | None,
    until: str | None,
    partition: int | None,
    offsets: str | None,
) -> FilterArguments:
    first, last = (None, None) if offsets is None else _range(offsets)
    return {
        "error": list(error or ()),
        "key": key,
        "since": None if since is None else _moment(since, "--since"),
        "until": None if until is None else _moment(until, "--until"),
        "partition": partition,
        "first_offset": first,
        "last_offset": last,
    }


def is_filtered(filters: FilterArguments) -> bool:
    return any(value not in (None, []) for value in filters.values())


def read_place(text: str) -> tuple[int, int]:
    """``PARTITION:OFFSET``."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r}: expected PARTITION:OFFSET such as 0:17", param_hint="PLACE")
    return int(found[1]), int(found[2])


@contextmanager
def dead_letters(bootstrap: str, properties: Sequence[str] | None) -> Iterator[DeadLetters]:
    """The tools; what goes wrong is one line."""
    Cluster(bootstrap, properties).check_reachable()
    try:
        yield DeadLetters(bootstrap, config=dict(read_pairs(properties or [], "-X")))
    except TidelogError as error:
        raise CommandFailed(str(error)) from error


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[Progress], None] | None]:
    """On a terminal; a script gets none."""
    console = Console(stderr=True)
    if not (console.is_terminal and sys.stderr.isatty()):
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.read, total=progress.total, description=f"{title}: {progress.letters:,}")

        yield show


def _moment(text: str, option: str) -> int:
    if _AGE.fullmatch(text):
        return max(0, int((time.time() - read_duration(text, option).total_seconds()) * 1000))
    return read_timestamp(text, option)


def _range(text: str) -> tuple[int | None, int | None]:
    found = re.fullmatch(r"([0-9]{0,19})(-?)([0-9]{0,19})", text)
    if found is None or not (found[1] or found[3]):
        raise typer.BadParameter(f"{text!r}: expected FIRST-LAST such as 5-9, 5-, -9 or 7", param_hint="--offsets")
    if not found[2]:
        return int(found[1]), int(found[1])
    return int(found[1]) if found[1] else None, int(found[3]) if found[3] else None
