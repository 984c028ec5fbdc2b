"""``tidelog quorum``: who leads the metadata quorum, how far everybody follows, and changes of the voters.

librdkafka does not have these calls, so they go through ``tidelog.client.quorum``, which speaks plaintext only. They work on any
Kafka that has them (status: 3.3, changes: 3.9).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, KafkaCluster, PlaintextOption, plaintext_options
from tidelog.cli.output import confirm, make_console, say, show_json, show_table
from tidelog.client.quorum import (
    KRAFT_VERSION_LEVEL,
    NO_DIRECTORY,
    QuorumAdmin,
    QuorumDescription,
    QuorumListener,
    QuorumReplica,
)
from tidelog.client.wire.errors import ClientError
from tidelog.config.listeners import read_listener
from tidelog.config.types import InvalidSetting
from tidelog.log.durability.checkpoints import format_id, parse_id
from tidelog.log.errors import CorruptCheckpoint

DEFAULT_LISTENER = "CONTROLLER"

app = typer.Typer(help="Show the metadata quorum, and change its voters.", no_args_is_help=True)

NodeArgument = Annotated[int, typer.Argument(metavar="NODE", min=0, help="The id of the node.")]
DirectoryOption = Annotated[
    str | None,
    typer.Option("--directory-id", metavar="ID", help="The id of its directory, if several nodes have had this id."),
]


@app.command("status", epilog="Example: tidelog quorum status --bootstrap 127.0.0.1:9092")
def status_command(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the leader, the voters and the observers of the metadata quorum."""
    with _admin(bootstrap, properties) as admin:
        found = admin.describe()
    now_ms = time.time_ns() // 1_000_000
    if as_json:
        show_json(_document(found, now_ms))
        return
    console = make_console()
    head = f"Leader {found.leader_id} of epoch {found.leader_epoch}; committed up to offset {found.high_watermark}"
    say(console, head)
    rows = [
        (
            replica.node_id,
            role if replica.node_id != found.leader_id else "leader",
            replica.log_end_offset,
            found.lag(replica),
            _ago(replica, found, now_ms),
            _directory_text(replica.directory_id) or "-",
        )
        for role, replicas in (("voter", found.voters), ("observer", found.observers))
        for replica in replicas
    ]
    show_table(console, ("Node", "Role", "End offset", "Lag", "Caught up", "Directory"), rows)


@app.command("upgrade", epilog="Example: tidelog quorum upgrade")
def upgrade_command(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep the voters in the metadata log (kraft.version 1), so that they can be added and removed. There is no way back."""
    with _admin(bootstrap, properties) as admin:
        admin.upgrade()
    if as_json:
        show_json({"kraft_version": KRAFT_VERSION_LEVEL})
    else:
        say(make_console(), "The voters stand in the metadata log; to see them: tidelog quorum status")


@app.command("add", epilog="Example: tidelog quorum add 4 --listener CONTROLLER://10.0.0.4:9093")
def add_command(
    node: NodeArgument,
    listener: Annotated[
        str,
        typer.Option("--listener", metavar="NAME://HOST:PORT", help=f"Its controller listener; the name is {DEFAULT_LISTENER}."),
    ],
    directory_id: DirectoryOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a controller that follows the quorum, and has caught up, a voter."""
    endpoint = _read_endpoint(listener)
    with _admin(bootstrap, properties) as admin:
        found = admin.describe()
        if any(voter.node_id == node for voter in found.voters):
            raise CommandFailed(f"node {node} is a voter already; to give it another directory, remove it first")
        replica = _find(found.observers, node, directory_id, "observers")
        admin.add_voter(node, replica.directory_id, (endpoint,))
    if as_json:
        show_json({"node": node, "is_voter": True})
    else:
        say(make_console(), f"Node {node} is a voter.")


@app.command("remove", epilog="Example: tidelog quorum remove 3 --yes")
def remove_command(
    node: NodeArgument,
    directory_id: DirectoryOption = None,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take the vote of a node away. The node may go on as a broker that observes."""
    with _admin(bootstrap, properties) as admin:
        found = admin.describe()
        replica = _find(found.voters, node, directory_id, "voters")
        left = len(found.voters) - 1
        confirm(f"Remove node {node} from the voters? {left} would be left, and {left // 2 + 1} of them decide.", is_sure)
        admin.remove_voter(node, replica.directory_id)
    if as_json:
        show_json({"node": node, "is_voter": False})
    else:
        say(make_console(), f"Node {node} is no longer a voter.")


@contextmanager
def _admin(bootstrap: str, properties: Sequence[str] | None) -> Iterator[QuorumAdmin]:
    options = plaintext_options(properties, "the quorum")
    KafkaCluster(bootstrap, None).check_reachable()
    try:
        with QuorumAdmin(bootstrap, **options) as admin:
            yield admin
    except ClientError as error:
        raise CommandFailed(str(error)) from error


def _find(replicas: Sequence[QuorumReplica], node_id: int, directory_text: str | None, what: str) -> QuorumReplica:
    """The replica that the command line names."""
    found = [replica for replica in replicas if replica.node_id == node_id]
    if directory_text is not None:
        try:
            directory_id = parse_id("--directory-id", 1, "id", directory_text)
        except CorruptCheckpoint:
            raise CommandFailed(f"--directory-id {directory_text}: expected an id of 22 characters") from None
        found = [replica for replica in found if replica.directory_id == directory_id]
    if len(found) > 1:
        directories = ", ".join(_directory_text(replica.directory_id) or "-" for replica in found)
        raise CommandFailed(
            f"node {node_id} is among the {what} with several directories; choose with --directory-id: {directories}"
        )
    if not found:
        known = ", ".join(str(replica.node_id) for replica in replicas) or "none"
        raise CommandFailed(f"node {node_id} is not among the {what} ({known}); to see the quorum: tidelog quorum status")
    return found[0]


def _read_endpoint(text: str) -> QuorumListener:
    name, separator, _ = text.rpartition("://")
    name = name.upper() if separator else DEFAULT_LISTENER
    try:
        _, address = read_listener("--listener", text.rpartition("://")[2])
    except InvalidSetting as error:
        raise CommandFailed(f"--listener {text}: {error.reason}") from None
    return QuorumListener(name, address.host, address.port)


def _document(found: QuorumDescription, now_ms: int) -> dict[str, object]:
    def fields(replica: QuorumReplica) -> dict[str, object]:
        age_ms = now_ms - replica.last_caught_up_ms if replica.last_caught_up_ms >= 0 else None
        listeners = [f"{each.name}://{each.host}:{each.port}" for each in found.listeners.get(replica.node_id, ())]
        return {
            "node": replica.node_id,
            "directory_id": _directory_text(replica.directory_id),
            "log_end_offset": replica.log_end_offset,
            "lag": found.lag(replica),
            "caught_up_ms_ago": age_ms,
            "listeners": listeners,
        }

    return {
        "leader": found.leader_id,
        "leader_epoch": found.leader_epoch,
        "high_watermark": found.high_watermark,
        "voters": [fields(replica) for replica in found.voters],
        "observers": [fields(replica) for replica in found.observers],
    }


def _ago(replica: QuorumReplica, found: QuorumDescription, now_ms: int) -> str:
    if replica.node_id == found.leader_id:
        return "-"
    if replica.last_caught_up_ms < 0:
        return "never"
    return f"{max(0, now_ms - replica.last_caught_up_ms) / 1000:.1f} s ago"


def _directory_text(directory_id: bytes) -> str | None:
    return None if directory_id == NO_DIRECTORY else format_id(directory_id)
