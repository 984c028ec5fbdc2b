"""``tidelog transactions``: list, describe, describe-producers, hanging and abort, on any Kafka since 3.0.

librdkafka does not have these calls, so they go through ``tidelog.client.transactions``, which speaks plaintext only.

``abort`` ends one open transaction in one partition with a marker that bypasses the coordinator. That is right for a hanging
transaction only: one that its coordinator still knows would be aborted here and might be committed elsewhere, so it is refused
without ``--force``. Nothing is changed without ``--execute``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from tidelog.cli.completion import complete_topics
from tidelog.cli.errors import CommandFailed, ExitCode, warn
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, PlaintextOption, choose_one, plaintext_options
from tidelog.cli.output import count_of, make_console, partitions_text, say, show_json, show_table
from tidelog.cli.times import UNKNOWN, age_text, duration_text, time_text, wall_clock_ms
from tidelog.client.transactions.admin import (
    STATES,
    ProducerDescription,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from tidelog.client.transactions.hanging import OpenTransaction, TransactionVerdict, find_hanging, judge, open_transactions
from tidelog.client.wire.errors import ClientError

app = typer.Typer(help="List and describe transactions, find hanging ones and end them.", no_args_is_help=True)

# transaction.max.timeout.ms is 15 minutes unless brokers are told otherwise.
MAX_TIMEOUT_MINUTES = 15
MINUTE_MS = 60_000
EPOCH_MAX = 32767

TopicArgument = Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topics)]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="The same as TOPIC.")]
PartitionsOption = Annotated[list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable.")]


@app.command("list", epilog="Example: tidelog transactions list --state Ongoing --duration 60000")
def list_command(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="NAME", help=f"Only in this state, one of {', '.join(STATES)}; repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", min=0, help="Only of this producer; repeatable.")
    ] = None,
    duration: Annotated[
        int | None,
        typer.Option("--duration", "--duration-filter", metavar="MS", min=0, help="Only those that are open for longer."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern", "--transactional-id-pattern", metavar="REGEX", help="Only ids that match as a whole (Kafka 4.1)."
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the transactional ids that coordinators know, with their states."""
    states = _states(state)
    with _open_admin(bootstrap, properties) as admin:
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
        say(console, "No transactional id matches. To see all of them: tidelog transactions list")
    else:
        say(
            console,
            "There are no transactional ids yet: no producer has set transactional.id. See docs/reference/transactions.md",
        )


@app.command("describe", epilog="Example: tidelog transactions describe payments-1")
def describe_command(
    names: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Transactional ids.")] = None,
    transactional_id: Annotated[
        list[str] | None, typer.Option("--transactional-id", metavar="ID", help="The same as ID; repeatable.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show state, producer, age and partitions of transactional ids."""
    wanted = list(dict.fromkeys([*(names or ()), *(transactional_id or ())]))
    if not all(wanted) or not wanted:
        raise CommandFailed("no transactional id is given; to see the ids: tidelog transactions list")
    with _open_admin(bootstrap, properties) as admin:
        found = admin.describe_transactions(wanted)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CommandFailed(f"no coordinator knows {', '.join(missing)}; to see the ids: tidelog transactions list")
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
    """Show which producers write to a topic's partitions, and at which offset an open transaction starts."""
    wanted = choose_one(name, topic, "topic")
    with _open_admin(bootstrap, properties) as admin:
        described = admin.describe_producers(choose_partitions(admin, [wanted], partition or []))
    rows = [(place, producer) for place, producers in sorted(described.producers.items()) for producer in producers]
    console = make_console()
    if rows or as_json:
        show_producers(console, rows, as_json, wall_clock_ms())
    elif described.producers:
        say(console, f"No idempotent or transactional producer has written to {wanted} recently.")
    return _warn_of_failures(described.failures)


@app.command("hanging", epilog="Example: tidelog transactions hanging --topic orders --max-transaction-timeout 15")
def hanging_command(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="NAME", help="Only in this topic; repeatable.")
    ] = None,
    partition: PartitionsOption = None,
    broker_id: Annotated[
        int | None, typer.Option("--broker-id", min=0, help="Only partitions with a replica on this broker.")
    ] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout",
            metavar="MINUTES",
            min=0,
            help="Only where nothing was written for so long: the brokers' transaction.max.timeout.ms.",
        ),
    ] = MAX_TIMEOUT_MINUTES,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find transactions that are open in a partition and that no coordinator will end, like find-hanging of Kafka's tool."""
    with _open_admin(bootstrap, properties) as admin:
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
        say(console, f"To end the first one: {abort_words(search.hanging[0].transaction)}")
    elif not as_json:
        others = f" ({count_of(search.open_transactions, 'transaction')} open)" if search.open_transactions else ""
        say(console, f"There is no hanging transaction in {count_of(search.partitions, 'partition')}{others}.")
    return _warn_of_failures(search.failures)


