"""Replicated partitions on three whole brokers of a simulated cluster: copies, failover, crashes, controlled stops, moves."""

from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from simulation.checker import noticed_problems
from simulation.cluster_world import ClusterWorld, host_of
from simulation.disk import Keep, SimulatedDisk
from tests.broker.harness import FakeClient, Machine, fetch_request, offsets_in
from tests.controller.cluster import new_image, replay, topic_id
from tests.log.harness import batch
from tidelog.broker.broker import BrokerNode
from tidelog.broker.controller_role import ControllerRole
from tidelog.controller.configs import ConfigChange, ResourceAlteration, ResourceChanges, incremental_alter_configs
from tidelog.controller.reassignment import Reassignment, ReassignmentResult, alter_partition_reassignments
from tidelog.controller.topics import NewTopic, create_topics
from tidelog.log.partition_log import PartitionLog
from tidelog.log.retention.deletion_queue import remove_tree
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.records import PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage
from tidelog.records.header import HEADER_SIZE
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import CONSUMER_REPLICA_ID, DEBUGGING_REPLICA_ID, FetchedPartition
from tidelog.wire.protocol import ApiKey

TOPIC = "orders"
SECOND_US = 1_000_000


class ReplicatedCluster:
    """Three brokers, and a topic of one partition with three replicas, of which two have to be in sync."""

    def __init__(self, seed: int = 1, replication: int = 3, **configs: str) -> None:
        self.world = world = ClusterWorld(seed)
        for node in world.nodes.values():
            node.start()
        world.run_until("the cluster is there", lambda: world.is_whole)
        self.sent = 0
        texts = tuple({"min.insync.replicas": "2", **{name.replace("_", "."): text for name, text in configs.items()}}.items())
        controller = self.broker(self.controller_id() or 0)
        new = NewTopic(TOPIC, 1, replication, configs=texts)
        controller.controller.submit(
            lambda image: create_topics(image, controller.topic_rules, controller.static_config, [new], controller.randomness),
            lambda response, error: None,
        )
        self.wake()
        self.run_until("the topic is there", lambda: all(self.has_topic(id_) for id_ in world.nodes))

    def broker(self, node_id: int) -> BrokerNode:
        broker = self.world.nodes[node_id].broker
        assert broker is not None
        return broker

    def controller_id(self) -> int | None:
        nodes = self.world.nodes.items()
        return next((id_ for id_, node in nodes if node.broker is not None and node.broker.quorum.is_leader), None)

    def has_topic(self, node_id: int) -> bool:
        return self.broker(node_id).image.topic(TOPIC) is not None

    def state(self) -> PartitionImage:
        """What the broker that has heard most knows."""
        states = [
            topic.partitions[0]
            for node in self.world.nodes.values()
            if node.broker is not None and (topic := node.broker.image.topic(TOPIC)) is not None
        ]
        return max(states, key=lambda state: (state.leader_epoch, state.partition_epoch))

    def _is_led(self) -> bool:
        """Whether the leader has heard that it is."""
        state = self.state()
        broker = self.world.nodes[state.leader].broker if state.leader >= 0 else None
        topic = broker.image.topic(TOPIC) if broker is not None else None
        return topic is not None and topic.partitions[0] == state

    def epoch_of(self, node_id: int) -> int:
        """The epoch of a broker, as the others know it."""
        known = [node.broker.image.brokers.find(node_id) for node in self.world.nodes.values() if node.broker is not None]
        return max(broker.broker_epoch for broker in known if broker is not None)

    def leader(self) -> Partition:
        return self.broker(self.state().leader).partitions.find(TOPIC, None, 0)

    def log(self, node_id: int) -> PartitionLog:
        return self.broker(node_id).directory.logs[TOPIC, 0]

    def wake(self) -> None:
        for node in self.world.nodes.values():
            node.wake()

    def run_until(self, what: str, condition: Callable[[], bool], seconds: int = 30) -> None:
        self.world.run_until(what, condition, seconds * SECOND_US)

    def send(self, count: int = 1) -> None:
        """Append with acks=all, and wait until it is acknowledged."""
        told: list[Exception | None] = []
        self.run_until("somebody leads", self._is_led)
        leader = self.leader()
        for _ in range(count):
            result = leader.append(batch(), acks_all=True)
            leader.wait_replicated(result.last_offset + 1, told.append)
        self.wake()
        self.run_until("acknowledged", lambda: len(told) == count)
        assert told == [None] * count
        self.sent += count

    def contents(self, node_id: int) -> bytes:
        log = self.log(node_id)
        return b"".join(bytes(segment.file().read(0, segment.size)) for segment in log.segments)

    def run_until_in_sync(self, *node_ids: int) -> None:
        self.run_until(f"{node_ids} are in sync", lambda: set(self.state().isr) == set(node_ids))

    def check(self) -> None:
        """All replicas are equal, have everything that was acknowledged, and nothing unexpected was reported."""
        self.run_until("all have all", lambda: len({self.log(id_).log_end_offset for id_ in self.world.nodes}) == 1)
        assert self.leader().log.high_watermark >= self.sent
        assert len({self.contents(id_) for id_ in self.world.nodes}) == 1
        assert list(noticed_problems(self.world.history)) == []


