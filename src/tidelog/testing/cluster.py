"""A cluster of brokers for tests, one process each: kill its nodes, pause them, and cut the links between them.

Every connection from a node to another goes through a proxy in the test's process (``testing.links``); those of clients do not.
The addresses stay the same over restarts. Processes end with the test run, however that ends, and what they printed is shown when
the test fails.
"""

import os
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from tidelog.config.file import text_of
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.server.cluster_layout import ClusterLayout, NodePorts, data_path_of, format_nodes, make_layout, read_layout
from tidelog.testing.broker import Broker
from tidelog.testing.environment import HOST, BrokerFailed, reserve_port
from tidelog.testing.links import Links

# How many of its last lines each node contributes to the output of a failed test.
OUTPUT_LINES_MAX = 40


class ClusterNode(Broker):
    """One broker of a cluster. Its data directory belongs to the cluster."""

    def __init__(self, environment: "NodeEnvironment", proxy_port: int) -> None:
        self._environment = environment
        self._run = None
        self._proxy_port = proxy_port
        self.log_lines = []

    def _command(self, settings: Mapping[str, str]) -> list[str]:
        return [*super()._command(settings), str(self._proxy_port)]


class NodeEnvironment:
    def __init__(self, layout: ClusterLayout, node_id: int, path: Path, configs: Mapping[str, object]) -> None:
        self.port = layout.node(node_id).client
        self.data_path = Path(data_path_of(str(path), node_id))
        self._path = path
        self._layout = layout
        self._node_id = node_id
        self._configs = configs

    @property
    def is_temporary(self) -> bool:
        return True

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """The test's own settings, except for what the cluster itself decides."""
        configs = {name: text_of(name, value) for name, value in self._configs.items()}
        return {**configs, **self._layout.settings(self._node_id, str(self._path))}

    def close(self) -> None:
        """The cluster releases everything at once."""


class Cluster:
    """``with Cluster(brokers=3) as cluster: cluster.bootstrap_servers``.

    The nodes have the ids 1, 2, 3, and so on. ``persist`` names a directory to use and keep, with the cluster that it holds if it
    holds one; without it there is a temporary one. ``configs`` are settings of every broker under Kafka's names.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        persist: str | os.PathLike[str] | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="tidelog-", ignore_cleanup_errors=True) if persist is None else None
        path = Path(persist).absolute() if persist is not None else Path(self._temporary.name if self._temporary else "")
        path.mkdir(parents=True, exist_ok=True)
        layout = read_layout(str(path))
        self._reservations: list[socket.socket] = []
        if layout is None:
            layout = make_layout(RealRandomness(), [self._reserve_three() for _ in range(brokers)])
        else:
            self._reservations = [reserve_port(port) for node in layout.nodes for port in node.ports]
        layout = format_nodes(RealDisk(), RealRandomness(), RealClock(), str(path), layout)
        self.cluster_id = layout.cluster_id
        self._links = Links({port: node.node_id for node in layout.nodes for port in node.ports})
        self.nodes: Mapping[int, ClusterNode] = {
            node_id: ClusterNode(NodeEnvironment(layout, node_id, path, configs or {}), self._links.port)
            for node_id in layout.node_ids
        }
        self._paused: set[int] = set()

    # -- what a test wants to know -------------------------------------------------------------------------------------------

    @property
    def node_ids(self) -> list[int]:
        return list(self.nodes)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes.values())

    @property
    def running(self) -> list[int]:
        """The ids of the nodes that run and are not paused."""
        return [node_id for node_id, node in self.nodes.items() if node.is_running and node_id not in self._paused]

    def controller(self) -> int:
        """The id of the active controller, as soon as the nodes that run agree on one. BrokerFailed if there is none in time."""
        # Imported on use: it loads librdkafka.
        from tidelog.client.quorum import QuorumAdmin
        from tidelog.client.wire.errors import ClientError

        servers = ",".join(self.nodes[node_id].bootstrap_servers for node_id in self.running)
        if not servers:
            raise BrokerFailed("no node of the cluster is running")
        try:
            with QuorumAdmin(servers) as admin:
                return admin.describe().leader_id
        except ClientError as error:
            raise BrokerFailed(f"there is no active controller: {error}") from error

    def output(self) -> str:
        """The last lines of every node."""
        parts = []
        for node_id, node in self.nodes.items():
            state = "running" if node.is_running else "not running"
            parts += [f"--- node {node_id} ({state})", *list(node.log_lines)[-OUTPUT_LINES_MAX:]]
        return "\n".join(parts) + "\n"

    # -- what a test does ----------------------------------------------------------------------------------------------------

    def start(self, node_id: int | None = None) -> Self:
        """Start a node, or all that are not running, and return when clients can connect to them."""
        chosen = self.nodes.values() if node_id is None else [self._node(node_id)]
        begun = [node for node in chosen if not node.is_running]
        for node in begun:
            node.begin_start()
        for node in begun:
            node.wait_until_serving()
        return self

    def stop(self, node_id: int | None = None) -> None:
        """Stop a node in order, or all of them, the last one first."""
        chosen = list(self.nodes.values())[::-1] if node_id is None else [self._node(node_id)]
        for node in chosen:
            if node.is_running or node_id is not None:
                node.stop()

    def kill(self, node_id: int) -> None:
        """End a node as a crash would (SIGKILL)."""
        self._node(node_id).kill()
        self._paused.discard(node_id)

    def pause(self, node_id: int) -> None:
        """Stop a node in mid-step (SIGSTOP): its connections stay open, and it answers nobody."""
        self._node(node_id).pause()
        self._paused.add(node_id)

    def resume(self, node_id: int) -> None:
        self._node(node_id).resume()
        self._paused.discard(node_id)

    def restart(self, node_id: int) -> None:
        """Start a node again with its ports and data; one that runs is stopped in order first."""
        self._node(node_id).restart()

    def partition(self, first: int | Iterable[int], second: int | Iterable[int], *, one_way: bool = False) -> None:
        """Cut the links between nodes, or between two groups of nodes. With ``one_way`` only what the first send to the second
        is lost."""
        for source in _ids(first):
            for target in _ids(second):
                self._node(source), self._node(target)
                self._links.cut(source, target)
                if not one_way:
                    self._links.cut(target, source)

    def heal(self) -> None:
        """Mend every link."""
        self._links.heal()

    def close(self) -> None:
        """End all nodes and release their resources. With temporary data they are killed, because nobody reads it again."""
        try:
            for node in reversed(list(self.nodes.values())):
                if node.is_running:
                    node.resume()
                    node.kill() if self._temporary is not None else node.stop()
        finally:
            for node in self.nodes.values():
                if node.is_running:
                    node.kill()
            self._links.close()
            for reservation in self._reservations:
                reservation.close()
            if self._temporary is not None:
                self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            sys.stderr.write(self.output())
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            sys.stderr.write(self.output())
        self.close()

    def _reserve_three(self) -> NodePorts:
        first, second, third = (reserve_port() for _ in range(3))
        self._reservations += first, second, third
        return first.getsockname()[1], second.getsockname()[1], third.getsockname()[1]

    def _node(self, node_id: int) -> ClusterNode:
        node = self.nodes.get(node_id)
        if node is None:
            raise ValueError(f"there is no node {node_id}; the cluster has {self.node_ids}")
        return node


def _ids(nodes: int | Iterable[int]) -> list[int]:
    return [nodes] if isinstance(nodes, int) else list(nodes)