app.command("find-hanging", hidden=True, epilog="The same as: tidelog transactions hanging")(hanging_command)


@app.command("abort", epilog="Example: tidelog transactions abort orders --partition 0 --start-offset 1234 --execute")
def abort_command(
    name: TopicArgument = None,
    topic: TopicOption = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="The partition.")] = None,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, help="The transaction's first offset, as shown by `hanging`.")
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", min=0, help="Instead: the transaction of this producer.")
    ] = None,
    producer_epoch: Annotated[
        int | None, typer.Option("--producer-epoch", min=0, max=EPOCH_MAX, help="Use this instead of what the partition knows.")
    ] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option("--coordinator-epoch", min=-1, help="Use this instead of what the partition knows.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Abort it. Without this, only show it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it. This is the default.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Abort it even if its coordinator still knows it.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Abort one hanging transaction in one partition. Shows which one, and aborts it with --execute."""
    hint = "; to find hanging transactions: tidelog transactions hanging"
    wanted = choose_one(name, topic, "topic", hint)
    if partition is None:
        raise CommandFailed(f"no partition is given; add --partition{hint}")
    if (start_offset is None) == (producer_id is None):
        raise CommandFailed(f"which transaction? Give either --start-offset or --producer-id{hint}")
    if execute and dry_run:
        raise CommandFailed("give only one of --execute and --dry-run")
    with _open_admin(bootstrap, properties) as admin:
        found = _find_open(admin, wanted, partition, start_offset, producer_id)
        (verdict,) = judge(admin, [found])
        if execute and not verdict.is_hanging and not force:
            raise CommandFailed(
                f"the transaction is not hanging: {verdict.reason}, and its coordinator will end it. "
                "To abort it in this partition anyway, add --force"
            )
        if execute:
            given = found.abort
            admin.abort_transaction(
                given._replace(
                    producer_epoch=given.producer_epoch if producer_epoch is None else producer_epoch,
                    coordinator_epoch=given.coordinator_epoch if coordinator_epoch is None else coordinator_epoch,
                )
            )
    _show_abort(verdict, execute, as_json)


def _find_open(
    admin: TransactionAdmin, topic: str, partition: int, start_offset: int | None, producer_id: int | None
) -> OpenTransaction:
    described = admin.describe_producers(choose_partitions(admin, [topic], [partition]))
    for error in described.failures.values():
        raise error
    for each in open_transactions(described):
        if start_offset in (None, each.producer.transaction_start_offset) and producer_id in (None, each.producer.producer_id):
            return each
    which = f"at offset {start_offset}" if producer_id is None else f"of producer {producer_id}"
    raise CommandFailed(
        f"there is no open transaction {which} in {topic}-{partition}; to see the open ones: "
        f"tidelog transactions describe-producers {topic} --partition {partition}"
    )


def _show_abort(verdict: TransactionVerdict, is_done: bool, as_json: bool) -> None:
    if as_json:
        show_json({**verdict_document(verdict), "executed": is_done})
        return
    console = make_console()
    show_hanging(console, [verdict], False, wall_clock_ms())
    topic, partition, producer = verdict.transaction
    if is_done:
        say(console, f"Aborted the transaction of producer {producer.producer_id} in {topic}-{partition}.")
    elif verdict.is_hanging:
        say(console, "Nothing was changed. To abort it, repeat the command with --execute.")
    else:
        say(console, f"Nothing was changed. The transaction is not hanging: {verdict.reason}, and its coordinator will end it.")


def _states(texts: Sequence[str] | None) -> list[str]:
    """Parse names in any case, also several separated by commas."""
    known = {name.lower(): name for name in STATES}
    words = [word.strip() for text in texts or () for word in text.split(",")]
    for word in words:
        if word.lower() not in known:
            raise CommandFailed(f"--state {word}: expected any of {', '.join(STATES)}")
    return list(dict.fromkeys(known[word.lower()] for word in words))


def _warn_of_failures(failures: Mapping[tuple[str, int], Exception]) -> int:
    """Warn, because a result that lacks partitions must not pass for a complete one."""
    for (topic, partition), error in sorted(failures.items()):
        warn(f"{topic}-{partition} could not be queried: {error}")
    return ExitCode.ERROR if failures else ExitCode.SUCCESS


@contextmanager
def _open_admin(bootstrap: str, properties: Sequence[str] | None) -> Iterator[TransactionAdmin]:
    try:
        with TransactionAdmin(bootstrap, **plaintext_options(properties, "transactions")) as admin:
            yield admin
    except ClientError as error:
        raise CommandFailed(str(error)) from error


def choose_partitions(
    admin: TransactionAdmin, topics: Sequence[str], indexes: Sequence[int], broker_id: int | None = None
) -> list[tuple[str, int]]:
    """The partitions of the topics, or of all topics; only these indexes and only with a replica on the broker, if given."""
    cluster = admin.metadata()
    if broker_id is not None and broker_id not in cluster.brokers:
        raise CommandFailed(f"there is no broker {broker_id}, only {', '.join(map(str, sorted(cluster.brokers)))}")
    chosen = [place for topic in topics for place in cluster.partitions_of(topic)] if topics else list(cluster.partitions)
    for topic in topics:
        for index in indexes:
            if (topic, index) not in cluster.partitions:
                raise CommandFailed(f"there is no partition {topic}-{index}; to see them: tidelog topics describe {topic}")
    return [
        place
        for place in dict.fromkeys(chosen)
        if (not indexes or place[1] in indexes) and (broker_id is None or broker_id in cluster.partitions[place].replicas)
    ]


# -- text ------------------------------------------------------------------------------------------------------------------------


def show_listings(console: Console, listings: Sequence[TransactionListing], as_json: bool) -> None:
    if as_json:
        for listing in listings:
            show_json(listing._asdict())
        return
    rows = [(each.transactional_id, each.coordinator, each.producer_id, each.state) for each in listings]
    show_table(console, ("Transactional id", "Coordinator", "Producer", "State"), rows)


def show_descriptions(console: Console, descriptions: Sequence[TransactionDescription], as_json: bool, now_ms: int) -> None:
    if as_json:
        for each in descriptions:
            document = {**each._asdict(), "partitions": _partition_documents(each.partitions)}
            document["start_time_ms"] = each.start_time_ms if each.start_time_ms >= 0 else None
            document["duration_ms"] = now_ms - each.start_time_ms if each.start_time_ms >= 0 else None
            show_json(document)
        return
    columns = ("Transactional id", "Coordinator", "Producer", "Epoch", "State", "Timeout", "Began", "Age", "Partitions")
    rows = [
        (
            each.transactional_id,
            each.coordinator,
            each.producer_id,
            each.producer_epoch,
            each.state,
            duration_text(each.timeout_ms / 1000),
            time_text(each.start_time_ms),
            age_text(each.start_time_ms, now_ms),
            partitions_text(each.partitions),
        )
        for each in descriptions
    ]
    show_table(console, columns, rows)


def show_producers(
    console: Console, producers: Sequence[tuple[tuple[str, int], ProducerDescription]], as_json: bool, now_ms: int
) -> None:
    if as_json:
        for (topic, partition), producer in producers:
            show_json(_producer_document(topic, partition, producer))
        return
    columns = ("Topic", "Partition", "Producer", "Epoch", "Coordinator epoch", "Last sequence", "Last write", "Age", "Open since")
    rows = [
        (
            topic,
            partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch if producer.coordinator_epoch >= 0 else UNKNOWN,
            producer.last_sequence if producer.last_sequence >= 0 else UNKNOWN,
            time_text(producer.last_timestamp_ms),
            age_text(producer.last_timestamp_ms, now_ms),
            producer.transaction_start_offset if producer.has_open_transaction else UNKNOWN,
        )
        for (topic, partition), producer in producers
    ]
    show_table(console, columns, rows)


def show_hanging(console: Console, verdicts: Sequence[TransactionVerdict], as_json: bool, now_ms: int) -> None:
    if as_json:
        for verdict in verdicts:
            show_json(verdict_document(verdict))
        return
    columns = ("Topic", "Partition", "Producer", "Epoch", "Coordinator epoch", "Start offset", "Last write", "Age", "Why")
    rows = []
    for verdict in verdicts:
        topic, partition, producer = verdict.transaction
        rows.append(
            (
                topic,
                partition,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.transaction_start_offset,
                time_text(producer.last_timestamp_ms),
                age_text(producer.last_timestamp_ms, now_ms),
                verdict.reason,
            )
        )
    show_table(console, columns, rows)


def verdict_document(verdict: TransactionVerdict) -> dict[str, object]:
    topic, partition, producer = verdict.transaction
    description = verdict.description
    return {
        **_producer_document(topic, partition, producer),
        "transactional_id": None if description is None else description.transactional_id,
        "state": None if description is None else description.state,
        "is_hanging": verdict.is_hanging,
    }


def abort_words(transaction: OpenTransaction) -> str:
    """The command line that ends the transaction."""
    topic, partition, producer = transaction
    return f"tidelog transactions abort {topic} --partition {partition} --start-offset {producer.transaction_start_offset}"


def _producer_document(topic: str, partition: int, producer: ProducerDescription) -> dict[str, object]:
    """A missing value is -1, as in Kafka's tools, except for the start of a transaction if no transaction is open."""
    document = {"topic": topic, "partition": partition, **producer._asdict()}
    if not producer.has_open_transaction:
        document["transaction_start_offset"] = None
    return document


def _partition_documents(partitions: Sequence[tuple[str, int]]) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": partition} for topic, partition in partitions]