def test_three_brokers_hold_what_was_acknowledged_byte_for_byte() -> None:
    cluster = ReplicatedCluster()
    cluster.send()
    cluster.send(20)
    assert all(cluster.log(node_id).durable.offset == 21 for node_id in (1, 2, 3))
    cluster.run_until_in_sync(1, 2, 3)
    cluster.check()


def test_the_debugging_replica_reads_every_copy_and_a_consumer_only_that_of_the_leader() -> None:
    cluster = ReplicatedCluster()
    cluster.send(5)
    cluster.run_until_in_sync(1, 2, 3)
    leader = cluster.state().leader
    for node_id in (1, 2, 3):
        cluster.run_until("it knows what is committed", partial(has_committed, cluster, node_id, 5))
        answers: dict[int, FetchedPartition] = {}
        for replica_id in (CONSUMER_REPLICA_ID, DEBUGGING_REPLICA_ID):
            client = FakeClient(cast("Machine", Listening(cluster, node_id)))
            ((answers[replica_id],),) = [
                topic.partitions for topic in client.fetch(fetch_request(TOPIC, replica_id=replica_id), 12).topics
            ]
        assert (answers[CONSUMER_REPLICA_ID].error is ErrorCode.NONE) == (node_id == leader)
        assert offsets_in(answers[DEBUGGING_REPLICA_ID].records) == [0, 1, 2, 3, 4]


def has_committed(cluster: ReplicatedCluster, node_id: int, offset: int) -> bool:
    return cluster.log(node_id).high_watermark == offset


class Listening:
    """A node of a cluster as ``FakeClient`` needs it."""

    def __init__(self, cluster: ReplicatedCluster, node_id: int) -> None:
        self.broker = cluster.broker(node_id)
        self._cluster = cluster

    def run_until(self, condition: Callable[[], bool]) -> None:
        self._cluster.run_until("answered", condition)


@pytest.mark.parametrize("keep", ["all", "none"])
def test_a_leader_dies_and_another_leads_with_everything(keep: Keep) -> None:
    cluster = ReplicatedCluster(seed=2)
    cluster.send(5)
    dead = cluster.state().leader
    cluster.world.nodes[dead].cut_power(keep)
    began_us = cluster.world.scheduler.now_us
    cluster.run_until("somebody else leads", lambda: cluster.state().leader not in (dead, -1))
    assert cluster.world.scheduler.now_us - began_us < 6 * SECOND_US
    cluster.send(5)
    assert dead not in cluster.state().isr
    cluster.world.nodes[dead].start()
    cluster.run_until_in_sync(1, 2, 3)
    cluster.send(5)
    cluster.check()


def test_clients_hear_that_a_leader_is_gone_before_another_one_is_elected() -> None:
    cluster = ReplicatedCluster(seed=19)
    cluster.send(3)
    leader = cluster.state().leader
    other = next(node_id for node_id in (1, 2, 3) if node_id != leader)
    client = FakeClient(cast("Machine", Listening(cluster, other)))

    def shown() -> tuple[int, int]:
        (topic,) = client.call(ApiKey.METADATA, 12, topics=[{"topic_id": bytes(16), "name": TOPIC}]).topics
        return topic.partitions[0].leader_id, topic.partitions[0].error_code

    assert shown() == (leader, ErrorCode.NONE)
    cluster.world.nodes[leader].kill()
    lost_leaders = cluster.broker(other).replicas.lost_leaders
    cluster.run_until("its connection has ended", lambda: lost_leaders() == (leader,))
    assert cluster.state().leader == leader
    assert shown() == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    cluster.run_until("another one leads", lambda: cluster.state().leader not in (leader, -1))
    cluster.send()
    cluster.run_until("this one has heard", lambda: shown() == (cluster.state().leader, ErrorCode.NONE))


