"""``tidelog dlq``: list, show, replay, discard and count dead letters, on any Kafka.

``tidelog.deadletters.DeadLetters`` does the same from Python. Every command is safe to repeat: a letter that was replayed or
discarded has a mark in the ledger beside the dead-letter topic.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tidelog.cli.completion import complete_dead_letter_topics
from tidelog.cli.errors import CommandFailed, ExitCode, warn
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, KafkaCluster, PropertiesOption
from tidelog.cli.output import (
    bytes_text,
    confirm,
    count_of,
    format_bytes,
    header_text,
    json_field,
    make_console,
    say,
    show_json,
    show_table,
)
from tidelog.cli.times import UNKNOWN, age_text, ago_ms, read_timestamp, time_text, wall_clock_ms
from tidelog.client.errors import TidelogError
from tidelog.deadletters.dead_letter import AGES, DeadLetter, Depth, LetterCount, prometheus_text
from tidelog.deadletters.dead_letters import DeadLetters, FilterArguments, Shown
from tidelog.deadletters.letter import cut_end
from tidelog.deadletters.replay import Progress, ReplayResult

app = typer.Typer(help="Dead letters: list, show, replay, discard and count them.", no_args_is_help=True)

LETTERS_SHOWN = 20
GROUPS_NAMED_MAX = 10
CELL_BYTES_MAX = 60
# More than a cell shows of any key, and little of a large one.
CELL_READ_BYTES = 1000
VALUE_BYTES_MAX = 2000

NO_TOPICS = "There are no dead-letter topics (TOPIC.GROUP.dlq): a worker creates one when a message fails for good."

_AGE = re.compile(r"[0-9.]+[a-z]|P.*")
_PLACE = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A dead-letter topic: TOPIC.GROUP.dlq.", autocompletion=complete_dead_letter_topics)
]
TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC...", help="Dead-letter topics; by default, all of them.", autocompletion=complete_dead_letter_topics
    ),
]
ErrorOption = Annotated[
    list[str] | None,
    typer.Option("--error", "-e", metavar="CLASS", help="Only this exception class, with or without its module; repeatable."),
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="Only messages with this key.")]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Only if it last failed then or later: ISO 8601, milliseconds, or an age such as 2h."
    ),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only if it last failed before that.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")]
OffsetsOption = Annotated[
    str | None,
    typer.Option("--offsets", metavar="FIRST-LAST", help="Only these offsets of the dead-letter topic; also 5-, -9 or 7."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command("list", epilog="Example: tidelog dlq list orders.email.dlq --error TimeoutError --letters")
def list_command(
    topics: TopicsArgument = None,
    letters: Annotated[bool, typer.Option("--letters", "-l", help="List the letters of one topic one by one.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="How many letters; by default 20, with --json all.")
    ] = None,
    error: ErrorOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    partition: PartitionOption = None,
    offsets: OffsetsOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the waiting letters by topic, group, error and age; or list the letters of a topic."""
    filters = read_filters(error, key, since, until, partition, offsets)
    wanted = topics or []
    if letters and len(wanted) != 1:
        raise CommandFailed("--letters needs exactly one dead-letter topic; to see the topics: tidelog dlq list")
    with dead_letters(bootstrap, properties) as tools:
        if letters:
            found = tools.letters(wanted[0], **filters)
            is_empty = not (_print_letters(found, limit) if as_json else _table_letters(found, wanted[0], limit or LETTERS_SHOWN))
        else:
            counts = tools.list(*wanted, **filters)
            is_empty = not counts
            if counts:
                show_counts(make_console(), counts, wall_clock_ms(), as_json)
            if counts and not as_json:
                topic = counts[0].topic
                say(
                    make_console(),
                    f"To see them one by one: tidelog dlq list {topic} --letters. To send them back: tidelog dlq replay {topic}",
                )
        if is_empty and not as_json:
            _say_empty(wanted or tools.topics(), is_filtered(filters))


def _print_letters(found: Iterator[DeadLetter], limit: int | None) -> int:
    count = 0
    for dead in islice(found, limit):
        show_json(letter_document(dead))
        count += 1
    return count


