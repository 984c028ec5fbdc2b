"""AlterPartition: a table of requests by the leader (broker 1) of orders-0, which is on brokers 1, 2, 3 and 4."""

import pytest

from tests.controller.cluster import new_image, replay, topic_id
from tests.controller.test_election import Rules
from tidelog.controller.errors import ApiError
from tidelog.controller.in_sync_set import InSyncChange, InSyncResult, alter_partitions
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from tidelog.wire.errors import ErrorCode

ID = topic_id("orders")
LEADER_EPOCH, PARTITION_EPOCH = 1, 0
MINE = (1, 10)


def image_with_lagging_replicas() -> ClusterImage:
    """Brokers 1 to 4 in epochs 10 to 40; 3 is fenced, 4 is shutting down. Only 1 is in sync, and 2 is eligible."""
    image = new_image((1, 2, 3, 4), orders=1)
    replay(image, [RegisterBrokerRecord(broker, broker_epoch=10 * broker, fenced=broker == 3) for broker in (1, 2, 3, 4)])
    replay(image, [BrokerRegistrationChangeRecord(4, 40, in_controlled_shutdown=1)])
    return replay(image, [PartitionChangeRecord(0, ID, leader=1, isr=(1,), eligible_leader_replicas=(2,))])


def wanted(
    *isr: tuple[int, int], leader_epoch: int = LEADER_EPOCH, partition_epoch: int = PARTITION_EPOCH, recovery: int = 0
) -> InSyncChange:
    return InSyncChange(ID, 0, leader_epoch, partition_epoch, isr, recovery)


def alter(image: ClusterImage, change: InSyncChange, broker: tuple[int, int] = MINE) -> InSyncResult:
    result = alter_partitions(image, Rules(), *broker, [change])
    (answer,) = result.response
    before = image.topics.find_by_id(ID)
    assert before is not None
    replay(image, result.records)
    assert answer.state is None or answer.state == before.partitions[0]
    return answer


def test_a_follower_that_has_caught_up_is_added_and_a_lagging_one_leaves() -> None:
    image = image_with_lagging_replicas()
    added = alter(image, wanted(MINE, (2, 20)))
    assert added.state is not None
    assert (added.state.isr, added.state.eligible_leader_replicas) == ((1, 2), ())
    assert (added.state.leader, added.state.leader_epoch, added.state.partition_epoch) == (1, LEADER_EPOCH, PARTITION_EPOCH + 1)
    left = alter(image, wanted(MINE, partition_epoch=PARTITION_EPOCH + 1))
    assert left.state is not None
    assert (left.state.isr, left.state.eligible_leader_replicas) == ((1,), (2,))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (wanted(MINE, (3, 30)), ErrorCode.INELIGIBLE_REPLICA),
        (wanted(MINE, (4, 40)), ErrorCode.INELIGIBLE_REPLICA),
        (wanted(MINE, (2, 19)), ErrorCode.INELIGIBLE_REPLICA),
        (wanted(MINE, (2, -1)), ErrorCode.NONE),
        (wanted(MINE, (5, 50)), ErrorCode.INVALID_REQUEST),
        (wanted((2, 20)), ErrorCode.INVALID_REQUEST),
        (wanted(), ErrorCode.INVALID_REQUEST),
        (wanted(MINE, MINE), ErrorCode.INVALID_REQUEST),
        (wanted(MINE, (2, 20), leader_epoch=LEADER_EPOCH - 1), ErrorCode.FENCED_LEADER_EPOCH),
        (wanted(MINE, (2, 20), leader_epoch=LEADER_EPOCH + 1), ErrorCode.NOT_CONTROLLER),
        (wanted(MINE, (2, 20), partition_epoch=PARTITION_EPOCH - 1), ErrorCode.INVALID_UPDATE_VERSION),
        (wanted(MINE, (2, 20), partition_epoch=PARTITION_EPOCH + 1), ErrorCode.NOT_CONTROLLER),
        (wanted(MINE, recovery=1), ErrorCode.INVALID_REQUEST),
        (wanted(MINE, recovery=2), ErrorCode.INVALID_REQUEST),
        (InSyncChange(topic_id("nothing"), 0, 0, 0, (MINE,)), ErrorCode.UNKNOWN_TOPIC_ID),
        (InSyncChange(ID, 1, 0, 0, (MINE,)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_what_is_refused(change: InSyncChange, error: ErrorCode) -> None:
    image = image_with_lagging_replicas()
    offset = image.last_offset
    assert alter(image, change).error is error
    assert (image.last_offset > offset) == (error is ErrorCode.NONE)


def test_only_the_leader_may_ask() -> None:
    image = image_with_lagging_replicas()
    assert alter(image, wanted(MINE, (2, 20)), broker=(2, 20)).error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("broker", [(1, 9), (1, 11), (7, 70)])
def test_an_earlier_process_of_the_broker_may_not_ask(broker: tuple[int, int]) -> None:
    with pytest.raises(ApiError) as refused:
        alter(image_with_lagging_replicas(), wanted(MINE), broker)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_after_an_unclean_election_only_the_leader_is_in_sync_until_it_has_recovered() -> None:
    image = image_with_lagging_replicas()
    replay(image, [PartitionChangeRecord(0, ID, leader=1, isr=(1,), leader_recovery_state=1)])
    epochs = {"leader_epoch": LEADER_EPOCH + 1, "partition_epoch": PARTITION_EPOCH + 1}
    assert alter(image, wanted(MINE, (2, 20), recovery=1, **epochs)).error is ErrorCode.INVALID_REQUEST
    recovered = alter(image, wanted(MINE, (2, 20), recovery=0, **epochs))
    assert recovered.state is not None
    assert (recovered.state.isr, recovered.state.leader_recovery_state) == ((1, 2), 0)


def test_each_partition_stands_for_itself() -> None:
    image = image_with_lagging_replicas()
    result = alter_partitions(image, Rules(), *MINE, [wanted(MINE, (3, 30)), wanted(MINE), InSyncChange(ID, 7, 0, 0, (MINE,))])
    assert [answer.error for answer in result.response] == [
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ], "the second one names the partition again"
    assert not result.records


def test_asking_for_the_same_set_voids_earlier_requests() -> None:
    image = image_with_lagging_replicas()
    again = alter(image, wanted(MINE))
    assert again.state is not None
    assert (again.state.isr, again.state.partition_epoch) == ((1,), PARTITION_EPOCH + 1)
    assert alter(image, wanted(MINE, (2, 20))).error is ErrorCode.INVALID_UPDATE_VERSION