def test_a_leader_that_is_connected_to_again_is_there_and_one_that_stays_away_is_the_controllers_concern() -> None:
    cluster = ReplicatedCluster(seed=20)
    cluster.send(3)
    leader = cluster.state().leader
    other = next(node_id for node_id in (1, 2, 3) if node_id != leader)
    lost_leaders, hosts = cluster.broker(other).replicas.lost_leaders, (host_of(other), host_of(leader))
    cluster.world.network.cut(*hosts)
    cluster.run_until("a connection has ended", lambda: lost_leaders() == (leader,))
    cluster.run_until("there is another one", lambda: lost_leaders() == ())
    assert cluster.state().leader == leader
    cluster.world.network.cut(*hosts)
    cluster.run_until("a connection has ended", lambda: lost_leaders() == (leader,))
    cluster.world.network.partition(*hosts)
    cluster.run_until("it has been away for long", lambda: lost_leaders() == ())
    assert cluster.state().leader == leader


def test_a_follower_dies_and_returns() -> None:
    cluster = ReplicatedCluster(seed=3)
    cluster.send(3)
    dead = next(node_id for node_id in (1, 2, 3) if node_id != cluster.state().leader)
    cluster.world.nodes[dead].kill()
    cluster.run_until("it has left the in-sync set", lambda: dead not in cluster.state().isr)
    cluster.send(3)
    cluster.world.nodes[dead].start()
    cluster.run_until_in_sync(1, 2, 3)
    cluster.check()


def test_a_former_leader_drops_what_was_never_acknowledged() -> None:
    cluster = ReplicatedCluster(seed=4)
    cluster.send(3)
    old = cluster.state().leader
    broker = cluster.broker(old)
    # Nobody hears of what it appends: it is alone from now on.
    for other in (1, 2, 3):
        if other != old:
            cluster.world.network.partition(host_of(old), host_of(other))
    broker.partitions.find(TOPIC, None, 0).append(batch(), acks_all=False)
    cluster.wake()
    cluster.run_until("another one leads", lambda: cluster.state().leader not in (old, -1))
    cluster.send(2)
    cluster.world.network.heal_all()
    cluster.run_until_in_sync(1, 2, 3)
    cluster.check()


def test_a_broker_that_stops_in_order_hands_over_first() -> None:
    cluster = ReplicatedCluster(seed=5)
    cluster.send(3)
    old = cluster.state().leader
    stopped: list[Exception | None] = []
    cluster.world.nodes[old].stop(stopped.append)
    cluster.run_until("it has stopped", lambda: bool(stopped))
    assert stopped == [None]
    cluster.run_until("another one leads", lambda: cluster.state().leader not in (old, -1))
    cluster.send(3)
    cluster.world.nodes[old].start()
    cluster.run_until_in_sync(1, 2, 3)
    cluster.check()


def test_leadership_returns_to_the_preferred_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControllerRole, "_balance_interval_ms", 2_000)
    cluster = ReplicatedCluster(seed=6)
    preferred = cluster.state().replicas[0]
    stopped: list[Exception | None] = []
    cluster.world.nodes[preferred].stop(stopped.append)
    cluster.run_until("another one leads", lambda: bool(stopped) and cluster.state().leader not in (preferred, -1))
    cluster.world.nodes[preferred].start()
    cluster.run_until("the preferred one leads again", lambda: cluster.state().leader == preferred)
    assert any(node.broker is not None and node.broker.controller.counts.clean_elections for node in cluster.world.nodes.values())
    cluster.run_until_in_sync(1, 2, 3)
    cluster.send(3)
    cluster.check()


def test_a_new_controller_decides_who_is_eligible_by_its_own_settings() -> None:
    cluster = ReplicatedCluster(seed=8)
    controller = cluster.broker(cluster.controller_id() or 0).controller
    image = new_image((1, 2, 3), orders=1)
    replay(image, [PartitionChangeRecord(0, topic_id(TOPIC), isr=(1, 2), eligible_leader_replicas=(3,))])
    change = PartitionChangeRecord(0, topic_id(TOPIC), eligible_leader_replicas=())
    assert change in controller._first_decision(image).records, "two are enough"