def _table_letters(found: Iterator[DeadLetter], topic: str, limit: int) -> int:
    shown = list(islice(found, limit + 1))
    if shown:
        console = make_console()
        show_letters(console, shown[:limit], wall_clock_ms())
        more = f"These are the first {limit}; for more, add --limit. " if len(shown) > limit else ""
        say(console, f"{more}To see one with its history: tidelog dlq show {topic} {shown[0].partition}:{shown[0].offset}")
    return len(shown)


def _say_empty(topics: Sequence[str], has_filters: bool) -> None:
    if not topics:
        say(make_console(), NO_TOPICS)
    elif has_filters:
        say(make_console(), "No waiting letter matches. To see all waiting letters: tidelog dlq list")
    else:
        say(make_console(), f"No dead letters are waiting in {count_of(len(topics), 'topic')}.")


@app.command("show", epilog="Example: tidelog dlq show orders.email.dlq 0:17")
def show_command(
    topic: TopicArgument,
    place: Annotated[
        str | None,
        typer.Argument(metavar="PLACE", help="PARTITION:OFFSET as shown by list --letters; by default, the first that waits."),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one letter with its whole history, and what became of it."""
    console = make_console()
    where = None if place is None else read_place(place)
    with dead_letters(bootstrap, properties) as tools:
        if where is None:
            first = next(iter(tools.letters(topic)), None)
            if first is None:
                raise CommandFailed(
                    f"no letter is waiting in {topic}; to see one that was replayed, give its place, such as 0:17"
                )
            where = first.partition, first.offset
        show_letter(console, tools.show(topic, *where), wall_clock_ms(), as_json)


@app.command("replay", epilog="Example: tidelog dlq replay orders.email.dlq --error ConnectionError --since 2h --rate 100")
def replay_command(
    topic: TopicArgument,
    to_origin: Annotated[
        bool, typer.Option("--to-origin", help="Send them to the topic they came from, where every group sees them again.")
    ] = False,
    rate: Annotated[float | None, typer.Option("--rate", "-r", metavar="N", help="At most this many letters per second.")] = None,
    error: ErrorOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    partition: PartitionOption = None,
    offsets: OffsetsOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send letters back to their group's retry topic, each exactly once. To continue after a stop, run it again."""
    filters = read_filters(error, key, since, until, partition, offsets)
    with dead_letters(bootstrap, properties) as tools:
        if to_origin and (readers := tools.origin_readers(topic, **filters)) is not None:
            others = ", ".join(readers.other_groups[:GROUPS_NAMED_MAX])
            more = (
                f" and {len(readers.other_groups) - GROUPS_NAMED_MAX} more"
                if len(readers.other_groups) > GROUPS_NAMED_MAX
                else ""
            )
            if others:
                warn(f"besides {readers.group}, these groups will see the messages in {readers.topic} again: {others}{more}")
            else:
                warn(f"no group besides {readers.group} has read {readers.topic} yet; a later one will see the messages twice")
            if not dry_run:
                confirm(f"Replay to {readers.topic}?", yes)
        with progress_bar("Replayed") as progress:
            result = tools.replay(topic, to_origin=to_origin, rate=rate, dry_run=dry_run, progress=progress, **filters)
    show_result(make_console(), result, "replayed", dry_run, as_json)


@app.command("discard", epilog="Example: tidelog dlq discard orders.email.dlq --error ValidationError --reason 'sent by a test'")
def discard_command(
    topic: TopicArgument,
    everything: Annotated[bool, typer.Option("--all", help="All waiting letters.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; it is kept in the ledger and shown.")] = None,
    error: ErrorOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    partition: PartitionOption = None,
    offsets: OffsetsOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mark letters as discarded: no longer counted, never replayed. This cannot be undone."""
    filters = read_filters(error, key, since, until, partition, offsets)
    if is_filtered(filters) == everything:
        raise CommandFailed("which letters? Give a filter such as --error CLASS, or --all for every waiting letter")
    with dead_letters(bootstrap, properties) as tools:
        if not dry_run:
            confirm(f"Discard letters of {topic}? This cannot be undone.", yes)
        with progress_bar("Discarded") as progress:
            result = tools.discard(topic, reason=reason, dry_run=dry_run, progress=progress, **filters)
    show_result(make_console(), result, "discarded", dry_run, as_json)


@app.command("depth", epilog="Example: tidelog dlq depth --fail-above 100")
def depth_command(
    topics: TopicsArgument = None,
    fail_above: Annotated[
        int | None, typer.Option("--fail-above", metavar="N", min=0, help="Exit with code 3 if more than N letters wait in all.")
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Count offsets only: fast, and too high where workers use transactions.")
    ] = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print Prometheus' text format, for the textfile collector of the node exporter.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> int:
    """Count the waiting letters: those that were neither replayed nor discarded."""
    if prometheus and as_json:
        raise CommandFailed("give only one of --prometheus and --json")
    with dead_letters(bootstrap, properties) as tools:
        depths = tools.depth(*(topics or ()), estimate=estimate)
    if prometheus:
        typer.echo(prometheus_text(depths, wall_clock_ms()), nl=False)
    elif depths or as_json:
        show_depths(make_console(), depths, wall_clock_ms(), as_json)
    else:
        say(make_console(), NO_TOPICS)
    total = sum(depth.letters for depth in depths)
    if fail_above is not None and total > fail_above:
        warn(f"{count_of(total, 'dead letter')}, which is more than {fail_above:,}; to see them: tidelog dlq list")
        return ExitCode.FOUND
    return 0


# -- options ---------------------------------------------------------------------------------------------------------------------


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
    """Parse ``PARTITION:OFFSET``."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r}: expected PARTITION:OFFSET such as 0:17", param_hint="PLACE")
    return int(found[1]), int(found[2])


@contextmanager
def dead_letters(bootstrap: str, properties: Sequence[str] | None) -> Iterator[DeadLetters]:
    """Open the tools; an error becomes one line."""
    cluster = KafkaCluster(bootstrap, properties)
    cluster.check_reachable()
    try:
        yield DeadLetters(bootstrap, config=dict(cluster.properties))
    except TidelogError as error:
        raise CommandFailed(str(error)) from error


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[Progress], None] | None]:
    """Show a bar on a terminal; a script does not get one."""
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
        return ago_ms(text, option)
    return read_timestamp(text, option)


