"""``tidelog dlq``: list, show, replay, discard, depth, on any Kafka. The same from Python: ``tidelog.deadletters.DeadLetters``.

Each command is safe to run again: what was replayed or discarded has a mark in the ledger beside the dead-letter topic.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated

import typer

from tidelog.cli.dlq_options import (
    DryRunOption,
    ErrorOption,
    KeyOption,
    OffsetsOption,
    PartitionOption,
    SinceOption,
    TopicArgument,
    TopicsArgument,
    UntilOption,
    YesOption,
    dead_letters,
    is_filtered,
    progress_bar,
    read_filters,
    read_place,
)
from tidelog.cli.dlq_text import letter_document, show_counts, show_depths, show_letter, show_letters, show_result
from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, PropertiesOption
from tidelog.cli.output import confirm, count_of, make_console, say, show_json, warn
from tidelog.cli.transactions_text import wall_clock_ms
from tidelog.deadletters.dead_letter import DeadLetter, prometheus_text

app = typer.Typer(help="Dead letters: list, show, replay, discard and count them.", no_args_is_help=True)

LETTERS_SHOWN = 20
GROUPS_NAMED_MAX = 10
# Apart from 1, which says that the depth is not known.
EXIT_TOO_DEEP = 3

NO_TOPICS = "There are no dead-letter topics (TOPIC.GROUP.dlq): a worker makes them when a message fails for good."


@app.command("list", epilog="Example: tidelog dlq list orders.email.dlq --error TimeoutError --letters")
def list_command(
    topics: TopicsArgument = None,
    letters: Annotated[bool, typer.Option("--letters", "-l", help="The letters one by one, of one topic.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many letters; 20, with --json all.")] = None,
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
    """Count what waits, by topic, group, error and age; or list the letters of a topic."""
    filters = read_filters(error, key, since, until, partition, offsets)
    wanted = topics or []
    if letters and len(wanted) != 1:
        raise CommandFailed("which letters? Give one dead-letter topic; to see them: tidelog dlq list")
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
                say(make_console(), f"One by one: tidelog dlq list {topic} --letters. Back to work: tidelog dlq replay {topic}")
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
        more = f"These are the first {limit}; more with --limit. " if len(shown) > limit else ""
        say(console, f"{more}One with its story: tidelog dlq show {topic} {shown[0].partition}:{shown[0].offset}")
    return len(shown)


def _say_empty(topics: Sequence[str], has_filters: bool) -> None:
    if not topics:
        say(make_console(), NO_TOPICS)
    elif has_filters:
        say(make_console(), "No letter fits that still waits. To see all that do: tidelog dlq list")
    else:
        say(make_console(), f"No dead letters wait in {count_of(len(topics), 'topic')}.")


@app.command("show", epilog="Example: tidelog dlq show orders.email.dlq 0:17")
def show_command(
    topic: TopicArgument,
    place: Annotated[
        str | None,
        typer.Argument(metavar="PLACE", help="PARTITION:OFFSET as list --letters has it; without it, the first that waits."),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one letter with its whole story, and what became of it."""
    console = make_console()
    where = None if place is None else read_place(place)
    with dead_letters(bootstrap, properties) as tools:
        if where is None:
            first = next(iter(tools.letters(topic)), None)
            if first is None:
                raise CommandFailed(f"no letter of {topic} waits; give a place such as 0:17 to see one that was replayed")
            where = first.partition, first.offset
        show_letter(console, tools.show(topic, *where), wall_clock_ms(), as_json)


@app.command("replay", epilog="Example: tidelog dlq replay orders.email.dlq --error ConnectionError --since 2h --rate 100")
def replay_command(
    topic: TopicArgument,
    to_origin: Annotated[
        bool, typer.Option("--to-origin", help="To the topic they came from, where every group sees them again.")
    ] = False,
    rate: Annotated[float | None, typer.Option("--rate", "-r", metavar="N", help="Letters per second.")] = None,
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
    """Send letters back to their group's retry topic, each exactly once. Run it again to go on after a stop."""
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
                warn(f"to {readers.topic}: beside {readers.group}, these groups see the messages again: {others}{more}")
            else:
                warn(f"to {readers.topic}: beside {readers.group}, no group has read it; later ones see the messages twice")
            if not dry_run:
                confirm(f"Replay to {readers.topic}?", yes)
        with progress_bar("Replayed") as progress:
            result = tools.replay(topic, to_origin=to_origin, rate=rate, dry_run=dry_run, progress=progress, **filters)
    show_result(make_console(), result, "replayed", dry_run, as_json)


@app.command("discard", epilog="Example: tidelog dlq discard orders.email.dlq --error ValidationError --reason 'sent by a test'")
def discard_command(
    topic: TopicArgument,
    everything: Annotated[bool, typer.Option("--all", help="All letters that wait.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept in the ledger, and shown.")] = None,
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
    """Mark letters as done with: no longer counted, never replayed. There is no way back."""
    filters = read_filters(error, key, since, until, partition, offsets)
    if is_filtered(filters) == everything:
        raise CommandFailed("which letters? Give a filter such as --error CLASS, or --all for every one that waits")
    with dead_letters(bootstrap, properties) as tools:
        if not dry_run:
            confirm(f"Discard letters of {topic} for good?", yes)
        with progress_bar("Discarded") as progress:
            result = tools.discard(topic, reason=reason, dry_run=dry_run, progress=progress, **filters)
    show_result(make_console(), result, "discarded", dry_run, as_json)


@app.command("depth", epilog="Example: tidelog dlq depth --fail-above 100")
def depth_command(
    topics: TopicsArgument = None,
    fail_above: Annotated[
        int | None, typer.Option("--fail-above", metavar="N", min=0, help="Exit with 3 when more than N letters wait in all.")
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="By offsets alone: fast, and at least as high where workers use transactions.")
    ] = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Prometheus' text format, for the textfile collector of the node exporter.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> int:
    """Count the letters that wait: neither replayed nor discarded."""
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
        warn(f"{count_of(total, 'dead letter')}, more than {fail_above:,}; to see them: tidelog dlq list")
        return EXIT_TOO_DEEP
    return 0
