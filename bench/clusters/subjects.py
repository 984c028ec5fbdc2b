"""Clusters of three that are compared: each node a process of its own on loopback, with what its makers ship as defaults.

Every node is broker and controller, and every topic has three replicas of which two have to be in sync. Old segments are looked
for every ten seconds instead of every five minutes, so that a long run fits on the disk. Tidelog's nodes are started without the
proxies that tests put between them.
"""

import os
import random
import shutil
import signal
import socket
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bench.beside.subjects import KAFKA_FLAGS
from tests.compatibility.apache_kafka import (
    KAFKA_VERSION,
    SMALL_HEAP_FLAGS,
    STARTED_LINE,
    ApacheKafka,
    KafkaFailed,
    run_tool,
    wait_until,
)
from tidelog import __version__
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.server.cluster_layout import NodePorts, format_nodes, make_layout
from tidelog.testing.broker import Broker
from tidelog.testing.cluster import NodeEnvironment

NODES = 3
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "log.retention.check.interval.ms": "10000",
}
ROOT = Path(__file__).parents[2]
COMPILED = ROOT / "build" / "compiled"
METRICS_SECONDS_MAX = 30.0
HOST = "127.0.0.1"
PORTS = (15_000, 30_000)


class ClusterSubject(Protocol):
    """``start_all`` and ``start`` wait until the nodes serve. Nodes that were stopped or killed can be started again."""

    @property
    def label(self) -> str: ...

    @property
    def bootstrap_servers(self) -> str: ...

    def bootstrap_server(self, node_id: int) -> str: ...

    def pid(self, node_id: int) -> int: ...

    def start_all(self) -> None: ...

    def start(self, node_id: int) -> None: ...

    def stop(self, node_id: int) -> None: ...

    def kill(self, node_id: int) -> None: ...

    def lose_topic(self, node_id: int, topic: str) -> None:
        """Remove what a node that is down has of a topic, as a new disk would."""
        ...

    def metrics(self, node_id: int) -> str:
        """The page of metrics of a node; empty where there is none."""
        ...

    def close(self) -> None: ...


def free_port() -> int:
    """A port that no client gets while its node is down: the system gives them ports from 32768 on."""
    while True:
        port = random.randrange(*PORTS)
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                return port


def pause(subject: ClusterSubject, node_id: int) -> None:
    """Stop a node in mid-step: its connections stay open, and it answers nobody."""
    os.kill(subject.pid(node_id), signal.SIGSTOP)


def resume(subject: ClusterSubject, node_id: int) -> None:
    os.kill(subject.pid(node_id), signal.SIGCONT)


class TidelogNode(Broker):
    def __init__(self, environment: NodeEnvironment, first_words: Sequence[str]) -> None:
        self._environment = environment
        self._first_words = first_words
        self._run = None
        self.log_lines = []

    def _command(self, settings: Mapping[str, str]) -> list[str]:
        return [*self._first_words, *super()._command(settings)]


class TidelogCluster:
    label = f"3 x Tidelog {__version__}"
    # What stands before the command of a node.
    first_words: Sequence[str] = ()

    def __init__(self, path: Path, is_quick: bool) -> None:  # noqa: ARG002 - all kinds are made alike
        path.mkdir(parents=True)
        ports: list[NodePorts] = [(free_port(), free_port(), free_port()) for _ in range(NODES)]
        layout = make_layout(RealRandomness(), ports)
        layout = format_nodes(RealDisk(), RealRandomness(), RealClock(), str(path), layout)
        self._metrics = {node_id: f"127.0.0.1:{free_port()}" for node_id in layout.node_ids}
        self._nodes = {
            node_id: TidelogNode(
                NodeEnvironment(layout, node_id, path, {**REPLICATED, "tidelog.metrics.listener": self._metrics[node_id]}),
                self.first_words,
            )
            for node_id in layout.node_ids
        }
        self.bootstrap_servers = layout.bootstrap_servers

    def bootstrap_server(self, node_id: int) -> str:
        return self._nodes[node_id].bootstrap_servers

    def pid(self, node_id: int) -> int:
        return self._nodes[node_id].pid

    def start_all(self) -> None:
        for node in self._nodes.values():
            node.begin_start()
        for node in self._nodes.values():
            node.wait_until_serving()

    def start(self, node_id: int) -> None:
        self._nodes[node_id].start()

    def stop(self, node_id: int) -> None:
        self._nodes[node_id].stop()

    def kill(self, node_id: int) -> None:
        self._nodes[node_id].kill()

    def lose_topic(self, node_id: int, topic: str) -> None:
        _remove(Path(self._nodes[node_id].data_path), topic)

    def metrics(self, node_id: int) -> str:
        with urllib.request.urlopen(f"http://{self._metrics[node_id]}/metrics", timeout=METRICS_SECONDS_MAX) as answer:
            page: bytes = answer.read()
        return page.decode()

    def close(self) -> None:
        for node in self._nodes.values():
            if node.is_running:
                node.kill()