def test_a_proposal_that_the_metadata_settled_while_it_waited_does_not_spoil_the_next_one() -> None:
    cluster = ReplicatedCluster(seed=10)
    cluster.send(3)
    leader = cluster.leader()
    lagging, dying = (node_id for node_id in (1, 2, 3) if node_id != cluster.state().leader)
    manager = cluster.broker(cluster.state().leader).replicas
    # While another request is under way, a removal is proposed, and then the partition changes.
    manager._is_asking = True
    manager._propose(leader, leaving=(lagging,))
    cluster.world.nodes[dying].kill()
    cluster.run_until("the other one has left", lambda: dying not in leader.in_sync.isr)
    manager._propose(leader, leaving=(lagging,))
    manager._is_asking = False
    manager._ask()
    cluster.wake()
    cluster.run_until("it has left, too", lambda: lagging not in leader.in_sync.isr)
    cluster.world.nodes[dying].start()
    cluster.run_until_in_sync(1, 2, 3)
    cluster.send(3)
    cluster.check()


def test_a_leader_whose_log_goes_offline_is_replaced_and_follows_after_a_restart() -> None:
    cluster = ReplicatedCluster(seed=11)
    cluster.send(3)
    old = cluster.state().leader
    cluster.leader().log.go_offline("the disk has failed")
    cluster.run_until("another one leads", lambda: cluster.state().leader not in (old, -1))
    assert old not in (*cluster.state().isr, *cluster.state().eligible_leader_replicas)
    cluster.send(3)
    cluster.world.nodes[old].kill()
    cluster.world.nodes[old].start()
    cluster.run_until_in_sync(1, 2, 3)
    cluster.send(3)
    cluster.check()


def events(cluster: ReplicatedCluster, name: str) -> list[dict[str, object]]:
    """The events of this name that brokers report from now on."""
    found: list[dict[str, object]] = []
    report = cluster.world.reported

    def reported(node_id: int, event: str, facts: dict[str, object]) -> None:
        if event == name:
            found.append(facts)
        report(node_id, event, facts)

    cluster.world.reported = reported  # type: ignore[method-assign]  # the world of this test only runs the cluster
    return found


def damage(cluster: ReplicatedCluster, node_id: int) -> None:
    """Flip a bit of a record that was acknowledged, and of which the durable mark says that it must be there."""
    path, noted_us = cluster.log(node_id).segments.active.path, cluster.world.scheduler.now_us + 3 * SECOND_US
    cluster.run_until("the mark is written", lambda: cluster.world.scheduler.now_us >= noted_us)
    cluster.world.nodes[node_id].kill()
    cluster.world.nodes[node_id].disk.flip_bit(path, HEADER_SIZE + 2)


@pytest.mark.parametrize("was_leader", [False, True])
def test_a_damaged_replica_is_discarded_and_copied_again(was_leader: bool) -> None:
    cluster = ReplicatedCluster(seed=12)
    cluster.send(5)
    leader = cluster.state().leader
    victim = leader if was_leader else next(node_id for node_id in (1, 2, 3) if node_id != leader)
    damage(cluster, victim)
    cluster.run_until("it has left the in-sync set", lambda: victim not in cluster.state().isr)
    cluster.send(3)
    discarded = events(cluster, "damaged_replica_discarded")
    cluster.world.nodes[victim].start()
    cluster.run_until_in_sync(1, 2, 3)
    assert len(discarded) == 1
    cluster.send(3)
    cluster.check()


def test_a_damaged_replica_that_is_eligible_is_not_elected() -> None:
    """It was alone with the leader when it died, so nothing was committed without it."""
    cluster = ReplicatedCluster(seed=13, replication=2)
    cluster.send(5)
    leader = cluster.state().leader
    victim = next(node_id for node_id in cluster.state().replicas if node_id != leader)
    damage(cluster, victim)
    cluster.run_until("it is eligible", lambda: cluster.state().eligible_leader_replicas == (victim,))
    discarded = events(cluster, "damaged_replica_discarded")
    cluster.world.nodes[victim].start()
    cluster.run_until("it has left both sets", lambda: bool(discarded))
    assert cluster.state().eligible_leader_replicas == ()
    cluster.run_until_in_sync(*cluster.state().replicas)
    cluster.send(3)
    assert cluster.contents(victim) == cluster.contents(leader)
    assert cluster.log(victim).log_end_offset == 8


def sets_without(cluster: ReplicatedCluster, node_id: int) -> bool:
    return node_id not in (*cluster.state().isr, *cluster.state().eligible_leader_replicas)


