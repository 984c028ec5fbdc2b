"""The layout of a cluster on one machine: ports, voters, settings, directories, and its file."""

from pathlib import Path

import pytest

from tidelog.config.broker import BROKER
from tidelog.config.definition import parse
from tidelog.config.file import UnreadableFile
from tidelog.log.errors import DirectoryUnusable
from tidelog.log.recovery.formatting import read_format
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.raft.snapshot_file import BOOTSTRAP_SNAPSHOT_ID, check_snapshot, snapshot_file_name
from tidelog.raft.voters import KRaftVersion, VotersRecord
from tidelog.server.cluster_layout import (
    METADATA_DIRECTORY,
    ClusterLayout,
    data_path_of,
    format_nodes,
    grow_layout,
    make_layout,
    parse_layout,
    ports_from,
    read_layout,
)

FIRST_SNAPSHOT = snapshot_file_name(BOOTSTRAP_SNAPSHOT_ID)


def layout_of(broker_count: int) -> ClusterLayout:
    return make_layout(RealRandomness(), ports_from(9092, broker_count))


def formatted(path: Path, layout: ClusterLayout) -> ClusterLayout:
    return format_nodes(RealDisk(), RealRandomness(), RealClock(), str(path), layout)


def test_clients_have_the_first_ports() -> None:
    assert ports_from(9092, 2) == ((9092, 9192, 9292), (9093, 9193, 9293))
    assert layout_of(3).bootstrap_servers == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"


@pytest.mark.parametrize("base_port", [0, -1, 65_400, 70_000])
def test_ports_that_do_not_exist(base_port: int) -> None:
    with pytest.raises(ValueError, match="expected a port from 1 to"):
        ports_from(base_port, 3)


@pytest.mark.parametrize(("broker_count", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (9, 5)])
def test_an_odd_number_votes(broker_count: int, voters: int) -> None:
    layout = layout_of(broker_count)
    assert layout.first_voters.ids == tuple(range(1, voters + 1))


@pytest.mark.parametrize(("broker_count", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 2), (3, 3, 2), (5, 3, 2)])
def test_topics_are_replicated_as_far_as_there_are_brokers(
    tmp_path: Path, broker_count: int, replicas: int, in_sync: int
) -> None:
    layout = layout_of(broker_count)
    values = parse(BROKER, {**layout.replication_settings({}), **layout.settings(1, str(tmp_path))})
    assert (values["default.replication.factor"], values["min.insync.replicas"]) == (replicas, in_sync)
    assert (values["offsets.topic.replication.factor"], values["transaction.state.log.min.isr"]) == (replicas, in_sync)
    chosen = layout.replication_settings({"transaction.state.log.replication.factor": "1", "min.insync.replicas": "1"})
    values = parse(BROKER, {**chosen, **layout.settings(1, str(tmp_path))})
    assert (values["transaction.state.log.replication.factor"], values["transaction.state.log.min.isr"]) == (1, 1)
    assert (values["default.replication.factor"], values["min.insync.replicas"]) == (replicas, 1)


def test_every_node_gets_settings_that_a_broker_takes(tmp_path: Path) -> None:
    layout = layout_of(4)
    for node_id in layout.node_ids:
        values = parse(BROKER, layout.settings(node_id, str(tmp_path)))
        assert values["process.roles"] == (("broker", "controller") if node_id < 4 else ("broker",))


def test_the_file_round_trips() -> None:
    layout = layout_of(3)
    assert parse_layout(layout.to_json(), "cluster.json") == layout


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2}',
        '{"version": 1, "cluster_id": "a", "nodes": []}',
        '{"version": 1, "nodes": [{"node_id": 1}]}',
        layout_of(1).to_json().replace("9092", "-1"),
        layout_of(1).to_json().replace('"directory_id": "', '"directory_id": "!'),
    ],
    ids=range(8),
)
def test_a_file_that_is_something_else(text: str) -> None:
    with pytest.raises(UnreadableFile, match=r"cluster\.json does not hold the layout of a cluster"):
        parse_layout(text, "cluster.json")


def test_the_directories_begin_with_the_first_voters(tmp_path: Path) -> None:
    assert read_layout(str(tmp_path)) is None
    layout = formatted(tmp_path, layout_of(4))
    assert read_layout(str(tmp_path)) == layout
    for node_id in layout.node_ids:
        found = read_format(RealDisk(), data_path_of(str(tmp_path), node_id))
        assert found is not None
        assert (found.cluster_id, found.node_id) == (layout.cluster_id, node_id)
        assert (tmp_path / f"broker-{node_id}" / METADATA_DIRECTORY / FIRST_SNAPSHOT).exists() == (node_id < 4)
        voter = layout.first_voters.by_id(node_id)
        assert voter is None or voter.directory_id == found.directory_id
    records = control_records_of(tmp_path / "broker-2" / METADATA_DIRECTORY / FIRST_SNAPSHOT)
    assert records == (KRaftVersion(1), VotersRecord(layout.first_voters))


def control_records_of(snapshot: Path) -> tuple[object, ...]:
    steps = check_snapshot(RealDisk().open(str(snapshot), "read"))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return tuple(end.value.control_records)


def test_formatting_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    layout = layout_of(3)
    formatted(tmp_path, layout)
    # As if the process had died after the first directory.
    (tmp_path / "cluster.json").write_text(layout.to_json())
    for node_id in (2, 3):
        (tmp_path / f"broker-{node_id}" / "meta.properties").unlink()
    assert read_layout(str(tmp_path)) == layout
    assert formatted(tmp_path, layout).is_formatted
    for voter in layout.first_voters.voters:
        found = read_format(RealDisk(), data_path_of(str(tmp_path), voter.node_id))
        assert found is not None
        assert found.directory_id == voter.directory_id


def test_a_directory_that_was_lost_is_no_longer_a_voters(tmp_path: Path) -> None:
    layout = formatted(tmp_path, layout_of(3))
    lost = tmp_path / "broker-2"
    lost.rename(tmp_path / "elsewhere")
    formatted(tmp_path, layout)
    found = read_format(RealDisk(), str(lost))
    voter = layout.first_voters.by_id(2)
    assert found is not None
    assert voter is not None
    assert found.directory_id != voter.directory_id
    assert not (lost / METADATA_DIRECTORY).exists()


def test_a_directory_of_another_cluster(tmp_path: Path) -> None:
    formatted(tmp_path, layout_of(1))
    (tmp_path / "cluster.json").unlink()
    with pytest.raises(DirectoryUnusable, match="belongs to cluster"):
        formatted(tmp_path, layout_of(1))


def test_a_cluster_grows_by_nodes_that_join_the_voters(tmp_path: Path) -> None:
    before = formatted(tmp_path, layout_of(1))
    grown = grow_layout(RealDisk(), RealRandomness(), str(tmp_path), before, ports_from(9092, 3)[1:])
    assert grown.node_ids == (1, 2, 3)
    settings = grown.settings(3, "here")
    assert (settings["process.roles"], settings["controller.quorum.auto.join.enable"]) == ("broker,controller", "true")
    assert read_layout(str(tmp_path)) == grown
    # Earlier releases kept how many voters there were.
    (tmp_path / "cluster.json").write_text(grown.to_json().replace('"is_formatted"', '"voter_count": 1, "is_formatted"'))
    assert read_layout(str(tmp_path)) == grown
    assert formatted(tmp_path, grown) == grown
    assert not (Path(data_path_of(str(tmp_path), 2)) / METADATA_DIRECTORY / FIRST_SNAPSHOT).exists()
