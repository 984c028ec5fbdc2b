"""A directory of an earlier release, whose broker was a cluster by itself, grows to three voters and three brokers while clients
write to it, and nothing is lost."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compatibility.kafka_client import read_partition
from tests.compatibility.kafka_fixtures import read_expected, unpack
from tests.compatibility.tidelog_fixtures import BROKER_ID, CLEAN, NEVER_EXPIRES, expected_state, read_state
from tests.faults.decisions import CREATE_VERSION, NoAnswer, ask
from tests.faults.load import wait_until
from tests.faults.nodes import Node, writing
from tidelog.cli.main import main
from tidelog.client.quorum import QuorumAdmin
from tidelog.client.wire.errors import ClientError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

TOPIC = "orders"


def voters_of(servers: str) -> list[int]:
    with QuorumAdmin(servers) as quorum:
        try:
            return [voter.node_id for voter in quorum.describe().voters]
        except ClientError:
            return []


def create(node: Node, topic: str) -> None:
    """Ask this node, whoever decides it, until the topic is there."""
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1}

    def is_there() -> bool:
        try:
            answer = ask(node.port, ApiKey.CREATE_TOPICS, CREATE_VERSION, {"topics": [wanted], "timeout_ms": 60_000})
        except NoAnswer:
            return False
        return answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

    wait_until(is_there, f"{topic} is created")


def test_an_earlier_directory_grows_to_three_voters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = read_expected(CLEAN)
    with ExitStack() as ends:
        first = Node(1, unpack(CLEAN, tmp_path / "1"), NEVER_EXPIRES)
        nodes = [first, *(Node(node_id, tmp_path / str(node_id), NEVER_EXPIRES) for node_id in (2, 3))]
        for node in nodes:
            ends.callback(node.close)
        first.start()
        servers = first.bootstrap_servers
        create(first, TOPIC)
        with writing(servers, TOPIC) as acknowledged:
            wait_until(lambda: len(acknowledged) > 100, "the load runs")
            assert main(["quorum", "upgrade", "--bootstrap", servers]) == 0
            for node in nodes:
                node.node.configs["controller.quorum.bootstrap.servers"] = first.controller_address
                node.node.configs["controller.quorum.auto.join.enable"] = "true"
            first.restart()
            for node in nodes[1:]:
                node.begin_start()
            for node in nodes[1:]:
                node.wait_until_serving()
            wait_until(lambda: voters_of(servers) == [1, 2, 3], "all three vote")
            first.kill()
            create(nodes[1], "decided-without-the-first")
            first.restart()
            count = len(acknowledged)
            wait_until(lambda: len(acknowledged) > count + 100, "the load goes on")
        found = {record.offset: record.value for record in read_partition(servers, TOPIC, 0, committed_only=False).records}
        assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
        for partition in expected.partitions:
            read = read_partition(servers, partition.topic, partition.partition, committed_only=False)
            assert read.records[: len(partition.records)] == partition.records
        state, before = read_state(servers, []), expected_state(CLEAN)
        # What topics inherit from this broker's own settings is another matter on another broker.
        assert {**state, "configs": state["configs"][BROKER_ID]} == {**before, "configs": before["configs"][BROKER_ID]}
        capsys.readouterr()
        wait_until(lambda: main(["cluster", "status", "--bootstrap", servers]) == 0, "everything is there")
        assert "3 voters of the metadata: 1, 2, 3" in capsys.readouterr().out
