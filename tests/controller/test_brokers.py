"""Brokers come, are fenced, return, stop and leave: decisions on an image, without a cluster."""

from dataclasses import replace
from typing import Any

import pytest

from tidelog.controller.broker_sessions import BrokerSessions
from tidelog.controller.brokers import (
    BrokerHeartbeat,
    BrokerRegistration,
    HeartbeatResult,
    epoch_of_crashed,
    fence_broker,
    process_heartbeat,
    register_broker,
    register_controller,
    unregister_broker,
)
from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.errors import ApiError
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    BrokerEndpoint,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterControllerRecord,
    SupportedFeature,
    TopicRecord,
)
from tidelog.wire.errors import ErrorCode

CLUSTER = "cluster"
TOPIC_ID = b"t" * 16
ENDPOINT = BrokerEndpoint("PLAINTEXT", "host", 9092, 0)


class Rules:
    def min_insync_replicas(self, topic: str) -> int:
        return 1

    def allows_unclean_election(self, topic: str) -> bool:
        return False

    def is_relaxed(self, topic: str) -> bool:
        return topic == "clicks"


class Cluster:
    """An image, and a log that only counts."""

    def __init__(self, *active: int) -> None:
        self.image = ClusterImage()
        self.end_offset = 0
        for broker_id in active:
            self.join(broker_id)

    def commit(self, *records: MetadataRecord) -> None:
        self.end_offset += len(records)
        self.image.replay(records, self.end_offset - 1)

    def register(self, wanted: BrokerRegistration, *, has_session: bool = False) -> int:
        result = register_broker(
            self.image, Rules(), wanted, cluster_id=CLUSTER, has_session=has_session, next_offset=self.end_offset
        )
        self.commit(*result.records)
        return result.response

    def heartbeat(self, broker_id: int, *, offset: int | None = None, want_shut_down: bool = False) -> HeartbeatResult:
        broker = self.image.brokers.find(broker_id)
        assert broker is not None
        heartbeat = BrokerHeartbeat(
            broker_id, broker.broker_epoch, self.end_offset - 1 if offset is None else offset, want_shut_down=want_shut_down
        )
        result = process_heartbeat(self.image, Rules(), heartbeat)
        self.commit(*result.records)
        return result.response

    def decide(self, result: ControllerResult[Any]) -> Any:
        self.commit(*result.records)
        return result.response

    def join(self, broker_id: int) -> None:
        self.register(registration(broker_id))
        assert not self.heartbeat(broker_id).is_fenced

    def topic(self, name: str, broker_id: int) -> None:
        partition = PartitionRecord(0, TOPIC_ID, (broker_id,), (broker_id,), leader=broker_id, leader_epoch=0, partition_epoch=0)
        self.commit(TopicRecord(name, TOPIC_ID), partition)

    def leader(self) -> int:
        topic = self.image.topic_by_id(TOPIC_ID)
        assert topic is not None
        return topic.partitions[0].leader

    def is_fenced(self, broker_id: int) -> bool:
        broker = self.image.brokers.find(broker_id)
        assert broker is not None
        return broker.fenced


def registration(broker_id: int, incarnation: bytes = b"i", previous: int = -1) -> BrokerRegistration:
    directory = bytes([broker_id]) * 16
    return BrokerRegistration(broker_id, CLUSTER, incarnation * 16, (ENDPOINT,), (), "rack", (directory,), previous)


def refusal(cluster: Cluster, wanted: BrokerRegistration, *, has_session: bool = False) -> ErrorCode:
    before = cluster.end_offset
    with pytest.raises(ApiError) as refused:
        cluster.register(wanted, has_session=has_session)
    assert cluster.end_offset == before
    return refused.value.code


def test_the_epoch_is_the_offset_of_the_registration_and_the_broker_is_fenced_until_it_has_read_it() -> None:
    cluster = Cluster()
    cluster.commit(FeatureLevelRecord("group.version", 1))
    wanted = replace(registration(1), features=(SupportedFeature("group.version", 0, 1),))
    assert cluster.register(wanted) == 1
    assert cluster.heartbeat(1, offset=0) == HeartbeatResult(is_caught_up=False, is_fenced=True, should_shut_down=False)
    assert cluster.heartbeat(1, offset=1) == HeartbeatResult(is_caught_up=True, is_fenced=False, should_shut_down=False)
    assert not cluster.is_fenced(1)


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    cluster = Cluster(1)
    before = cluster.end_offset
    cluster.heartbeat(1)
    assert cluster.end_offset == before


def test_a_repeated_registration_of_one_process_changes_nothing() -> None:
    cluster = Cluster(1)
    before = cluster.end_offset
    assert cluster.register(registration(1), has_session=True) == 0
    assert cluster.end_offset == before


def test_another_process_with_the_id_is_refused_while_the_first_one_lives() -> None:
    cluster = Cluster(1)
    assert refusal(cluster, registration(1, b"j"), has_session=True) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    epoch = cluster.end_offset
    assert cluster.register(registration(1, b"j")) == epoch
    assert cluster.is_fenced(1)


def test_what_does_not_belong_here_is_refused() -> None:
    cluster = Cluster(1)
    other = replace(registration(2), cluster_id="another")
    assert refusal(cluster, other) is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert refusal(cluster, replace(registration(2), log_dirs=(b"\1" * 16,))) is ErrorCode.INVALID_REGISTRATION
    cluster.commit(FeatureLevelRecord("metadata.version", 30))
    old = replace(registration(2), features=(SupportedFeature("metadata.version", 1, 29),))
    assert refusal(cluster, old) is ErrorCode.UNSUPPORTED_VERSION
    assert refusal(cluster, registration(2)) is ErrorCode.UNSUPPORTED_VERSION


