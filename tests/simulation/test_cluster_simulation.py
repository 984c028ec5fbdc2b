"""Three nodes of production code under faults: what a decision's answer promised is there, once, on every node."""

import pytest

from simulation.cluster_world import ClusterWorld
from simulation.run import run_seed

SEEDS = range(1, 16)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_acknowledged_decision_is_there_once(seed: int) -> None:
    result = run_seed(seed, "cluster")
    assert result.violations == [], f"python -m simulation.run --world cluster --seed {seed} --trace"


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_seed(3, "cluster").trace_hash == run_seed(3, "cluster").trace_hash


@pytest.fixture
def cluster() -> ClusterWorld:
    world = ClusterWorld(1)
    for node in world.nodes.values():
        node.start()
    world.run_until("the cluster is there", lambda: world.is_whole)
    return world


def active(world: ClusterWorld) -> list[int]:
    """The nodes that consider themselves the active controller."""
    return [node_id for node_id, node in world.nodes.items() if node.broker is not None and node.broker.controller.is_active]


def fenced(world: ClusterWorld, by: int) -> list[int]:
    broker = world.nodes[by].broker
    assert broker is not None
    return sorted(each.broker_id for each in broker.image.brokers if each.fenced)


def test_epochs_are_offsets_and_everybody_names_the_same_controller(cluster: ClusterWorld) -> None:
    (leader,) = active(cluster)
    for node in cluster.nodes.values():
        assert node.broker is not None
        assert node.broker.quorum.leader_id == leader
        epochs = [broker.broker_epoch for broker in node.broker.image.brokers]
        assert len(set(epochs)) == 3
        assert sorted(node.broker.image.controllers) == [1, 2, 3]


def test_a_broker_whose_process_died_is_fenced_long_before_its_session_ends(cluster: ClusterWorld) -> None:
    (leader,) = active(cluster)
    other = next(node_id for node_id in cluster.nodes if node_id != leader)
    cluster.nodes[other].kill()
    began_us = cluster.scheduler.now_us
    cluster.run_until("it is fenced", lambda: fenced(cluster, leader) == [other])
    assert cluster.scheduler.now_us - began_us < 1_000_000


def test_a_broker_that_hangs_is_fenced_by_its_session_and_unfenced_when_it_goes_on(cluster: ClusterWorld) -> None:
    (leader,) = active(cluster)
    other = next(node_id for node_id in cluster.nodes if node_id != leader)
    node = cluster.nodes[other]
    for each in cluster.nodes.values():
        cluster.network.partition(node.host, each.host)
    node.pause()
    began_us = cluster.scheduler.now_us
    cluster.run_until("it is fenced", lambda: fenced(cluster, leader) == [other])
    assert 2_000_000 < cluster.scheduler.now_us - began_us < 4_000_000
    node.resume()
    cluster.network.heal_all()
    cluster.run_until("it is back", lambda: cluster.is_whole)


def test_the_next_controller_fences_the_broker_of_the_one_that_died(cluster: ClusterWorld) -> None:
    (leader,) = active(cluster)
    cluster.nodes[leader].kill()
    began_us = cluster.scheduler.now_us
    cluster.run_until("another one is active", lambda: bool(active(cluster)))
    (successor,) = active(cluster)
    assert cluster.scheduler.now_us - began_us < 1_000_000
    cluster.run_until("its broker is fenced", lambda: fenced(cluster, successor) == [leader])
    assert cluster.scheduler.now_us - began_us < 2_000_000


def test_a_broker_that_stops_in_order_is_fenced_before_it_is_gone(cluster: ClusterWorld) -> None:
    (leader,) = active(cluster)
    other = next(node_id for node_id in cluster.nodes if node_id != leader)
    stopped: list[Exception | None] = []
    cluster.nodes[other].stop(stopped.append)
    cluster.run_until("it has stopped", lambda: bool(stopped))
    assert (stopped, fenced(cluster, leader)) == ([None], [other])


def test_a_controller_that_stops_in_order_hands_over_at_once(cluster: ClusterWorld) -> None:
    (leader,) = active(cluster)
    stopped: list[Exception | None] = []
    began_us = cluster.scheduler.now_us
    cluster.nodes[leader].stop(stopped.append)
    cluster.run_until("another one is active", lambda: bool(stopped) and len(active(cluster)) == 1)
    assert stopped == [None]
    assert cluster.scheduler.now_us - began_us < 1_000_000
