"""Two of three voters lose their disks for good: the one that is left becomes the only voter, and the others join it again."""

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.compatibility.kafka_client import read_partition
from tests.faults.decisions import CREATE_VERSION, ask
from tests.faults.load import wait_until
from tidelog import Admin
from tidelog.broker.quorum_recovery import FILE_NAME, METADATA_DIRECTORY, read_log_end
from tidelog.cli.main import main
from tidelog.client.quorum import QuorumAdmin
from tidelog.ports.real_disk import RealDisk
from tidelog.testing import Cluster
from tidelog.testing.environment import reserve_port
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

TOPIC = "orders"
VALUES = [b"%d" % number for number in range(50)]


def write(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    errors: list[object] = []
    for value in VALUES:
        producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert set(errors) == {None}


def recover(data: Path, *options: str) -> int:
    return main(["storage", "recover-quorum", "--data", str(data), *options])


def test_one_directory_of_three_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = tmp_path / "broker-2"
    request = left / METADATA_DIRECTORY / FILE_NAME
    with Cluster(3, persist=tmp_path) as cluster:
        wanted = {"name": TOPIC, "num_partitions": 1, "replication_factor": 3}
        answer = ask(cluster.nodes[2].port, ApiKey.CREATE_TOPICS, CREATE_VERSION, {"topics": [wanted], "timeout_ms": 60_000})
        assert answer.topics[0].error_code == ErrorCode.NONE
        write(cluster.bootstrap_servers)
        assert recover(left, "--accept-data-loss") == 1
        assert "is used by another process: stop it" in capsys.readouterr().err
        for node_id in cluster.node_ids:
            cluster.kill(node_id)
    for node_id in (1, 3):
        shutil.rmtree(tmp_path / f"broker-{node_id}")
    assert recover(left) == 1
    assert "is gone: topics, partitions, settings" in (said := capsys.readouterr().err)
    assert said.count("\n") == 1
    assert not request.exists()
    assert recover(tmp_path / "broker-1", "--accept-data-loss") == 1
    assert "holds no metadata of a cluster" in capsys.readouterr().err
    assert recover(left, "--accept-data-loss") == 0
    assert "is the only voter from its next start on" in capsys.readouterr().out
    cluster = Cluster(persist=tmp_path)
    with ExitStack() as ends:
        ends.callback(cluster.close)
        survivor = cluster.start(2).nodes[2]
        assert [event["event"] for event in survivor.events].count("quorum_recovered") == 1
        assert not request.exists()
        # It crashed, so the controller cannot know that its replica has everything: it leads when the operator says so, and does
        # so before there are empty replicas that could lead as well.
        with Admin(survivor.bootstrap_servers) as admin:
            wait_until(lambda: list(admin.describe_cluster().brokers) == [2], "the others are known to be down")
        unclean = ["cluster", "elect", f"{TOPIC}-0", "--unclean", "--bootstrap", survivor.bootstrap_servers]
        assert main(unclean) == 1
        assert "Broker 1, 3 may have all that was acknowledged" in capsys.readouterr().err
        assert main([*unclean, "--accept-data-loss"]) == 0
        with Admin(survivor.bootstrap_servers) as admin:
            wait_until(lambda: admin.describe_cluster().topics[TOPIC][0].leader == 2, "the survivor leads")
        cluster.start()
        with QuorumAdmin(cluster.bootstrap_servers) as quorum:
            wait_until(lambda: [voter.node_id for voter in quorum.describe().voters] == [1, 2, 3], "the others vote again")
        wait_until(lambda: main(["cluster", "status", "--bootstrap", cluster.bootstrap_servers]) == 0, "every replica is back")
        found = read_partition(cluster.bootstrap_servers, TOPIC, 0, committed_only=False)
        assert [record.value for record in found.records] == VALUES
        cluster.restart(2)
        assert [event["event"] for event in survivor.events].count("quorum_recovered") == 1


def test_the_addresses_of_all_voters_change(tmp_path: Path) -> None:
    """Voters look for each other where the log says. So one begins again at its new address, and the others join it."""
    with Cluster(3, persist=tmp_path) as cluster:
        wanted = {"name": TOPIC, "num_partitions": 1, "replication_factor": 3}
        answer = ask(cluster.nodes[1].port, ApiKey.CREATE_TOPICS, CREATE_VERSION, {"topics": [wanted], "timeout_ms": 60_000})
        assert answer.topics[0].error_code == ErrorCode.NONE
        write(cluster.bootstrap_servers)
    layout = json.loads((tmp_path / "cluster.json").read_text())
    with ExitStack() as ports:
        for node in layout["nodes"]:
            node["controller"] = ports.enter_context(reserve_port()).getsockname()[1]
    (tmp_path / "cluster.json").write_text(json.dumps(layout))
    held = {node_id: read_log_end(RealDisk(), str(tmp_path / f"broker-{node_id}")) for node_id in (1, 2, 3)}
    first = max(held, key=lambda node_id: held[node_id] or (0, 0))
    assert recover(tmp_path / f"broker-{first}", "--accept-data-loss") == 0
    for other in {1, 2, 3} - {first}:
        shutil.rmtree(tmp_path / f"broker-{other}" / METADATA_DIRECTORY)
    with Cluster(persist=tmp_path) as cluster:
        with QuorumAdmin(cluster.bootstrap_servers) as quorum:
            wait_until(lambda: [voter.node_id for voter in quorum.describe().voters] == [1, 2, 3], "all vote again")
            listeners = quorum.describe().listeners
        assert {node["node_id"]: node["controller"] for node in layout["nodes"]} == {
            node_id: listener.port for node_id, (listener,) in listeners.items()
        }
        wait_until(lambda: main(["cluster", "status", "--bootstrap", cluster.bootstrap_servers]) == 0, "every replica is back")
        found = read_partition(cluster.bootstrap_servers, TOPIC, 0, committed_only=False)
        assert [record.value for record in found.records] == VALUES
