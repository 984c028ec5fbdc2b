"""``tidelog storage``: give a data directory to a node of a cluster, and see to whom it belongs.

A broker that is a cluster of its own needs none of this: ``tidelog start`` formats an empty directory by itself. The nodes of a
larger cluster must agree on its id before any of them starts, so each of their directories is formatted with that id.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from tidelog.broker.quorum_recovery import read_log_end, request_recovery
from tidelog.cli.errors import CommandFailed, ExitCode, warn
from tidelog.cli.kafka import JsonOption
from tidelog.cli.output import make_console, say, show_json
from tidelog.cli.start import read_settings
from tidelog.config.broker import BROKER, data_directory_of, listeners_of
from tidelog.config.definition import parse
from tidelog.config.listeners import ListenerRole, read_listener
from tidelog.config.types import InvalidSetting, Value
from tidelog.log.durability.checkpoints import META_PROPERTIES_VERSION, MetaProperties, format_id, parse_id
from tidelog.log.errors import CorruptCheckpoint
from tidelog.log.recovery.directory_opening import lock_for_use
from tidelog.log.recovery.formatting import format_directory, random_id, read_format
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.raft.voters import Voter, VoterEndpoint, VoterSet, voter_set
from tidelog.server.cluster_layout import CONTROLLER_LISTENER, write_first_voters

app = typer.Typer(help="Format the data directory of a node, and show to whom it belongs.", no_args_is_help=True)

DataOption = Annotated[
    str | None, typer.Option("--data", metavar="DIR", help="The data directory.", show_default="log.dirs, or data")
]
ConfigOption = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="The settings of the node, as for tidelog start.")
]


@app.command("random-uuid", epilog="Example: tidelog storage random-uuid")
def random_uuid_command(as_json: JsonOption = False) -> None:
    """Print a new id for a cluster or a directory."""
    found = random_id(RealRandomness())
    if as_json:
        show_json({"id": found})
    else:
        typer.echo(found)


@app.command("format", epilog="Example: tidelog storage format --cluster-id $ID --node-id 2 --data data")
def format_command(
    cluster_id: Annotated[str, typer.Option("--cluster-id", metavar="ID", help="The id of the cluster, the same on each node.")],
    node_id: Annotated[
        int | None, typer.Option("--node-id", min=0, help="The id of the node.", show_default="node.id, or 1")
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="This controller is the first voter of a new quorum that others join later.")
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            "--initial-controllers",
            metavar="ID@HOST:PORT:DIRECTORY,...",
            help="The first voters of a new quorum, the same on each of them.",
        ),
    ] = None,
    no_initial_controllers: Annotated[
        bool, typer.Option("--no-initial-controllers", help="The quorum exists, or its voters stand in controller.quorum.voters.")
    ] = False,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", help="Succeed if the directory belongs to this node of this cluster already.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Give an empty data directory to a node of a cluster."""
    if standalone + no_initial_controllers + (initial_controllers is not None) > 1:
        raise CommandFailed("give only one of --standalone, --initial-controllers and --no-initial-controllers")
    place = _find_place(data, config, node_id)
    disk = RealDisk()
    voters = _read_controllers(initial_controllers, place) if initial_controllers is not None else None
    own = voters.by_id(place.node_id) if voters is not None else None
    wanted = MetaProperties(cluster_id, place.node_id, own.directory_id if own is not None else None)

    def begin_quorum(formatted: MetaProperties) -> None:
        first = _only_voter(place, formatted) if standalone else voters
        if first is not None:
            write_first_voters(disk, RealClock(), place.path, first)

    if standalone:
        _own_endpoints(place)
    was_formatted = ignore_formatted and read_format(disk, place.path) is not None
    format_directory(disk, RealRandomness(), place.path, wanted, ignore_formatted=ignore_formatted, prepare=begin_quorum)
    if as_json:
        show_json({"path": place.path, "node_id": place.node_id, "cluster_id": cluster_id, "was_formatted": was_formatted})
        return
    verb = "is formatted already" if was_formatted else "is formatted"
    say(make_console(), f"{place.path} {verb} for node {place.node_id} of cluster {cluster_id}.")


