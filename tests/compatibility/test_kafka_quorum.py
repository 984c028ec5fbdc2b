"""A stock Apache Kafka and Tidelog in one metadata quorum: Kafka's controller follows ours to lag 0, from the log and from a
snapshot, and ours follows Kafka's. Kafka's tools read our snapshots and describe our quorum."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compatibility.apache_kafka import CLUSTER_ID, KafkaUnavailable, kafka_classpath, run_tool, wait_until
from tests.compatibility.kafka_client import admin_client, create_topic, read_partition
from tests.compatibility.kafka_nodes import (
    STORAGE_TOOL,
    KafkaNode,
    OurNode,
    controller_settings,
    free_port,
    our_observer,
    our_voter,
)
from tests.faults.nodes import Node, writing
from tidelog.log.durability.checkpoints import format_id
from tidelog.log.recovery.formatting import read_format
from tidelog.ports.real_disk import RealDisk

pytestmark = pytest.mark.apache_kafka

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
SHELL = "org.apache.kafka.shell.MetadataShell"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
METADATA_DIRECTORY = "__cluster_metadata-0"
# A snapshot after every few decisions, and nothing is kept that it covers.
EAGER_SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "300", "metadata.max.retention.bytes": "1"}
TOPICS = [f"topic-{number}" for number in range(6)]


@pytest.fixture(autouse=True)
def kafka() -> None:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))


def replication(*bootstrap: str) -> dict[int, tuple[str, int]]:
    """The state and the lag of each node, as kafka-metadata-quorum prints them."""
    rows = run_tool(QUORUM, *bootstrap, "describe", "--replication").splitlines()[1:]
    fields = [row.split() for row in rows if row.strip()]
    return {int(row[0]): (row[-1], int(row[3])) for row in fields}


def has_snapshot(directory: Path) -> bool:
    """Whether the log begins with a snapshot, so that a node which begins now has to fetch it."""
    ends = sorted(int(path.name[:20]) for path in directory.glob("*.checkpoint"))
    return bool(ends) and ends[0] > 0


def kafka_observer(root: Path, ours: OurNode) -> KafkaNode:
    settings = controller_settings(2, free_port()) | {"controller.quorum.bootstrap.servers": ours.second_address}
    return KafkaNode(root, ours.cluster_id, settings, "--no-initial-controllers")


@pytest.mark.parametrize("configs", [{}, EAGER_SNAPSHOTS], ids=["log", "snapshot"])
def test_kafka_follows_our_quorum(tmp_path: Path, configs: dict[str, str]) -> None:
    with our_voter(tmp_path / "ours", configs) as ours:
        admin = admin_client(ours.bootstrap_servers)
        for topic in TOPICS:
            create_topic(admin, topic)
        directory = tmp_path / "ours" / METADATA_DIRECTORY
        wait_until(lambda: has_snapshot(directory) == bool(configs), "a snapshot that deletes the log below it")
        with kafka_observer(tmp_path / "theirs", ours) as theirs:
            by_broker = ("--bootstrap-server", ours.bootstrap_servers)
            wait_until(lambda: replication(*by_broker).get(2) == ("Observer", 0), theirs.output()[-2000:])
            assert replication("--bootstrap-controller", ours.second_address)[1] == ("Leader", 0)
            create_topic(admin, "one-more")
            wait_until(lambda: "Replayed TopicRecord for topic one-more" in theirs.output(), "Kafka replays what we write")
            theirs.check_running()
            output = theirs.output()
            assert [topic for topic in TOPICS if f"Replayed TopicRecord for topic {topic} " not in output] == []
            assert ("Successfully loaded snapshot" in output) == bool(configs)
            check_identity(ours)
        check_storage(ours, tmp_path / "storage.properties")
    check_dump(directory)
    check_shell(directory)


def check_identity(ours: OurNode) -> None:
    """Kafka's tools name the cluster, its brokers and its features, by broker and by controller."""
    for bootstrap in (("--bootstrap-server", ours.bootstrap_servers), ("--bootstrap-controller", ours.second_address)):
        assert run_tool(CLUSTER, "cluster-id", *bootstrap).strip() == f"Cluster ID: {ours.cluster_id}"
        assert "metadata.version" in run_tool(FEATURES, *bootstrap, "describe")
    listed = run_tool(CLUSTER, "list-endpoints", "--bootstrap-server", ours.bootstrap_servers)
    assert ours.bootstrap_servers.rpartition(":")[2] in listed


def check_storage(ours: OurNode, path: Path) -> None:
    """kafka-storage finds a directory that was formatted, and nothing wrong with it."""
    settings = {"process.roles": "broker,controller", "node.id": "1", "controller.quorum.bootstrap.servers": ours.second_address}
    path.write_text("".join(f"{name}={value}\n" for name, value in (ours.settings | settings).items()))
    output = run_tool(STORAGE_TOOL, "info", "-c", str(path))
    assert f"cluster.id={ours.cluster_id}" in output
    assert "Found problem" not in output


def check_shell(directory: Path) -> None:
    """kafka-metadata-shell shows the image that a snapshot, or the log from its beginning, leads to."""
    path = max(directory.glob("*.checkpoint"), default=directory / f"{0:020}.log")

    def shows_topics() -> bool:
        # It may look before it has read the file.
        return {TOPICS[0], TOPICS[1]} <= set(run_tool(SHELL, "--snapshot", str(path), "ls", "/image/topics/byName").split())

    wait_until(shows_topics, f"the shell shows {path}")


