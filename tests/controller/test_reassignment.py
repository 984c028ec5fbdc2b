from typing import Any

import pytest

from tests.controller.cluster import DIRECTORY, new_image, replay, topic_id
from tidelog.controller.brokers import fence_broker
from tidelog.controller.in_sync_set import InSyncChange, alter_partitions
from tidelog.controller.reassignment import (
    OngoingReassignment,
    Reassignment,
    ReassignmentResult,
    alter_partition_reassignments,
    ongoing_reassignments,
)
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from tidelog.metadata.topics import PartitionImage
from tidelog.wire.errors import ErrorCode

ID = topic_id("orders")


class Rules:
    """The settings of every topic."""

    def __init__(self, minimum: int = 1) -> None:
        self._minimum = minimum

    def min_insync_replicas(self, topic: str) -> int:
        return self._minimum

    def allows_unclean_election(self, topic: str) -> bool:
        return False

    def is_relaxed(self, topic: str) -> bool:
        return False


RULES = Rules()
OTHER_DIRECTORY = b"o" * 16


def with_change(**change: Any) -> ClusterImage:
    """orders-0 and orders-1 on brokers 1 and 2."""
    record = PartitionChangeRecord(0, ID, directories=(DIRECTORY, OTHER_DIRECTORY), **change)
    return replay(new_image((1, 2), orders=2), [record])


def partition(image: ClusterImage) -> PartitionImage:
    topic = image.topic("orders")
    assert topic is not None
    return topic.partitions[0]


def alter(image: ClusterImage, replicas: tuple[int, ...] | None, *, allowed: bool = True, index: int = 0) -> ErrorCode:
    """The outcome; the image has what was decided."""
    wanted = [Reassignment("orders", index, replicas)]
    result = alter_partition_reassignments(image, RULES, wanted, allow_replication_factor_change=allowed)
    (one,) = result.response
    assert (one.topic, one.partition) == ("orders", index)
    assert one.error is ErrorCode.NONE or not result.records
    replay(image, result.records)
    return one.error


def test_the_replicas_that_it_has_change_nothing() -> None:
    image = with_change()
    before = partition(image)
    assert alter(image, (1, 2)) is ErrorCode.NONE
    assert partition(image) is before


def test_another_order_is_another_preference_with_the_directories_in_step() -> None:
    image = with_change()
    assert alter(image, (2, 1)) is ErrorCode.NONE
    changed = partition(image)
    assert (changed.replicas, changed.directories) == ((2, 1), (OTHER_DIRECTORY, DIRECTORY))
    assert (changed.leader, changed.leader_epoch, changed.isr) == (1, 0, (1, 2))


