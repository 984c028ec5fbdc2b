from typing import Any

import pytest

from tests.controller.cluster import DIRECTORY, new_image, replay, topic_id
from tidelog.controller.reassignment import (
    OngoingReassignment,
    Reassignment,
    ReassignmentResult,
    alter_partition_reassignments,
    ongoing_reassignments,
)
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage
from tidelog.wire.errors import ErrorCode

ID = topic_id("orders")
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
    result = alter_partition_reassignments(image, wanted, allow_replication_factor_change=allowed)
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


@pytest.mark.parametrize("replicas", [(), (1, 1), (1, 9), (-1,), (1,), (1, 2, 9)])
def test_what_cannot_be_is_refused(replicas: tuple[int, ...]) -> None:
    assert alter(with_change(), replicas) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_another_number_of_replicas_must_be_allowed() -> None:
    assert alter(with_change(), (1,), allowed=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert alter(with_change(), (2, 1), allowed=False) is ErrorCode.NONE


def test_what_does_not_exist_is_unknown() -> None:
    assert alter(with_change(), (1, 2), index=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(with_change(), None, index=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wanted = [Reassignment("missing", 0, (1,))]
    (one,) = alter_partition_reassignments(with_change(), wanted, allow_replication_factor_change=True).response
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


def test_a_partition_that_is_named_twice_is_answered_twice() -> None:
    wanted = [Reassignment("orders", 0, (1, 2)), Reassignment("orders", 0, None)]
    results = alter_partition_reassignments(with_change(), wanted, allow_replication_factor_change=True).response
    assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    assert results[0] == ReassignmentResult("orders", 0)


def test_what_is_under_way_is_listed() -> None:
    image = with_change(adding_replicas=(2,))
    ongoing = [OngoingReassignment("orders", 0, partition(image))]
    assert list(ongoing_reassignments(image, None)) == ongoing
    assert list(ongoing_reassignments(image, [("orders", (0, 1, 0, 9)), ("missing", (0,))])) == ongoing
    assert list(ongoing_reassignments(image, [("orders", (1,))])) == []
    assert list(ongoing_reassignments(with_change(), None)) == []