def check_dump(directory: Path) -> None:
    """Kafka's dump tool decodes every record of the log and of the snapshots, and finds nothing to complain about."""
    for path in [*directory.glob("*.log"), *directory.glob("*.checkpoint")]:
        output = run_tool(DUMP, "--cluster-metadata-decoder", "--files", str(path))
        assert "isvalid: false" not in output
        assert "Failed to decode" not in output
        payloads = list(payloads_in(output))
        assert payloads or path.suffix == ".log", output
        if path.suffix == ".checkpoint":
            assert re.search(r"SnapshotHeader \{.*\}", output), output
            assert re.search(r"SnapshotFooter \{.*\}", output), output
            assert payloads[0]["data"]["name"] == "metadata.version"


def payloads_in(output: str) -> Iterator[dict[str, dict[str, object]]]:
    return (json.loads(line.split("payload: ", 1)[1]) for line in output.splitlines() if "payload: {" in line)


@pytest.mark.parametrize("configs", [{}, EAGER_SNAPSHOTS], ids=["log", "snapshot"])
def test_we_follow_kafkas_quorum(tmp_path: Path, configs: dict[str, str]) -> None:
    """The node learns the id of the cluster from Kafka, too."""
    address = f"127.0.0.1:{free_port()}"
    settings = controller_settings(1, int(address.rpartition(":")[2])) | {"controller.quorum.bootstrap.servers": address}
    with KafkaNode(tmp_path / "theirs", CLUSTER_ID, settings | configs, "--standalone") as theirs:
        wait_until(lambda: "Kafka Server started" in theirs.output(), "Kafka's controller starts")
        wait_until(lambda: has_snapshot(theirs.metadata_directory) == bool(configs), "a snapshot that deletes the log below it")
        ours = our_observer(tmp_path / "ours", {"node.id": 5, "controller.quorum.bootstrap.servers": address})
        ours.begin_start()
        try:
            by_controller = ("--bootstrap-controller", address)
            wait_until(lambda: replication(*by_controller).get(5, ("", -1))[0] == "Observer", f"we follow: {ours.log_lines}")
            wait_until(lambda: replication(*by_controller)[5][1] == 0, f"we catch up: {ours.log_lines}")
            theirs.check_running()
            assert ours.cluster_id == CLUSTER_ID
            assert ours.is_running, ours.log_lines
            names = [event["event"] for event in ours.events]
            assert ("metadata_snapshot_installed" in names) == bool(configs), ours.log_lines
            assert "quorum_storage_failed" not in names, ours.log_lines
        finally:
            if ours.is_running:
                ours.kill()
            ours.close()


def tool_settings(node: Node, path: Path) -> str:
    """The settings of a node as a file for Kafka's tool, which looks into its directory, too."""
    path.write_text("".join(f"{name}={value}\n" for name, value in node.node.settings.items()))
    return str(path)


def states(*bootstrap: str) -> dict[int, str]:
    return {node_id: state for node_id, (state, _) in replication(*bootstrap).items()}


def test_kafkas_tool_adds_and_removes_voters_under_load(tmp_path: Path) -> None:
    """Of a broker that was alone, through brokers and through controllers, while a client writes."""
    with ExitStack() as ends:
        nodes = [Node(node_id, tmp_path / str(node_id), {"process.roles": "broker,controller"}) for node_id in (1, 2, 3)]
        for node in nodes:
            ends.callback(node.close)
        first, second, third = nodes
        first.start()
        by_broker = ("--bootstrap-server", first.bootstrap_servers)
        create_topic(admin_client(first.bootstrap_servers), "orders")
        with writing(first.bootstrap_servers, "orders") as acknowledged:
            wait_until(lambda: len(acknowledged) > 10, "the load runs")
            assert "kraft.version was upgraded to 1" in run_tool(FEATURES, *by_broker, "upgrade", "--feature", "kraft.version=1")
            described = run_tool(FEATURES, *by_broker, "describe")
            assert re.search(
                r"kraft.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 1\s+FinalizedVersionLevel: 1", described
            )
            for node in nodes:
                node.node.configs["controller.quorum.bootstrap.servers"] = first.controller_address
            first.restart()
            for node in (second, third):
                node.start()
            files = {node: tool_settings(node, tmp_path / f"{node.node.node_id}.properties") for node in nodes}
            by_second = ("--bootstrap-server", second.bootstrap_servers)
            by_controller = ("--bootstrap-controller", first.controller_address)
            # Through a broker that does not decide it, and through the leader's own listener.
            run_tool(QUORUM, *by_second, "--command-config", files[second], "add-controller")
            wait_until(lambda: states(*by_broker) == {1: "Leader", 2: "Follower", 3: "Observer"}, "the second votes")
            run_tool(QUORUM, *by_controller, "--command-config", files[third], "add-controller")
            wait_until(lambda: states(*by_second) == {1: "Leader", 2: "Follower", 3: "Follower"}, "all three vote")
            found = read_format(RealDisk(), second.data_path)
            assert found is not None
            assert found.directory_id is not None
            directory_id = format_id(found.directory_id)
            remove = ("remove-controller", "--controller-id", "2", "--controller-directory-id", directory_id)
            run_tool(QUORUM, *by_second, *remove)
            wait_until(lambda: states(*by_broker) == {1: "Leader", 2: "Observer", 3: "Follower"}, "the second votes no more")
            count = len(acknowledged)
            wait_until(lambda: len(acknowledged) > count, "the load goes on")
        records = read_partition(first.bootstrap_servers, "orders", 0, committed_only=False).records
        found_values = {record.offset: record.value for record in records}
        assert {offset: found_values.get(offset) for offset in acknowledged} == acknowledged
