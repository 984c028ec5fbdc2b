"""``tidelog storage``: what a directory is formatted as, and what is refused without a change."""

import json
import re
from pathlib import Path

import pytest

from tidelog.cli.main import main
from tidelog.log.durability.checkpoints import format_id
from tidelog.ports.real_disk import RealDisk
from tidelog.raft.snapshot_file import check_snapshot
from tidelog.raft.voters import KRaftVersion, VoterEndpoint, VoterSet, VotersRecord
from tidelog.testing import Broker

Output = pytest.CaptureFixture[str]
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


def run(capsys: Output, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["storage", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_random_id_is_one_that_kafka_takes(capsys: Output) -> None:
    found = {run(capsys, "random-uuid")[1] for _ in range(50)}
    assert len(found) == 50
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}\n", text) for text in found)


def test_a_directory_is_formatted_and_shown(tmp_path: Path, capsys: Output) -> None:
    path = str(tmp_path / "data")
    assert run(capsys, "info", "--data", path)[0] == 1
    code, out, _ = run(capsys, "format", "--cluster-id", CLUSTER, "--node-id", "7", "--data", path)
    assert (code, out) == (0, f"{path} is formatted for node 7 of cluster {CLUSTER}.\n")
    lines = (tmp_path / "data" / "meta.properties").read_text().splitlines()
    assert sorted(line.partition("=")[0] for line in lines if line[0] != "#") == [
        "cluster.id",
        "directory.id",
        "node.id",
        "version",
    ]
    assert "version=1" in lines
    document = json.loads(run(capsys, "info", "--data", path, "--json")[1])
    assert f"directory.id={document['directory_id']}" in lines
    assert (document["cluster_id"], document["node_id"], document["version"]) == (CLUSTER, 7, 1)
    assert f"cluster.id    {CLUSTER}\n" in run(capsys, "info", "--data", path)[1]


def test_the_settings_name_the_directory_and_the_node(tmp_path: Path, capsys: Output) -> None:
    settings = tmp_path / "node.toml"
    settings.write_text(f'"node.id" = 3\n"log.dirs" = "{tmp_path}/here"\n')
    assert run(capsys, "format", "--cluster-id", CLUSTER, "--config", str(settings))[0] == 0
    assert json.loads(run(capsys, "info", "--config", str(settings), "--json")[1])["node_id"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--cluster-id", CLUSTER, "--node-id", "1"),
            "is formatted already, for node 1 of cluster MkU3OEVBNTcwNTJENDM2Qg; to keep",
        ),
        (("--cluster-id", "another", "--node-id", "1", "--ignore-formatted"), f"belongs to cluster {CLUSTER}, not to another\n"),
        (("--cluster-id", CLUSTER, "--node-id", "2", "--ignore-formatted"), "belongs to node 1, not to node 2\n"),
        (("--cluster-id", "no id", "--node-id", "1"), "'no id' is not a cluster id; to make one: tidelog storage random-uuid\n"),
    ],
)
def test_what_is_refused_changes_nothing(words: tuple[str, ...], message: str, tmp_path: Path, capsys: Output) -> None:
    path = str(tmp_path / "data")
    assert run(capsys, "format", "--cluster-id", CLUSTER, "--node-id", "1", "--data", path)[0] == 0
    before = (tmp_path / "data" / "meta.properties").read_bytes()
    code, out, err = run(capsys, "format", *words, "--data", path)
    assert (code, out) == (1, "")
    assert err.startswith("tidelog: ")
    assert message in err
    assert err.count("\n") == 1
    assert (tmp_path / "data" / "meta.properties").read_bytes() == before


def test_a_formatted_directory_is_kept_where_that_is_wanted(tmp_path: Path, capsys: Output) -> None:
    words = ("format", "--cluster-id", CLUSTER, "--node-id", "1", "--data", str(tmp_path / "data"), "--ignore-formatted")
    assert run(capsys, *words)[1].endswith(f"is formatted for node 1 of cluster {CLUSTER}.\n")
    before = (tmp_path / "data" / "meta.properties").read_bytes()
    assert run(capsys, *words)[1].endswith(f"is formatted already for node 1 of cluster {CLUSTER}.\n")
    assert (tmp_path / "data" / "meta.properties").read_bytes() == before


def test_partitions_without_an_owner_are_not_given_away(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "data" / "orders-0").mkdir(parents=True)
    (tmp_path / "data" / "orders-0" / "00000000000000000000.log").touch()
    _, _, err = run(capsys, "format", "--cluster-id", CLUSTER, "--data", str(tmp_path / "data"))
    assert "holds partitions (orders-0) but no meta.properties" in err
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["orders-0"]