class CompiledCluster(TidelogCluster):
    """Runs the build that ``make compile`` makes."""

    label = f"3 x Tidelog {__version__}, compiled"
    first_words = ("env", f"PYTHONPATH={COMPILED}")


class KafkaClusterNode(ApacheKafka):
    """A node that keeps its ports, and knows the other voters."""

    def __init__(self, root: Path, node_id: int, ports: Mapping[int, tuple[int, int]], heap_flags: tuple[str, ...]) -> None:
        super().__init__(root, node_id=node_id, heap_flags=heap_flags)
        self.port, controller_port = ports[node_id]
        voters = ",".join(f"{voter}@127.0.0.1:{controller}" for voter, (_, controller) in ports.items())
        self._settings = {**self._properties(controller_port), "controller.quorum.voters": voters, **REPLICATED}

    def format(self) -> None:
        self.root.mkdir(parents=True)
        properties = self.root / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        run_tool("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(properties))

    def wait_until_serving(self) -> None:
        def has_started() -> bool:
            if not self.is_running:
                raise KafkaFailed(f"node {self.node_id} ended: {self.output()[-4000:]}")
            return STARTED_LINE in self.output()

        wait_until(has_started, f"node {self.node_id} has started")


class KafkaCluster:
    label = f"3 x Apache Kafka {KAFKA_VERSION}"

    def __init__(self, path: Path, is_quick: bool) -> None:
        ports = {node_id: (free_port(), free_port()) for node_id in range(1, NODES + 1)}
        flags = SMALL_HEAP_FLAGS if is_quick else KAFKA_FLAGS
        self._nodes = {node_id: KafkaClusterNode(path.resolve() / str(node_id), node_id, ports, flags) for node_id in ports}
        self.bootstrap_servers = ",".join(f"127.0.0.1:{client}" for client, _ in ports.values())
        for node in self._nodes.values():
            node.format()

    def bootstrap_server(self, node_id: int) -> str:
        return self._nodes[node_id].bootstrap_servers

    def pid(self, node_id: int) -> int:
        return self._nodes[node_id].pid

    def start_all(self) -> None:
        for node in self._nodes.values():
            node.launch()
        for node in self._nodes.values():
            node.wait_until_serving()

    def start(self, node_id: int) -> None:
        self._nodes[node_id].launch()
        self._nodes[node_id].wait_until_serving()

    def stop(self, node_id: int) -> None:
        self._nodes[node_id].stop()

    def kill(self, node_id: int) -> None:
        self._nodes[node_id].kill()

    def lose_topic(self, node_id: int, topic: str) -> None:
        _remove(self._nodes[node_id].data_directory, topic)

    def metrics(self, node_id: int) -> str:  # noqa: ARG002 - it has none over HTTP
        return ""

    def close(self) -> None:
        for node in self._nodes.values():
            node.kill()


ClusterKind = Callable[[Path, bool], ClusterSubject]


def _remove(data: Path, topic: str) -> None:
    for path in data.glob(f"{topic}-*"):
        shutil.rmtree(path)
