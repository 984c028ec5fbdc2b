"""A cluster for tests: its nodes start together, and are gone afterwards."""

import os
from pathlib import Path

import pytest

from tests.faults.decisions import DecisionLoad, check
from tidelog.testing import BrokerFailed, Cluster


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_node_is_a_cluster_too(tmp_path: Path) -> None:
    with Cluster(1, persist=tmp_path / "here") as cluster:
        assert cluster.controller() == 1
        assert cluster.running == [1]
        pid, cluster_id = cluster.nodes[1].pid, cluster.cluster_id
        cluster.kill(1)
        assert cluster.running == []
        with pytest.raises(BrokerFailed, match="no node of the cluster is running"):
            cluster.controller()
        cluster.restart(1)
        assert cluster.controller() == 1
        assert cluster.nodes[1].pid != pid
    assert not is_alive(cluster.nodes[1].pid)
    with Cluster(1, persist=tmp_path / "here") as again:
        assert again.cluster_id == cluster_id


def others(cluster: Cluster, node_id: int) -> list[int]:
    return [each for each in cluster.node_ids if each != node_id]


def test_three_nodes_decide_without_one(tidelog_cluster: Cluster) -> None:
    """The active controller is killed, paused, and cut off, each time under a load of decisions."""
    cluster = tidelog_cluster
    load = DecisionLoad(cluster, 1)
    load.start()
    try:
        load.wait_for_more(2, 60)
        first = cluster.controller()
        cluster.kill(first)
        load.wait_for_more(2, 60)
        second = cluster.controller()
        assert second != first
        cluster.restart(first)

        cluster.pause(second)
        load.wait_for_more(2, 60)
        assert cluster.controller() != second
        cluster.resume(second)

        third = cluster.controller()
        cluster.partition(third, others(cluster, third))
        load.wait_for_more(2, 60)
        cluster.heal()
        load.wait_for_more(2, 60)
    finally:
        load.stop()
    check(cluster, load.decisions, 60)


def test_a_start_that_fails_shows_what_the_nodes_said(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(1, configs={"num.partitions": 0})
    with pytest.raises(BrokerFailed, match=r"num\.partitions"), cluster:
        pass
    assert "--- node 1 (not running)" in capsys.readouterr().err
    assert not Path(cluster.nodes[1].data_path).exists()


def test_a_node_that_does_not_exist() -> None:
    cluster = Cluster(2)
    for use in (cluster.kill, cluster.pause, cluster.restart):
        with pytest.raises(ValueError, match=r"there is no node 3; the cluster has \[1, 2\]"):
            use(3)
    with pytest.raises(ValueError, match="there is no node 3"):
        cluster.partition(1, [2, 3])
    cluster.close()