@app.command("info", epilog="Example: tidelog storage info --data data")
def info_command(data: DataOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """Show to which cluster and which node a data directory belongs."""
    path = _find_place(data, config, None).path
    found = read_format(RealDisk(), path)
    if found is None:
        if as_json:
            show_json({"path": path, "is_formatted": False})
        else:
            warn(f"{path} is not formatted; a node of a cluster needs: tidelog storage format")
        return ExitCode.ERROR
    directory_id = format_id(found.directory_id) if found.directory_id is not None else None
    metadata = read_log_end(RealDisk(), path)
    if as_json:
        facts: dict[str, object] = {"cluster_id": found.cluster_id, "node_id": found.node_id, "directory_id": directory_id}
        facts["metadata"] = metadata._asdict() if metadata is not None else None
        show_json({"path": path, "is_formatted": True, **facts, "version": int(META_PROPERTIES_VERSION)})
        return 0
    console = make_console()
    rows = (
        ("directory", path),
        ("cluster.id", found.cluster_id),
        ("node.id", found.node_id),
        ("directory.id", directory_id or "none yet"),
        ("version", META_PROPERTIES_VERSION),
        ("metadata", f"epoch {metadata.epoch}, up to offset {metadata.end_offset}" if metadata is not None else "none yet"),
    )
    for name, value in rows:
        say(console, f"{name:<13} {value}")
    return 0


@app.command("recover-quorum", epilog="Example: tidelog storage recover-quorum --data data --accept-data-loss")
def recover_quorum_command(
    data: DataOption = None,
    config: ConfigOption = None,
    accepts_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Do it: decisions that only the lost voters have are gone.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a node that is left the only voter, when the majority of the voters is lost for good."""
    path, disk = _find_place(data, config, None).path, RealDisk()
    found, metadata = read_format(disk, path), read_log_end(disk, path)
    if found is None or found.directory_id is None or metadata is None:
        raise CommandFailed(f"{path} holds no metadata of a cluster: choose the directory of a node that is left")
    held = f"{path} (node {found.node_id}) has the metadata of cluster {found.cluster_id} up to offset {metadata.end_offset}"
    if not accepts_loss:
        raise CommandFailed(
            f"{held}, epoch {metadata.epoch}. What the lost voters decided after that is gone: topics, partitions, settings. "
            "Choose the directory with the highest epoch and offset (tidelog storage info), never start those of the "
            "lost voters again, and repeat this with --accept-data-loss"
        )
    lock = lock_for_use(disk, path)
    try:
        request_recovery(disk, path, format_id(found.directory_id))
    finally:
        lock.release()
    if as_json:
        show_json({"path": path, "node_id": found.node_id, "cluster_id": found.cluster_id, "metadata": metadata._asdict()})
        return
    console = make_console()
    say(console, f"{held}, and is the only voter from its next start on.")
    say(console, "Start it first, and choose leaders while only nodes that have records run: an empty replica may lead as well.")
    say(console, "To go on from here: docs/OPERATIONS.md, When a node is lost.")


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    node_id: int
    values: Mapping[str, Value]


def _find_place(data: str | None, config: str | None, node_id: int | None) -> _Place:
    """The directory and the node that the options and the settings name."""
    texts = read_settings(config, [])
    if data is not None:
        texts["log.dirs"] = data
    if node_id is not None:
        texts["node.id"] = str(node_id)
    values = parse(BROKER, texts)
    found_node_id = values["node.id"]
    assert isinstance(found_node_id, int)
    return _Place(os.path.abspath(data_directory_of(values)), found_node_id, values)


# -- the first voters of a quorum ------------------------------------------------------------------------------------------------


def _own_endpoints(place: _Place) -> tuple[VoterEndpoint, ...]:
    """Where this controller is reached, from its settings."""
    endpoints = tuple(
        VoterEndpoint(listener.name, listener.advertised.host, listener.advertised.port)
        for listener in listeners_of(place.values)
        if listener.role is ListenerRole.CONTROLLER
    )
    if not endpoints:
        raise CommandFailed(
            "--standalone: others must be able to reach this controller; name its listener in controller.listener.names, in the "
            "file that --config names"
        )
    return endpoints


def _only_voter(place: _Place, formatted: MetaProperties) -> VoterSet:
    assert formatted.directory_id is not None, "it was formatted just now"
    return VoterSet((Voter(place.node_id, formatted.directory_id, _own_endpoints(place)),))


def _read_controllers(text: str, place: _Place) -> VoterSet:
    """Read ``1@host:9093:DIRECTORY,2@...``, as Kafka writes it."""
    names_of_controllers = place.values["controller.listener.names"]
    assert names_of_controllers is None or isinstance(names_of_controllers, tuple)
    listener = names_of_controllers[0].upper() if names_of_controllers else CONTROLLER_LISTENER
    voters: dict[int, Voter] = {}
    for item in text.split(","):
        voter = _read_controller(item.strip(), listener)
        if voter.node_id in voters:
            raise CommandFailed(f"--initial-controllers: node {voter.node_id} is listed twice")
        voters[voter.node_id] = voter
    if place.node_id not in voters:
        raise CommandFailed(
            f"--initial-controllers: this node, {place.node_id}, is missing from the list; a node that joins later is formatted "
            "with --no-initial-controllers"
        )
    return voter_set(voters.values())


def _read_controller(item: str, listener: str) -> Voter:
    found = re.fullmatch(r"([0-9]{1,10})@(.+):([A-Za-z0-9_-]{22})", item)
    if found is None:
        raise CommandFailed(f"--initial-controllers {item}: expected ID@HOST:PORT:DIRECTORY, with an id of 22 characters")
    try:
        _, address = read_listener("--initial-controllers", found[2])
        directory_id = parse_id("--initial-controllers", 1, "directory", found[3])
    except (InvalidSetting, CorruptCheckpoint) as error:
        raise CommandFailed(f"--initial-controllers {item}: {getattr(error, 'reason', None) or error}") from None
    return Voter(int(found[1]), directory_id, (VoterEndpoint(listener, address.host, address.port),))