def remove_log(cluster: ReplicatedCluster, node_id: int) -> None:
    """Kill a broker, and remove the directory of its replica, as somebody does to let it be copied again."""
    noted_us = cluster.world.scheduler.now_us + 3 * SECOND_US
    cluster.run_until("the mark is written", lambda: cluster.world.scheduler.now_us >= noted_us)
    directory, node = cluster.log(node_id).directory, cluster.world.nodes[node_id]
    node.kill()
    remove_tree(node.disk, directory)


def test_a_replica_whose_directory_was_removed_does_not_lead_with_an_empty_log() -> None:
    """It was the last one to stop, so it would lead at once, and the other one would copy nothing from it."""
    cluster = ReplicatedCluster(seed=17, replication=2)
    cluster.send(5)
    leader, other = cluster.state().isr
    cluster.world.nodes[other].kill()
    cluster.run_until("it has left the in-sync set", lambda: cluster.state().isr == (leader,))
    remove_log(cluster, leader)
    cluster.world.nodes[leader].start()
    cluster.run_until("it is let go", lambda: sets_without(cluster, leader))
    cluster.world.nodes[other].start()
    cluster.run_until_in_sync(leader, other)
    cluster.send(3)
    assert cluster.log(leader).log_end_offset == 8
    assert cluster.contents(leader) == cluster.contents(other)


def test_the_last_replica_stays_offline_when_its_directory_was_removed() -> None:
    cluster = ReplicatedCluster(seed=18, replication=2, min_insync_replicas="1")
    cluster.send(5)
    leader, other = cluster.state().isr
    cluster.world.nodes[other].kill()
    cluster.run_until("it has left the in-sync set", lambda: cluster.state().isr == (leader,))
    cluster.send(1)
    remove_log(cluster, leader)
    kept = events(cluster, "last_replica_offline")
    for _ in range(2):
        cluster.world.nodes[leader].start()
        cluster.run_until("it is kept", lambda: bool(kept))
        assert "put back" in str(kept.pop()["remedy"])
        cluster.world.nodes[leader].kill()


def eligible_after_a_crash(cluster: ReplicatedCluster, node_id: int, disk: SimulatedDisk | None = None) -> bool:
    """Kill a broker, which is then eligible; start it again, on another disk if one is given; and return whether it still is
    eligible when it has registered."""
    node, (leader, _) = cluster.world.nodes[node_id], cluster.state().isr
    node.kill()
    cluster.run_until("it has left the in-sync set", lambda: cluster.state().isr == (leader,))
    assert cluster.state().eligible_leader_replicas == (node_id,)
    epoch = cluster.epoch_of(node_id)
    if disk is not None:
        node.disk = node.executor.disk = disk
    node.start()
    cluster.run_until("it is registered", lambda: cluster.epoch_of(node_id) != epoch)
    is_eligible = node_id in cluster.state().eligible_leader_replicas
    cluster.run_until_in_sync(leader, node_id)
    cluster.send(3)
    return is_eligible


def test_after_a_crash_an_older_copy_of_the_disk_is_not_eligible() -> None:
    """The copy was made while a broker ran on it, so it looks like the disk of one that has crashed."""
    cluster = ReplicatedCluster(seed=16, replication=2)
    cluster.send(3)
    leader, other = cluster.state().isr
    assert leader == cluster.state().leader
    older = cluster.world.nodes[other].disk.crash_image(keep="all")
    assert eligible_after_a_crash(cluster, other)
    assert not eligible_after_a_crash(cluster, other, older)
    assert cluster.contents(other) == cluster.contents(leader)


def test_the_last_damaged_replica_is_kept_and_the_repair_is_named() -> None:
    cluster = ReplicatedCluster(seed=14, replication=2, min_insync_replicas="1")
    cluster.send(5)
    last = cluster.state().leader
    other = next(node_id for node_id in cluster.state().replicas if node_id != last)
    cluster.world.nodes[other].kill()
    cluster.run_until("it is alone in sync", lambda: cluster.state().isr == (last,))
    cluster.send(3)
    reported = events(cluster, "last_replica_offline")
    damage(cluster, last)
    cluster.world.nodes[last].start()
    cluster.world.nodes[other].start()
    cluster.run_until("it is reported", lambda: bool(reported))
    assert f"tidelog log repair {cluster.broker(last).directory.path}/orders-0" in str(reported[0]["remedy"])
    assert (TOPIC, 0) in cluster.broker(last).directory.offline
    assert cluster.state().leader in (last, -1), "who lacks records must not lead"