def test_a_heartbeat_of_a_former_process_is_refused() -> None:
    cluster = Cluster(1)
    cluster.register(registration(1, b"j"))
    with pytest.raises(ApiError) as stale:
        process_heartbeat(cluster.image, Rules(), BrokerHeartbeat(1, 0, 100))
    assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(ApiError) as unknown:
        process_heartbeat(cluster.image, Rules(), BrokerHeartbeat(7, 0, 100))
    assert unknown.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_the_only_replica_leads_again_when_its_broker_returns() -> None:
    cluster = Cluster(1, 2)
    cluster.topic("orders", 1)
    assert cluster.decide(fence_broker(cluster.image, Rules(), 1))
    assert (cluster.leader(), cluster.is_fenced(1)) == (-1, True)
    assert not cluster.decide(fence_broker(cluster.image, Rules(), 1)), "it was fenced before"
    cluster.heartbeat(1)
    assert (cluster.leader(), cluster.is_fenced(1)) == (1, False)


def test_a_broker_that_stopped_in_order_is_believed() -> None:
    cluster = Cluster(1, 2)
    cluster.topic("clicks", 1)
    cluster.register(registration(1, b"j", previous=0))
    assert cluster.leader() == 1


def test_a_broker_that_has_other_data_does_not_lead() -> None:
    cluster = Cluster(1, 2)
    cluster.topic("clicks", 1)
    cluster.register(registration(1, b"j", 99))
    assert cluster.leader() == -1


@pytest.mark.parametrize(("previous", "leads"), [(-1, True), (epoch_of_crashed(0), True), (epoch_of_crashed(7), False)])
def test_a_broker_that_crashed_is_believed_if_its_data_is_that_of_the_last_process(previous: int, leads: bool) -> None:
    cluster = Cluster(1, 2)
    cluster.topic("orders", 1)
    cluster.register(registration(1, b"j", previous))
    cluster.heartbeat(1)
    assert (cluster.leader() == 1) is leads


def test_the_only_replica_of_a_relaxed_topic_begins_one_new_epoch_after_a_crash() -> None:
    """Nobody else could lead, so nothing is uncertain but the records that the crash may have lost."""
    cluster = Cluster(1, 2)
    cluster.topic("clicks", 1)
    cluster.register(registration(1, b"j", -1))
    cluster.heartbeat(1)
    topic = cluster.image.topic("clicks")
    assert topic is not None
    found = topic.partitions[0]
    assert (found.leader, found.isr, found.leader_epoch, found.leader_recovery_state) == (1, (1,), 1, 0)


def test_a_controlled_shutdown_moves_leaders_first_and_then_lets_the_broker_go() -> None:
    cluster = Cluster(1, 2)
    cluster.topic("orders", 1)
    first = cluster.heartbeat(1, want_shut_down=True)
    assert (first.should_shut_down, cluster.leader(), cluster.image.brokers.is_active(1)) == (False, -1, False)
    second = cluster.heartbeat(1, want_shut_down=True)
    assert (second.should_shut_down, cluster.is_fenced(1)) == (True, True)


def test_the_last_active_broker_stops_without_a_record() -> None:
    cluster = Cluster(1, 2)
    cluster.topic("orders", 1)
    cluster.decide(fence_broker(cluster.image, Rules(), 2))
    before = cluster.end_offset
    assert cluster.heartbeat(1, want_shut_down=True).should_shut_down
    assert (cluster.end_offset, cluster.leader()) == (before, 1)


def test_a_broker_that_runs_or_has_replicas_cannot_be_unregistered() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.topic("orders", 1)
    with pytest.raises(ApiError, match="is running: stop it"):
        unregister_broker(cluster.image, Rules(), 1)
    cluster.decide(fence_broker(cluster.image, Rules(), 1))
    with pytest.raises(ApiError, match=r"broker 1 still has 1 replica\(s\), orders-0 among them: move them"):
        unregister_broker(cluster.image, Rules(), 1)
    cluster.decide(fence_broker(cluster.image, Rules(), 3))
    cluster.decide(unregister_broker(cluster.image, Rules(), 3))
    assert (3 in cluster.image.brokers, 1 in cluster.image.brokers) == (False, True)
    with pytest.raises(ApiError, match="not registered"):
        unregister_broker(cluster.image, Rules(), 3)


def test_a_controller_is_registered_once() -> None:
    cluster = Cluster()
    record = RegisterControllerRecord(3, b"i" * 16, end_points=(ENDPOINT,))
    cluster.decide(register_controller(cluster.image, record))
    before = cluster.end_offset
    cluster.decide(register_controller(cluster.image, record))
    assert (cluster.end_offset, list(cluster.image.controllers)) == (before, [3])


# -- sessions ----------------------------------------------------------------------------------------------------------------


def test_a_session_ends_when_nothing_is_heard_for_its_time() -> None:
    sessions = BrokerSessions(3_000)
    sessions.begin([(1, 10), (2, 20)], now_ms=0)
    sessions.touch(1, 10, now_ms=2_000)
    assert (sessions.is_valid(2, 2_999), sessions.is_valid(2, 3_000), sessions.is_valid(3, 0)) == (True, False, False)
    assert (sessions.expired(3_000), sessions.next_deadline_ms) == ([2], 3_000)
    sessions.end(2)
    assert (sessions.expired(3_000), sessions.next_deadline_ms, sessions.lateness_ms_max) == ([], 5_000, 2_000)
    sessions.clear()
    assert sessions.next_deadline_ms is None