def _range(text: str) -> tuple[int | None, int | None]:
    found = re.fullmatch(r"([0-9]{0,19})(-?)([0-9]{0,19})", text)
    if found is None or not (found[1] or found[3]):
        raise typer.BadParameter(f"{text!r}: expected FIRST-LAST such as 5-9, 5-, -9 or 7", param_hint="--offsets")
    if not found[2]:
        return int(found[1]), int(found[1])
    return int(found[1]) if found[1] else None, int(found[3]) if found[3] else None


# -- text ------------------------------------------------------------------------------------------------------------------------


def show_counts(console: Console, counts: Sequence[LetterCount], now_ms: int, as_json: bool) -> None:
    if as_json:
        for count in counts:
            document: dict[str, object] = {**count._asdict(), "by_age": dict(zip(_age_names(), count.by_age, strict=True))}
            show_json(document)
        return
    rows = [
        (count.topic, count.group, count.error, count.letters, *count.by_age, age_text(count.oldest_ms, now_ms))
        for count in counts
    ]
    ages = [f"< {name}" if limit is not None else name.capitalize() for name, limit in AGES]
    show_table(console, ("Topic", "Group", "Error", "Letters", *ages, "Oldest"), rows)


def show_letters(console: Console, letters: Sequence[DeadLetter], now_ms: int) -> None:
    rows = [
        (
            f"{dead.partition}:{dead.offset}",
            age_text(dead.failed_ms, now_ms),
            dead.letter.attempts if dead.letter else UNKNOWN,
            _cell(dead.key),
            dead.error,
            cut_end(dead.letter.exception_message, CELL_BYTES_MAX) if dead.letter else "",
        )
        for dead in letters
    ]
    show_table(console, ("Place", "Failed ago", "Attempts", "Key", "Error", "Message"), rows)


def letter_document(dead: DeadLetter) -> dict[str, object]:
    """The whole letter; bytes that are not UTF-8 are in base64, as in ``tidelog consume --format json``."""
    document: dict[str, object] = {
        "topic": dead.topic,
        "partition": dead.partition,
        "offset": dead.offset,
        "timestamp": dead.timestamp_ms,
        **json_field("key", dead.key),
        **json_field("value", dead.value),
        "headers": [[name, header_text(value)] for name, value in dead.original_headers],
        "story": dead.letter._asdict() if dead.letter else None,
    }
    return document