def test_a_damaged_replica_is_kept_while_the_replica_that_leads_cannot_be_read_either() -> None:
    """A power cut may damage both. What is sound of one may be what the other one lacks."""
    cluster = ReplicatedCluster(seed=15, replication=2)
    cluster.send(5)
    first = cluster.state().leader
    second = next(node_id for node_id in cluster.state().replicas if node_id != first)
    damage(cluster, second)
    cluster.run_until("the other is alone in sync", lambda: cluster.state().isr == (first,))
    damage(cluster, first)
    reported, discarded = events(cluster, "last_replica_offline"), events(cluster, "damaged_replica_discarded")
    cluster.world.nodes[first].start()
    cluster.run_until("the first has left both sets", lambda: sets_without(cluster, first))
    cluster.world.nodes[second].start()
    cluster.run_until("the second is the last", lambda: bool(reported))
    looked_us = cluster.world.scheduler.now_us + 3 * SECOND_US
    cluster.run_until("the first has looked", lambda: cluster.world.scheduler.now_us >= looked_us)
    assert cluster.state().leader == second
    assert discarded == []
    assert (TOPIC, 0) in cluster.broker(first).directory.offline


# -- moves -----------------------------------------------------------------------------------------------------------------------


def on(cluster: ReplicatedCluster, *replicas: int) -> None:
    """Move the partition and wait until nobody else has anything of it."""
    move(cluster, replicas)
    cluster.run_until("the move is complete", lambda: not is_moving(cluster) and set(cluster.state().replicas) == set(replicas))
    cluster.run_until("only they have a log", lambda: holders(cluster) == set(replicas))
    assert set(cluster.state().isr) == set(replicas)
    assert cluster.state().leader in replicas


def move(cluster: ReplicatedCluster, replicas: tuple[int, ...] | None) -> None:
    cluster.run_until("there is a controller", lambda: cluster.controller_id() is not None)
    controller = cluster.broker(cluster.controller_id() or 0)
    answers: list[object] = []

    def answered(response: list[ReassignmentResult] | None, error: Exception | None) -> None:
        answers.append(error or [result.error for result in response or ()])

    wanted = [Reassignment(TOPIC, 0, replicas)]
    controller.controller.submit(
        lambda image: alter_partition_reassignments(image, controller.settings, wanted, allow_replication_factor_change=True),
        answered,
    )
    cluster.wake()
    cluster.run_until("the controller answers", lambda: bool(answers))
    assert answers == [[ErrorCode.NONE]]


def set_texts(cluster: ReplicatedCluster, *resources: tuple[ResourceType, str, dict[str, str]]) -> None:
    controller = cluster.broker(cluster.controller_id() or 0)
    wanted = [
        ResourceChanges(kind, name, tuple(ConfigChange(setting, text) for setting, text in texts.items()))
        for kind, name, texts in resources
    ]
    answers: list[object] = []

    def answered(response: list[ResourceAlteration] | None, error: Exception | None) -> None:
        answers.append(error or [result.error for result in response or ()])

    controller.controller.submit(lambda image: incremental_alter_configs(image, controller.static_config, wanted), answered)
    cluster.wake()
    cluster.run_until("the controller answers", lambda: bool(answers))
    assert answers == [[ErrorCode.NONE] * len(resources)]


def is_moving(cluster: ReplicatedCluster) -> bool:
    state = cluster.state()
    return bool(state.adding_replicas or state.removing_replicas)


def holders(cluster: ReplicatedCluster) -> set[int]:
    """The brokers that run and have a log of the partition."""
    return {
        node_id
        for node_id, node in cluster.world.nodes.items()
        if node.broker is not None and (TOPIC, 0) in node.broker.directory.logs
    }


def test_a_partition_moves_with_everything_and_leaves_nothing_behind() -> None:
    cluster = ReplicatedCluster(seed=6, min_insync_replicas="1")
    cluster.send(5)
    on(cluster, 1, 2)
    cluster.send(5)
    on(cluster, 3)
    cluster.send(5)
    assert cluster.log(3).log_end_offset == 15
    on(cluster, 2, 1, 3)
    cluster.send(5)
    cluster.check()