@pytest.mark.parametrize("replicas", [(), (1, 1), (1, 9), (-1,), (1, 2, 9)])
def test_what_cannot_be_is_refused(replicas: tuple[int, ...]) -> None:
    assert alter(with_change(), replicas) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_another_number_of_replicas_must_be_allowed() -> None:
    assert alter(with_change(), (1,), allowed=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert alter(with_change(), (2, 1), allowed=False) is ErrorCode.NONE


def test_what_does_not_exist_is_unknown() -> None:
    assert alter(with_change(), (1, 2), index=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(with_change(), None, index=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wanted = [Reassignment("missing", 0, (1,))]
    (one,) = alter_partition_reassignments(with_change(), RULES, wanted, allow_replication_factor_change=True).response
    assert one.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_only_what_is_under_way_can_be_cancelled() -> None:
    assert alter(with_change(), None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize("replicas", [None, (1,)])
def test_cancelling_keeps_the_replicas_from_before(replicas: tuple[int, ...] | None) -> None:
    image = with_change(adding_replicas=(2,), leader=2)
    assert alter(image, replicas) is ErrorCode.NONE
    settled = partition(image)
    assert (settled.replicas, settled.isr, settled.adding_replicas, settled.directories) == ((1,), (1,), (), (DIRECTORY,))
    assert (settled.leader, settled.leader_epoch) == (1, 2)


def test_a_replica_that_was_to_go_stays() -> None:
    image = with_change(removing_replicas=(2,))
    assert alter(image, None) is ErrorCode.NONE
    settled = partition(image)
    assert (settled.replicas, settled.isr, settled.removing_replicas, settled.leader) == ((1, 2), (1, 2), (), 1)


def test_what_has_nobody_in_sync_from_before_cannot_be_cancelled() -> None:
    assert alter(with_change(adding_replicas=(2,), isr=(2,)), None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_partition_that_is_named_twice_is_refused_the_second_time() -> None:
    wanted = [Reassignment("orders", 0, (1, 2)), Reassignment("orders", 0, (2, 1))]
    results = alter_partition_reassignments(with_change(), RULES, wanted, allow_replication_factor_change=True).response
    assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert results[0] == ReassignmentResult("orders", 0)


def test_what_is_under_way_is_listed() -> None:
    image = with_change(adding_replicas=(2,))
    ongoing = [OngoingReassignment("orders", 0, partition(image))]
    assert list(ongoing_reassignments(image, None)) == ongoing
    assert list(ongoing_reassignments(image, [("orders", (0, 1, 0, 9)), ("missing", (0,))])) == ongoing
    assert list(ongoing_reassignments(image, [("orders", (1,))])) == []
    assert list(ongoing_reassignments(with_change(), None)) == []


# -- moves to other brokers ------------------------------------------------------------------------------------------------------


class MovingPartition:
    """orders-0 on brokers 1, 2 and 3 of six, of which broker 6 is fenced, with two in sync at least."""

    def __init__(self, replicas: tuple[int, ...] = (1, 2, 3), minimum: int = 2) -> None:
        self.image = ClusterImage()
        records: list[MetadataRecord] = [
            RegisterBrokerRecord(broker, broker_epoch=broker, fenced=broker == 6, log_dirs=(bytes([broker]) * 16,))
            for broker in range(1, 7)
        ]
        directories = tuple(bytes([broker]) * 16 for broker in replicas)
        records.append(TopicRecord("orders", ID))
        records.append(PartitionRecord(0, ID, replicas, replicas, leader=replicas[0], leader_epoch=0, directories=directories))
        self.image.replay(records, 0)
        self.rules = Rules(minimum)

    @property
    def state(self) -> PartitionImage:
        return partition(self.image)

    def move(self, replicas: tuple[int, ...] | None) -> ErrorCode:
        wanted = [Reassignment("orders", 0, replicas)]
        result = alter_partition_reassignments(self.image, self.rules, wanted, allow_replication_factor_change=True)
        replay(self.image, result.records)
        assert all(len(self.state.directories) == len(self.state.replicas) for _ in result.records)
        return result.response[0].error

    def in_sync(self, *brokers: int) -> PartitionImage:
        """The leader asks for this in-sync set."""
        before = self.state
        members = tuple((broker, broker) for broker in brokers)
        wanted = InSyncChange(ID, 0, before.leader_epoch, before.partition_epoch, members)
        result = alter_partitions(self.image, self.rules, before.leader, before.leader, [wanted])
        assert result.response[0].error is ErrorCode.NONE
        replay(self.image, result.records)
        assert result.response[0].state == self.state
        return self.state


def test_new_replicas_are_added_first() -> None:
    moving = MovingPartition()
    assert moving.move((4, 2, 5)) is ErrorCode.NONE
    state = moving.state
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((4, 2, 5, 1, 3), (4, 5), (1, 3))
    assert (state.leader, state.leader_epoch, state.isr) == (1, 0, (1, 2, 3))
    assert state.directories == tuple(bytes([broker]) * 16 for broker in (4, 2, 5, 1, 3))


def test_a_move_is_complete_when_all_new_replicas_are_in_sync() -> None:
    moving = MovingPartition()
    moving.move((4, 2, 5))
    assert moving.in_sync(1, 2, 3, 4).replicas == (4, 2, 5, 1, 3)
    done = moving.in_sync(1, 2, 3, 4, 5)
    assert (done.replicas, done.isr, done.adding_replicas, done.removing_replicas) == ((4, 2, 5), (2, 4, 5), (), ())
    assert (done.leader, done.leader_epoch) == (4, 1)
    assert list(ongoing_reassignments(moving.image, None)) == []


def test_a_leader_that_stays_goes_on_in_its_epoch() -> None:
    moving = MovingPartition()
    moving.move((1, 2, 4))
    done = moving.in_sync(1, 2, 3, 4)
    assert (done.replicas, done.isr, done.leader, done.leader_epoch) == ((1, 2, 4), (1, 2, 4), 1, 0)


def test_a_move_waits_for_enough_replicas_of_those_that_stay() -> None:
    moving = MovingPartition()
    moving.in_sync(1, 3)
    assert moving.move((2, 3)) is ErrorCode.NONE
    assert (moving.state.replicas, moving.state.removing_replicas) == ((2, 3, 1), (1,))
    done = moving.in_sync(1, 2, 3)
    assert (done.replicas, done.isr, done.leader) == ((2, 3), (2, 3), 2)


def test_fewer_replicas_are_decided_at_once() -> None:
    moving = MovingPartition()
    assert moving.move((3, 2)) is ErrorCode.NONE
    state = moving.state
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((3, 2), (2, 3), 3, 1)


def test_nothing_moves_below_the_minimum_or_to_a_broker_that_is_down() -> None:
    moving = MovingPartition()
    before = moving.state
    for replicas in ((1,), (4,), (1, 2, 6), (1, 2, 7), (4, 4, 5)):
        assert moving.move(replicas) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert moving.state is before


def test_one_replica_can_move_although_the_minimum_is_two() -> None:
    """While the copy is made, the single old replica is enough."""
    moving = MovingPartition((1,))
    assert moving.move((2,)) is ErrorCode.NONE
    assert (moving.state.isr, moving.state.eligible_leader_replicas, moving.state.leader) == ((1,), (), 1)
    done = moving.in_sync(1, 2)
    assert (done.replicas, done.isr, done.leader) == ((2,), (2,), 2)


def test_a_cancelled_move_returns_to_where_it_began() -> None:
    moving = MovingPartition()
    moving.move((4, 5, 3))
    moving.in_sync(1, 2, 3, 4)
    assert moving.move(None) is ErrorCode.NONE
    state = moving.state
    assert (set(state.replicas), set(state.isr), state.leader) == ({1, 2, 3}, {1, 2, 3}, 1)
    assert (state.adding_replicas, state.removing_replicas) == ((), ())
    assert moving.move(None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_another_target_replaces_the_one_before() -> None:
    moving = MovingPartition()
    moving.move((4, 2, 3))
    moving.in_sync(1, 2, 3)
    assert moving.move((5, 2, 3)) is ErrorCode.NONE
    state = moving.state
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((5, 2, 3, 1), (5,), (1,))
    assert moving.move(None) is ErrorCode.NONE
    assert set(moving.state.replicas) == {1, 2, 3}


def test_a_broker_that_dies_does_not_end_a_move() -> None:
    moving = MovingPartition()
    moving.move((4, 2, 5))
    moving.in_sync(1, 2, 3, 4)
    replay(moving.image, fence_broker(moving.image, moving.rules, 1).records)
    state = moving.state
    assert (state.leader, state.adding_replicas, state.isr) == (4, (4, 5), (2, 3, 4))
    assert moving.in_sync(2, 3, 4, 5).replicas == (4, 2, 5)
