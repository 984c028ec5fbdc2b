"""``tidelog transactions abort``: end one open transaction in one partition, by a marker that goes past its coordinator.

That is right for a hanging transaction only. One that its coordinator still has would be aborted here and could be committed
elsewhere, so that is refused without ``--force``. Nothing is changed without ``--execute``.
"""

from typing import Annotated

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption
from tidelog.cli.output import make_console, say, show_json
from tidelog.cli.transactions_admin import PlaintextOption, choose_partitions, open_admin
from tidelog.cli.transactions_text import show_hanging, verdict_document, wall_clock_ms
from tidelog.client.transactions.admin import TransactionAdmin
from tidelog.client.transactions.hanging import OpenTransaction, TransactionVerdict, judge, open_transactions

EPILOG = "Example: tidelog transactions abort orders --partition 0 --start-offset 1234 --execute"
EPOCH_MAX = 32767


def abort_command(
    name: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic's name.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="As TOPIC.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="The partition.")] = None,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, help="The transaction's first offset, as `hanging` shows it.")
    ] = None,
    producer_id: Annotated[int | None, typer.Option("--producer-id", min=0, help="Instead: that of this producer.")] = None,
    producer_epoch: Annotated[
        int | None, typer.Option("--producer-epoch", min=0, max=EPOCH_MAX, help="Instead of the one that the partition knows.")
    ] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option("--coordinator-epoch", min=-1, help="Instead of the one that the partition knows.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without this, only show it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it, as is the default.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also one that its coordinator still has.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """End one hanging transaction in one partition. Shows which; ends it with --execute."""
    if name is not None and topic is not None and name != topic:
        raise CommandFailed(f"which topic, {name} or {topic}?")
    wanted = name or topic
    if not wanted or partition is None:
        raise CommandFailed("which partition? Give TOPIC and --partition; to find it: tidelog transactions hanging")
    if (start_offset is None) == (producer_id is None):
        raise CommandFailed(
            "which transaction? Give either --start-offset or --producer-id; to find it: tidelog transactions hanging"
        )
    if execute and dry_run:
        raise CommandFailed("give only one of --execute and --dry-run")
    with open_admin(bootstrap, properties) as admin:
        found = _find(admin, wanted, partition, start_offset, producer_id)
        (verdict,) = judge(admin, [found])
        if execute and not verdict.is_hanging and not force:
            raise CommandFailed(
                f"the transaction is not hanging: {verdict.reason}, and its coordinator will end it. "
                "To abort it in this partition all the same: --force"
            )
        if execute:
            given = found.abort
            admin.abort_transaction(
                given._replace(
                    producer_epoch=given.producer_epoch if producer_epoch is None else producer_epoch,
                    coordinator_epoch=given.coordinator_epoch if coordinator_epoch is None else coordinator_epoch,
                )
            )
    _show(verdict, execute, as_json)


def _find(
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
        f"no open transaction {which} in {topic}-{partition}: to see what is open: "
        f"tidelog transactions describe-producers {topic} --partition {partition}"
    )


def _show(verdict: TransactionVerdict, is_done: bool, as_json: bool) -> None:
    if as_json:
        show_json({**verdict_document(verdict), "executed": is_done})
        return
    console = make_console()
    show_hanging(console, [verdict], False, wall_clock_ms())
    topic, partition, producer = verdict.transaction
    if is_done:
        say(console, f"Aborted the transaction of producer {producer.producer_id} in {topic}-{partition}.")
    elif verdict.is_hanging:
        say(console, "Nothing was changed. To do it: the same with --execute")
    else:
        say(console, f"Nothing was changed, and it is not hanging: {verdict.reason}, and its coordinator will end it.")