def test_a_partition_with_one_replica_stays_writable_while_it_moves() -> None:
    """The minimum of two does not count the replica that is being added."""
    cluster = ReplicatedCluster(seed=7, replication=1)
    cluster.send(5)
    target = next(node_id for node_id in (1, 2, 3) if node_id != cluster.state().leader)
    move(cluster, (target,))
    assert cluster.state().adding_replicas == (target,)
    cluster.run_until("the leader knows of it", lambda: cluster.leader().in_sync.is_moving)
    cluster.send(5)
    cluster.run_until("only the target has a log", lambda: holders(cluster) == {target})
    assert (cluster.state().replicas, cluster.state().leader) == ((target,), target)
    cluster.send(5)
    assert cluster.log(target).log_end_offset == 15


def test_a_cancelled_move_deletes_only_the_new_copy() -> None:
    cluster = ReplicatedCluster(seed=8)
    on(cluster, 1, 2)
    cluster.send(5)
    move(cluster, (3, 2))
    cluster.world.nodes[3].kill()
    assert set(cluster.state().replicas) == {1, 2, 3}
    cluster.run_until("3 is not heard of", lambda: not cluster.broker(1).image.brokers.is_active(3))
    move(cluster, None)
    assert set(cluster.state().replicas) == {1, 2}
    cluster.send(5)
    cluster.world.nodes[3].start()
    cluster.run_until("it is back", lambda: cluster.world.is_whole)
    cluster.run_until("its copy is gone", lambda: holders(cluster) == {1, 2})
    assert cluster.log(1).log_end_offset == cluster.log(2).log_end_offset == 10


def test_a_broker_that_was_down_deletes_what_was_moved_away_meanwhile() -> None:
    cluster = ReplicatedCluster(seed=9)
    cluster.send(5)
    leader = cluster.state().leader
    away = next(node_id for node_id in (1, 2, 3) if node_id != leader)
    others = tuple(node_id for node_id in (1, 2, 3) if node_id != away)
    cluster.world.nodes[away].kill()
    cluster.run_until("it has left the in-sync set", lambda: away not in cluster.state().isr)
    on(cluster, *others)
    cluster.send(5)
    cluster.world.nodes[away].start()
    cluster.run_until("it is back", lambda: cluster.world.is_whole)
    cluster.run_until("its copy is gone", lambda: holders(cluster) == set(others))
    on(cluster, 1, 2, 3)
    cluster.check()


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttled_move_takes_its_time_survives_its_controller_and_takes_its_throttle_along(side: str) -> None:
    """Either side alone holds the rate: 60 batches of 20 kB at 100 kB per second."""
    cluster = ReplicatedCluster(seed=10, replication=1, min_insync_replicas="1", max_message_bytes="100000")
    source = cluster.state().leader
    target = next(node_id for node_id in (1, 2, 3) if node_id not in (source, cluster.controller_id()))
    rate, size, count = 100_000, 20_000, 60
    for _ in range(count):
        cluster.leader().append(batch(size=size), acks_all=True)
    cluster.wake()
    replica = {"leader": source, "follower": target}[side]
    set_texts(
        cluster,
        (ResourceType.TOPIC, TOPIC, {f"{side}.replication.throttled.replicas": f"0:{replica}"}),
        (ResourceType.BROKER, str(replica), {f"{side}.replication.throttled.rate": str(rate)}),
    )
    began_us = cluster.world.scheduler.now_us
    move(cluster, (target,))
    logs = cluster.broker(target).directory.logs
    cluster.run_until("half of it is there", lambda: (TOPIC, 0) in logs and logs[TOPIC, 0].log_end_offset > count // 2)
    assert is_moving(cluster)
    if cluster.controller_id() not in (source, target):
        cluster.world.nodes[cluster.controller_id() or 0].kill()
    cluster.run_until("only the target has a log", lambda: holders(cluster) == {target}, 60)
    seconds = (cluster.world.scheduler.now_us - began_us) / SECOND_US
    assert seconds > size * count / rate - 1.5, "a second's worth and one response may go first"
    assert cluster.log(target).log_end_offset == count
    image = cluster.broker(target).image
    cluster.run_until("the rate is gone", lambda: image.configs_of(ResourceType.BROKER, str(replica)) == {})
    assert not any("throttled" in name for name in image.configs_of(ResourceType.TOPIC, TOPIC))
    throttles = cluster.broker(replica).throttles
    assert {"leader": throttles.leader, "follower": throttles.follower}[side].throttled_bytes >= size * count - rate