def show_letter(console: Console, shown: Shown, now_ms: int, as_json: bool) -> None:
    dead, mark = shown
    if as_json:
        show_json({**letter_document(dead), "mark": mark._asdict() if mark else None})
        return
    letter = dead.letter
    say(console, f"{dead.topic} {dead.partition}:{dead.offset}", style="bold")
    if letter is None:
        say(console, "It has no history, because no Tidelog worker wrote it. It is counted, but it cannot be replayed.")
    else:
        fields = [
            ("from", f"{letter.topic} {letter.partition}:{letter.offset}, sent {_moment_text(letter.timestamp_ms, now_ms)}"),
            ("group", letter.group),
            ("attempts", f"{letter.attempts}{f', replayed {letter.replays} times before' if letter.replays else ''}"),
            ("first failed", _moment_text(letter.first_failure_ms, now_ms)),
            ("last failed", _moment_text(letter.last_failure_ms, now_ms)),
            ("version", letter.application_version or UNKNOWN),
            ("error", f"{letter.exception_class}: {letter.exception_message}"),
        ]
        for name, text in fields:
            say(console, f"  {name:<13}{text}")
        for line in letter.traceback.splitlines():
            say(console, f"    {line}")
    _show_message(console, dead)
    say(console, f"  {'state':<13}{_state(shown, now_ms)}")


def show_result(console: Console, result: ReplayResult, verb: str, is_dry_run: bool, as_json: bool) -> None:
    if as_json:
        show_json({**result._asdict(), "dry_run": is_dry_run})
        return
    places = ", ".join(f"{count:,} to {topic}" for topic, count in result.targets.items())
    what = f"{count_of(result.letters, 'letter')}{f' ({places})' if places else ''}"
    before = f" {count_of(result.done_before, 'letter')} of the topic had been replayed or discarded before."
    if result.letters:
        say(console, f"{f'Would have {verb}' if is_dry_run else verb.capitalize()} {what}.{before if result.done_before else ''}")
    else:
        fits = "matches" if result.not_fitting else "is waiting"
        say(console, f"Nothing was {verb}: no letter {fits}.{before} To see the waiting letters: tidelog dlq list {result.topic}")
    if result.foreign:
        say(
            console,
            f"Left out {count_of(result.foreign, 'letter')} without a history of this topic or a copy of the message: nothing "
            f"says what to send where. To see them: tidelog dlq list {result.topic} --letters",
        )


def show_depths(console: Console, depths: Sequence[Depth], now_ms: int, as_json: bool) -> None:
    if as_json:
        for depth in depths:
            show_json(depth._asdict())
        return
    rows = [
        (depth.topic, f"at most {depth.letters:,}" if depth.is_estimate else depth.letters, age_text(depth.oldest_ms, now_ms))
        for depth in depths
    ]
    show_table(console, ("Topic", "Letters", "Oldest"), rows)


def _show_message(console: Console, dead: DeadLetter) -> None:
    say(console, f"  {'key':<13}{_cell(dead.key)}")
    for name, value in dead.original_headers:
        say(console, f"  {'header':<13}{name}: {_cell(value)}")
    value = dead.value
    size = "" if value is None else f"{format_bytes(len(value))}"
    say(console, f"  {'value':<13}{size if value is not None else 'null'}")
    if value is not None:
        say(console, f"    {cut_end(bytes_text(value[: VALUE_BYTES_MAX + 1]), VALUE_BYTES_MAX)}")


def _state(shown: Shown, now_ms: int) -> str:
    dead, mark = shown
    if mark is None:
        offsets = f"--partition {dead.partition} --offsets {dead.offset}"
        return f"waiting. To replay it: tidelog dlq replay {dead.topic} {offsets}"
    where = f" to {mark.target}" if mark.target else ""
    return f"{mark.kind}{where} {_moment_text(mark.at_ms, now_ms)}{f': {mark.reason}' if mark.reason else ''}"


def _moment_text(timestamp_ms: int | None, now_ms: int) -> str:
    return UNKNOWN if timestamp_ms is None else f"{time_text(timestamp_ms)} ({age_text(timestamp_ms, now_ms)} ago)"


def _age_names() -> list[str]:
    return [name if limit is None else f"within {name}" for name, limit in AGES]


def _cell(content: bytes | None) -> str:
    return cut_end(bytes_text(None if content is None else content[:CELL_READ_BYTES]), CELL_BYTES_MAX)