def test_a_broker_starts_on_the_formatted_directory_and_keeps_it_to_itself(tmp_path: Path, capsys: Output) -> None:
    path = str(tmp_path / "data")
    assert run(capsys, "format", "--cluster-id", CLUSTER, "--node-id", "4", "--data", path)[0] == 0
    with Broker(persist=path, configs={"node.id": 4}) as broker:
        assert broker.events[0]["cluster_id"] == CLUSTER
        _, _, err = run(capsys, "format", "--cluster-id", CLUSTER, "--node-id", "4", "--data", path, "--ignore-formatted")
        assert "is used by another process" in err


CONTROLLER = """
"node.id" = 2
"listeners" = "PLAINTEXT://127.0.0.1:0,OTHERS://127.0.0.1:0,QUORUM://127.0.0.1:9293"
"listener.security.protocol.map" = "OTHERS:PLAINTEXT"
"inter.broker.listener.name" = "OTHERS"
"controller.listener.names" = "QUORUM"
"controller.quorum.bootstrap.servers" = "127.0.0.1:9293"
"""
DIRECTORIES = ("AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg")


@pytest.fixture
def controller(tmp_path: Path) -> str:
    path = tmp_path / "node.toml"
    path.write_text(CONTROLLER + f'"log.dirs" = "{tmp_path}/data"\n')
    return str(path)


def first_voters(tmp_path: Path) -> VoterSet:
    snapshot = tmp_path / "data" / "__cluster_metadata-0" / "00000000000000000000-0000000000.checkpoint"
    steps = check_snapshot(RealDisk().open(str(snapshot), "read"))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            version, voters = end.value.control_records
            assert version == KRaftVersion(1)
            assert isinstance(voters, VotersRecord)
            return voters.voter_set


def test_a_quorum_of_one_that_others_join(tmp_path: Path, controller: str, capsys: Output) -> None:
    assert run(capsys, "format", "--cluster-id", CLUSTER, "--config", controller, "--standalone")[0] == 0
    document = json.loads(run(capsys, "info", "--config", controller, "--json")[1])
    (voter,) = first_voters(tmp_path).voters
    assert (voter.node_id, format_id(voter.directory_id)) == (2, document["directory_id"])
    assert voter.endpoints == (VoterEndpoint("QUORUM", "127.0.0.1", 9293),)


def test_a_quorum_of_several(tmp_path: Path, controller: str, capsys: Output) -> None:
    controllers = f"1@10.0.0.1:9093:{DIRECTORIES[0]},2@127.0.0.1:9293:{DIRECTORIES[1]}"
    assert run(capsys, "format", "--cluster-id", CLUSTER, "--config", controller, "--initial-controllers", controllers)[0] == 0
    document = json.loads(run(capsys, "info", "--config", controller, "--json")[1])
    assert document["directory_id"] == DIRECTORIES[1]
    assert [(voter.node_id, *voter.endpoints) for voter in first_voters(tmp_path).voters] == [
        (1, VoterEndpoint("QUORUM", "10.0.0.1", 9093)),
        (2, VoterEndpoint("QUORUM", "127.0.0.1", 9293)),
    ]


def test_a_node_that_joins_later(tmp_path: Path, controller: str, capsys: Output) -> None:
    assert run(capsys, "format", "--cluster-id", CLUSTER, "--config", controller, "--no-initial-controllers")[0] == 0
    assert not (tmp_path / "data" / "__cluster_metadata-0").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--standalone", "--no-initial-controllers"), "give only one of --standalone, --initial-controllers and"),
        (("--initial-controllers", "2@a:1"), "--initial-controllers 2@a:1: expected ID@HOST:PORT:DIRECTORY"),
        (("--initial-controllers", f"2@a:{DIRECTORIES[0]}"), "the port is missing"),
        (("--initial-controllers", f"1@a:1:{DIRECTORIES[0]}"), "this node, 2, is missing from the list"),
        (("--initial-controllers", ",".join([f"2@a:1:{DIRECTORIES[0]}"] * 2)), "node 2 is listed twice"),
    ],
)
def test_first_voters_that_make_no_sense(
    words: tuple[str, ...], message: str, tmp_path: Path, controller: str, capsys: Output
) -> None:
    code, _, err = run(capsys, "format", "--cluster-id", CLUSTER, "--config", controller, *words)
    assert code == 1
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_controller_without_a_listener_cannot_be_the_first(tmp_path: Path, capsys: Output) -> None:
    words = ("format", "--cluster-id", CLUSTER, "--data", str(tmp_path / "data"), "--standalone")
    assert "name its listener in controller.listener.names" in run(capsys, *words)[2]
    assert not (tmp_path / "data").exists()
