"""The layout of a cluster on one machine: its nodes, their ports, and the settings and directories that follow from that.

Every node is a broker with three listeners on loopback: one for clients, one for other brokers, one for controllers. The first
nodes, an odd number of them, are the voters of the metadata quorum. In a new cluster they stand in the snapshot with which the
metadata log of each begins (kraft.version 1).

The layout is kept in the file ``cluster.json`` beside the nodes' directories, so that the next start finds the same cluster:

    {"version": 1, "cluster_id": "...", "is_formatted": true,
     "nodes": [{"node_id": 1, "client": 9092, "inter_broker": 9192, "controller": 9292, "directory_id": "..."}, ...]}

It is written before any directory is formatted, and again when all are. A crash in between is made good by the next start. From
then on a directory that is found empty was lost, together with the votes that were given from it, so it gets a new id.

A node that should vote and does not, because the cluster has grown or the node has lost its directory, joins the voters by itself
(``controller.quorum.auto.join.enable``), as long as a majority of them is there.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from tidelog.config.file import UnreadableFile
from tidelog.log import names
from tidelog.log.durability.checkpoints import MetaProperties, parse_id, write_atomically
from tidelog.log.errors import CorruptCheckpoint
from tidelog.log.recovery.formatting import format_directory, random_id
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.ports.randomness import Randomness
from tidelog.raft.snapshot_file import write_bootstrap_snapshot
from tidelog.raft.voters import Voter, VoterEndpoint, VoterSet, voter_set

HOST = "127.0.0.1"
LAYOUT_FILE = "cluster.json"
LAYOUT_VERSION = 1
CONTROLLER_LISTENER = "CONTROLLER"
METADATA_DIRECTORY = names.partition_directory_name(METADATA_TOPIC, 0)
# More processes than that do not belong on one machine.
BROKERS_MAX = 32
# Five voters survive the loss of two; more only make every decision slower.
VOTERS_MAX = 5
# What topics have in a cluster that is large enough, and the settings that say so, for each kind of topic.
REPLICAS = 3
IN_SYNC_REPLICAS = 2
_REPLICATION = (
    ("default.replication.factor", "min.insync.replicas"),
    ("offsets.topic.replication.factor", "min.insync.replicas"),
    ("transaction.state.log.replication.factor", "transaction.state.log.min.isr"),
    ("share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.min.isr"),
)
# Where the ports of the listeners that clients do not use begin, above those for clients.
INTER_BROKER_PORTS = 100
CONTROLLER_PORTS = 200
PORT_MAX = 65_535

# A node's three ports are for clients, other brokers and controllers.
NodePorts = tuple[int, int, int]


class CannotShrink(Exception):
    """Why a cluster cannot do without some of its nodes."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    node_id: int
    client: int
    inter_broker: int
    controller: int
    directory_id: str
    """The id of its first data directory, as text."""

    @property
    def ports(self) -> NodePorts:
        return self.client, self.inter_broker, self.controller


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    cluster_id: str
    nodes: tuple[NodeLayout, ...]
    is_formatted: bool = False

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(node.node_id for node in self.nodes)

    @property
    def controllers(self) -> tuple[NodeLayout, ...]:
        """The first nodes, an odd number of them: an even number survives no more failures than one less."""
        count = min(len(self.nodes), VOTERS_MAX)
        return self.nodes[: count - (count + 1) % 2]

    @property
    def first_voters(self) -> VoterSet:
        return voter_set(
            Voter(
                node.node_id,
                parse_id(LAYOUT_FILE, 1, "directory_id", node.directory_id),
                (VoterEndpoint(CONTROLLER_LISTENER, HOST, node.controller),),
            )
            for node in self.controllers
        )

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{node.client}" for node in self.nodes)

    def node(self, node_id: int) -> NodeLayout:
        return next(node for node in self.nodes if node.node_id == node_id)

    def settings(self, node_id: int, path: str) -> dict[str, str]:
        """The settings of a node that follow from the layout, under Kafka's names."""
        node = self.node(node_id)
        is_controller = node in self.controllers
        listeners = {"PLAINTEXT": node.client, "REPLICATION": node.inter_broker}
        if is_controller:
            listeners[CONTROLLER_LISTENER] = node.controller
        return {
            "node.id": str(node_id),
            "process.roles": "broker,controller" if is_controller else "broker",
            "log.dirs": data_path_of(path, node_id),
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
            "listener.security.protocol.map": f"REPLICATION:PLAINTEXT,{CONTROLLER_LISTENER}:PLAINTEXT",
            "inter.broker.listener.name": "REPLICATION",
            "controller.listener.names": CONTROLLER_LISTENER,
            "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{each.controller}" for each in self.controllers),
            "controller.quorum.auto.join.enable": str(is_controller).lower(),
        }

    def replication_settings(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """The chosen settings, and what they leave open: how many replicas topics have in a cluster of this size, and how many of
        them a write needs. Of three brokers any one may be lost: nothing is lost with it, and writes go on."""
        replicas, in_sync = str(min(len(self.nodes), REPLICAS)), str(min(len(self.nodes), IN_SYNC_REPLICAS))
        found: dict[str, str] = {}
        for factor, needed in _REPLICATION:
            if factor not in chosen:
                found |= {factor: replicas, needed: in_sync}
        return {**found, **chosen}

    def to_json(self) -> str:
        return json.dumps({"version": LAYOUT_VERSION, **asdict(self)}, indent=1) + "\n"


def data_path_of(path: str, node_id: int) -> str:
    return os.path.join(path, f"broker-{node_id}")


def ports_from(base_port: int, broker_count: int) -> tuple[NodePorts, ...]:
    """The ports of each node: clients at ``base_port`` and the ports after it. Raises ValueError if they do not exist."""
    if not 1 <= base_port <= PORT_MAX - CONTROLLER_PORTS - broker_count:
        raise ValueError(f"expected a port from 1 to {PORT_MAX - CONTROLLER_PORTS - broker_count}")
    return tuple(
        (base_port + index, base_port + INTER_BROKER_PORTS + index, base_port + CONTROLLER_PORTS + index)
        for index in range(broker_count)
    )


def make_layout(randomness: Randomness, ports: Sequence[NodePorts]) -> ClusterLayout:
    nodes = tuple(NodeLayout(index + 1, *each, random_id(randomness)) for index, each in enumerate(ports))
    return ClusterLayout(random_id(randomness), nodes)


def grow_layout(
    disk: Disk, randomness: Randomness, path: str, layout: ClusterLayout, ports: Sequence[NodePorts]
) -> ClusterLayout:
    """Add nodes with these ports, and write the layout. ``format_nodes`` makes their directories."""
    first_id = max(layout.node_ids) + 1
    added = tuple(NodeLayout(first_id + index, *each, random_id(randomness)) for index, each in enumerate(ports))
    grown = replace(layout, nodes=(*layout.nodes, *added))
    write_atomically(disk, os.path.join(path, LAYOUT_FILE), grown.to_json().encode())
    return grown


def shrink_layout(disk: Disk, path: str, layout: ClusterLayout, count: int) -> ClusterLayout:
    """Leave out all nodes but the first ``count``, and write the layout. Their directories stay. The brokers must be stopped.

    Raises CannotShrink if one of those nodes votes, or still has a partition on its disk: it might be the only copy."""
    smaller = replace(layout, nodes=layout.nodes[:count])
    if smaller.controllers != layout.controllers:
        least = next(number for number in range(count + 1, len(layout.nodes) + 1) if _keeps_voters(layout, number))
        raise CannotShrink(f"its voters are nodes of a cluster of at least {least}")
    for node in layout.nodes[count:]:
        data_path = data_path_of(path, node.node_id)
        held = [
            name
            for name in (disk.list_directory(data_path) if disk.exists(data_path) else [])
            if (found := names.parse_partition_directory_name(name)) and not found.state and found.topic != METADATA_TOPIC
        ]
        if held:
            drain = f"run all {len(layout.nodes)} and empty it with tidelog drain {node.node_id}"
            raise CannotShrink(f"broker {node.node_id} has {min(held)} on its disk; {drain}")
    write_atomically(disk, os.path.join(path, LAYOUT_FILE), smaller.to_json().encode())
    return smaller


def _keeps_voters(layout: ClusterLayout, count: int) -> bool:
    return replace(layout, nodes=layout.nodes[:count]).controllers == layout.controllers


def read_layout(path: str) -> ClusterLayout | None:
    """The layout in a cluster's directory; None if there is none. Raises UnreadableFile when the file is something else."""
    file = os.path.join(path, LAYOUT_FILE)
    try:
        with open(file, encoding="utf-8") as found:
            return parse_layout(found.read(), file)
    except FileNotFoundError:
        return None


def parse_layout(text: str, path: str) -> ClusterLayout:
    try:
        document = json.loads(text)
        if not isinstance(document, Mapping) or document.get("version") != LAYOUT_VERSION:
            raise ValueError(f"expected version {LAYOUT_VERSION}")
        nodes = tuple(NodeLayout(**node) for node in document["nodes"])
        if not 1 <= len(nodes) <= BROKERS_MAX or len({node.node_id for node in nodes}) != len(nodes):
            raise ValueError("expected nodes with an id each")
        if not all(isinstance(port, int) and 1 <= port <= PORT_MAX for node in nodes for port in node.ports):
            raise ValueError("expected ports")
        layout = ClusterLayout(str(document["cluster_id"]), nodes, document["is_formatted"] is True)
        assert layout.first_voters, "every voter has an id that can be read"
        return layout
    except (ValueError, KeyError, TypeError, AttributeError, CorruptCheckpoint) as error:
        raise UnreadableFile(f"{path} does not hold the layout of a cluster ({error}); restore it from a copy") from None


def format_nodes(disk: Disk, randomness: Randomness, clock: Clock, path: str, layout: ClusterLayout) -> ClusterLayout:
    """Write the layout, and format the directories that are not formatted yet. Blocks. Raises DirectoryUnusable for one that
    belongs to somebody else."""
    file = os.path.join(path, LAYOUT_FILE)
    if not layout.is_formatted:
        write_atomically(disk, file, layout.to_json().encode())
    for node_id in layout.node_ids:
        voter = None if layout.is_formatted else layout.first_voters.by_id(node_id)
        wanted = MetaProperties(layout.cluster_id, node_id, voter.directory_id if voter is not None else None)
        data_path = data_path_of(path, node_id)

        def begin_quorum(_: MetaProperties, data_path: str = data_path) -> None:
            write_first_voters(disk, clock, data_path, layout.first_voters)

        prepare = begin_quorum if voter is not None else None
        format_directory(disk, randomness, data_path, wanted, ignore_formatted=True, prepare=prepare)
    if layout.is_formatted:
        return layout
    formatted = replace(layout, is_formatted=True)
    write_atomically(disk, file, formatted.to_json().encode())
    return formatted


def write_first_voters(disk: Disk, clock: Clock, data_path: str, voters: VoterSet) -> None:
    """Let the metadata log of an empty directory begin with the first voters of a quorum."""
    directory = names.join(data_path, METADATA_DIRECTORY)
    disk.make_directory(directory)
    write_bootstrap_snapshot(disk, directory, voters, clock.now_ms())
