"""``tidelog transactions``: list, describe, describe-producers, hanging, abort, on any Kafka since 3.0.

librdkafka does not have these calls, so they go through ``tidelog.client.transactions``, which speaks plaintext only.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from tidelog.cli import transactions_abort
from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption
from tidelog.cli.output import count_of, make_console, say, warn
from tidelog.cli.transactions_admin import PlaintextOption, choose_partitions, open_admin
from tidelog.cli.transactions_text import (
    abort_words,
    show_descriptions,
    show_hanging,
    show_listings,
    show_producers,
    wall_clock_ms,
)
from tidelog.client.transactions.hanging import find_hanging
from tidelog.client.transactions.types import STATES

app = typer.Typer(help="List and describe transactions, find hanging ones and end them.", no_args_is_help=True)

# transaction.max.timeout.ms is 15 minutes unless brokers are told otherwise.
MAX_TIMEOUT_MINUTES = 15
MINUTE_MS = 60_000
INCOMPLETE = 1

TopicArgument = Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic's name.")]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="As TOPIC.")]
PartitionsOption = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; several are fine.")
]


@app.command("list", epilog="Example: tidelog transactions list --state Ongoing --duration 60000")
def list_command(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="NAME", help=f"Only in this state, one of {', '.join(STATES)}; several are fine."),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", min=0, help="Only of this producer; several are fine.")
    ] = None,
    duration: Annotated[
        int | None, typer.Option("--duration", "--duration-filter", metavar="MS", min=0, help="Only those that are older.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern", "--transactional-id-pattern", metavar="REGEX", help="Only ids that it fits as a whole (Kafka 4.1)."
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the transactional ids that coordinators know, with their state."""
    states = _states(state)
    with open_admin(bootstrap, properties) as admin:
        found = admin.list_transactions(
            states=states,
            producer_ids=producer_id or [],
            duration_ms=-1 if duration is None else duration,
            pattern=pattern,
        )
    console = make_console()
    if found or as_json:
        show_listings(console, found, as_json)
    elif states or producer_id or duration is not None or pattern is not None:
        say(console, "No transactional id fits. See them all: tidelog transactions list")
    else:
        say(
            console,
            "There are no transactional ids: no producer has set transactional.id yet. See docs/reference/transactions.md",
        )


@app.command("describe", epilog="Example: tidelog transactions describe payments-1")
def describe_command(
    names: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Transactional ids.")] = None,
    transactional_id: Annotated[
        list[str] | None, typer.Option("--transactional-id", metavar="ID", help="As ID; several are fine.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show state, producer, age and partitions of transactional ids."""
    wanted = list(dict.fromkeys([*(names or ()), *(transactional_id or ())]))
    if not all(wanted) or not wanted:
        raise CommandFailed("which transactional id? Give it; to see them: tidelog transactions list")
    with open_admin(bootstrap, properties) as admin:
        found = admin.describe_transactions(wanted)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CommandFailed(f"no coordinator knows {', '.join(missing)}: to see the ids: tidelog transactions list")
    show_descriptions(make_console(), [found[name] for name in wanted], as_json, wall_clock_ms())


@app.command("describe-producers", epilog="Example: tidelog transactions describe-producers orders --partition 0")
def describe_producers_command(
    name: TopicArgument = None,
    topic: TopicOption = None,
    partition: PartitionsOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show who writes to a topic's partitions, and since which offset a transaction is open there."""
    wanted = _topic(name, topic)
    if wanted is None:
        raise CommandFailed("which topic? Give its name")
    with open_admin(bootstrap, properties) as admin:
        described = admin.describe_producers(choose_partitions(admin, [wanted], partition or []))
    rows = [(place, producer) for place, producers in sorted(described.producers.items()) for producer in producers]
    console = make_console()
    if rows or as_json:
        show_producers(console, rows, as_json, wall_clock_ms())
    elif described.producers:
        say(console, f"No idempotent or transactional producer has written to {wanted} lately.")
    return _warn_of_failures(described.failures)


@app.command("hanging", epilog="Example: tidelog transactions hanging --topic orders --max-transaction-timeout 15")
def hanging_command(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="NAME", help="Only in this topic; several are fine.")
    ] = None,
    partition: PartitionsOption = None,
    broker_id: Annotated[int | None, typer.Option("--broker-id", min=0, help="Only partitions with a replica there.")] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout",
            metavar="MINUTES",
            min=0,
            help="Only where nothing was written for so long: transaction.max.timeout.ms of the brokers.",
        ),
    ] = MAX_TIMEOUT_MINUTES,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find transactions that are open in a partition and that no coordinator will end. As find-hanging of Kafka's tool."""
    with open_admin(bootstrap, properties) as admin:
        search = find_hanging(
            admin,
            choose_partitions(admin, topic or [], partition or [], broker_id),
            longest_timeout_ms=max_transaction_timeout * MINUTE_MS,
            now_ms=wall_clock_ms(),
        )
    console = make_console()
    if search.hanging or as_json:
        show_hanging(console, search.hanging, as_json, wall_clock_ms())
    if search.hanging and not as_json:
        say(console, f"To end the first: {abort_words(search.hanging[0].transaction)}")
    elif not as_json:
        others = f" ({count_of(search.open_transactions, 'transaction')} open)" if search.open_transactions else ""
        say(console, f"No hanging transaction in {count_of(search.partitions, 'partition')}{others}.")
    return _warn_of_failures(search.failures)


app.command("find-hanging", hidden=True, epilog="The same as: tidelog transactions hanging")(hanging_command)
app.command("abort", epilog=transactions_abort.EPILOG)(transactions_abort.abort_command)


def _states(texts: Sequence[str] | None) -> list[str]:
    """Several, also with commas between them."""
    known = {name.lower(): name for name in STATES}
    words = [word.strip() for text in texts or () for word in text.split(",")]
    for word in words:
        if word.lower() not in known:
            raise CommandFailed(f"--state {word}: expected any of {', '.join(STATES)}")
    return list(dict.fromkeys(known[word.lower()] for word in words))


def _topic(argument: str | None, option: str | None) -> str | None:
    if argument is not None and option is not None and argument != option:
        raise CommandFailed(f"which topic, {argument} or {option}?")
    return argument or option


def _warn_of_failures(failures: Mapping[tuple[str, int], Exception]) -> int:
    """A result that lacks partitions is not to be taken for a whole one."""
    for (topic, partition), error in sorted(failures.items()):
        warn(f"{topic}-{partition} could not be asked: {error}")
    return INCOMPLETE if failures else 0
