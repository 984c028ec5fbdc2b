"""Three nodes of production code under faults: what a decision's answer promised is there, once, on every node."""

import pytest

from simulation.cluster_world import ClusterWorld
from simulation.run import run_seed
from tidelog.controller.brokers import unregister_broker
from tidelog.controller.decision_queue import ControllerResult
from tidelog.metadata.records import NoOpRecord
from tidelog.metadata.topics import METADATA_TOPIC

SEEDS = range(1, 16)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_acknowledged_decision_is_there_once(seed: int) -> None:
    result = run_seed(seed, "cluster")
    assert result.violations == [], f"python -m simulation.run --world cluster --seed {seed} --trace"


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_seed(3, "cluster").trace_hash == run_seed(3, "cluster").trace_hash


class ReportingWorld(ClusterWorld):
    """A cluster that keeps what its nodes report."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.reports: list[tuple[int, str, dict[str, object]]] = []

    def reported(self, node_id: int, event: str, facts: dict[str, object]) -> None:
        self.reports.append((self.scheduler.now_us, event, {"node": node_id, **facts}))

    def reports_of(self, event: str, node_id: int) -> list[tuple[int, dict[str, object]]]:
        return [(at_us, facts) for at_us, name, facts in self.reports if name == event and facts["node"] == node_id]


@pytest.fixture
def cluster() -> ReportingWorld:
    world = ReportingWorld(1)
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
    # A broker does not wait for the registration of its controller.
    cluster.run_until(
        "the controllers are registered",
        lambda: all(node.broker and sorted(node.broker.image.controllers) == [1, 2, 3] for node in cluster.nodes.values()),
    )


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


def cut_off(world: ClusterWorld, node_id: int) -> None:
    for each in world.nodes.values():
        if each is not world.nodes[node_id]:
            world.network.partition(world.nodes[node_id].host, each.host)


def test_a_broker_that_was_unregistered_while_it_was_cut_off_registers_again_and_serves(cluster: ClusterWorld) -> None:
    (leader,) = active(cluster)
    other = next(node_id for node_id in cluster.nodes if node_id != leader)
    cut_off(cluster, other)
    cluster.run_until("it is fenced", lambda: fenced(cluster, leader) == [other])
    controller = cluster.nodes[leader].broker
    assert controller is not None
    decided: list[Exception | None] = []
    controller.controller.submit(
        lambda image: unregister_broker(image, controller.settings, other), lambda _, error: decided.append(error)
    )
    cluster.run_until("it is unregistered", lambda: bool(decided))
    assert decided == [None]
    cluster.network.heal_all()
    cluster.run_until("it is back", lambda: cluster.is_whole)


def test_a_node_without_a_majority_says_every_five_seconds_which_peers_it_cannot_reach(cluster: ReportingWorld) -> None:
    cluster.nodes[2].kill()
    cluster.nodes[3].kill()
    began_us = cluster.scheduler.now_us
    cluster.run_until("it said so twice", lambda: len(cluster.reports_of("waiting_for_controller", 1)) == 2)
    (first_us, facts), (second_us, _) = cluster.reports_of("waiting_for_controller", 1)
    assert first_us - began_us < 8_000_000
    assert 4_900_000 < second_us - first_us < 5_100_000
    assert facts == {
        "node": 1,
        "state": "running",
        "leader": facts["leader"],
        "voters": (1, 2, 3),
        "unreachable": ["node2:9094: node2:9094: connection refused", "node3:9094: node3:9094: connection refused"],
    }
    cluster.nodes[2].start()
    cluster.run_until("there is a majority", lambda: bool(active(cluster)))
    said = len(cluster.reports_of("waiting_for_controller", 1))
    began_us = cluster.scheduler.now_us
    cluster.run_until("time passes", lambda: cluster.scheduler.now_us - began_us > 11_000_000)
    assert len(cluster.reports_of("waiting_for_controller", 1)) == said, "a node that is served says nothing"


def test_a_broker_that_no_longer_follows_the_metadata_is_fenced_and_not_ready(cluster: ReportingWorld) -> None:
    """What it leads would otherwise have a leader that never hears of anything again."""
    (leader,) = active(cluster)
    other = next(node_id for node_id in cluster.nodes if node_id != leader)
    node = cluster.nodes[other]
    assert node.broker is not None
    assert node.broker.unready_reason() is None
    node.disk.faults.fail("read", lambda path: METADATA_TOPIC in path)
    controller = cluster.nodes[leader].broker
    assert controller is not None
    controller.controller.submit(lambda _: ControllerResult([NoOpRecord()], None), lambda response, error: None)
    cluster.run_until("it is fenced", lambda: fenced(cluster, leader) == [other])
    reason = node.broker.unready_reason()
    assert reason is not None
    assert "must be restarted" in reason
    cluster.run_until("it says so", lambda: bool(cluster.reports_of("waiting_for_controller", other)))
    assert "failed" in cluster.reports_of("waiting_for_controller", other)[0][1]
    node.kill()
    node.disk.faults.clear()
    node.start()
    cluster.run_until("it is back", lambda: cluster.is_whole)
