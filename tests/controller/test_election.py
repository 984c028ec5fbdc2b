import pytest

from tests.controller.cluster import new_image, replay, topic_id
from tidelog.controller.election import (
    ElectionResult,
    ElectionType,
    elect_leaders,
    leadership_of_returning_broker,
)
from tidelog.controller.errors import ApiError
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage
from tidelog.wire.errors import ErrorCode

ID = topic_id("orders")
PREFERRED, UNCLEAN = ElectionType


def with_change(**change: object) -> ClusterImage:
    """orders-0 on brokers 1, 2 and 3, of which 3 is fenced."""
    image = new_image((1, 2, 3), fenced=(3,), orders=2)
    return replay(image, [PartitionChangeRecord(0, ID, **change)])  # type: ignore[arg-type]  # names and values of its fields


def partition(image: ClusterImage, index: int = 0) -> PartitionImage:
    topic = image.topic("orders")
    assert topic is not None
    return topic.partitions[index]


def outcome(image: ClusterImage, kind: ElectionType, index: int = 0) -> ErrorCode:
    result = elect_leaders(image, kind, [("orders", index)])
    (election,) = result.response
    assert bool(result.records) == (election.error is ErrorCode.NONE)
    replay(image, result.records)
    return election.error


def test_the_preferred_leader_is_elected_when_it_is_in_sync() -> None:
    image = with_change(leader=2)
    assert outcome(image, PREFERRED) is ErrorCode.NONE
    assert (partition(image).leader, partition(image).leader_epoch) == (1, 2)
    assert outcome(image, PREFERRED) is ErrorCode.ELECTION_NOT_NEEDED


def test_a_preferred_leader_out_of_sync_or_away_is_not_elected() -> None:
    assert outcome(with_change(leader=2, isr=(2,)), PREFERRED) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert outcome(with_change(leader=2, replicas=(3, 2)), PREFERRED) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_an_unclean_election_is_for_partitions_without_a_leader() -> None:
    assert outcome(with_change(leader=2), UNCLEAN) is ErrorCode.ELECTION_NOT_NEEDED


def test_an_unclean_election_takes_who_is_in_sync_first() -> None:
    image = with_change(leader=-1, isr=(2, 3))
    assert outcome(image, UNCLEAN) is ErrorCode.NONE
    assert (partition(image).leader, partition(image).isr, partition(image).leader_recovery_state) == (2, (2, 3), 0)


def test_an_unclean_election_takes_who_is_there() -> None:
    image = with_change(leader=-1, isr=(3,))
    assert outcome(image, UNCLEAN) is ErrorCode.NONE
    assert (partition(image).leader, partition(image).isr, partition(image).leader_recovery_state) == (1, (1,), 1)
    assert outcome(with_change(leader=-1, replicas=(3,)), UNCLEAN) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_partitions_that_are_not_there() -> None:
    result = elect_leaders(new_image(orders=1), PREFERRED, [("orders", 1), ("nothing", 0), ("orders", 1)])
    assert [(election.topic, election.partition, election.error) for election in result.response] == [
        ("orders", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nothing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_all_partitions_are_answered_without_those_that_need_none() -> None:
    result = elect_leaders(with_change(leader=2), PREFERRED, None)
    assert result.response == [ElectionResult("orders", 0)]
    result = elect_leaders(with_change(leader=2, isr=(2,)), PREFERRED, None)
    assert [election.error for election in result.response] == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]


def test_there_are_two_types() -> None:
    with pytest.raises(ApiError) as refused:
        elect_leaders(new_image(), 2, None)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_returning_broker_leads_again_in_a_new_epoch() -> None:
    image = new_image((1, 2), orders=2)
    assert list(leadership_of_returning_broker(image, 1, renew=False)) == []
    assert list(leadership_of_returning_broker(image, 2, renew=True)) == []
    replay(image, list(leadership_of_returning_broker(image, 1, renew=True)))
    assert [partition(image, index).leader_epoch for index in (0, 1)] == [1, 1]


def test_a_returning_broker_takes_what_has_no_leader_if_it_has_the_records() -> None:
    image = with_change(leader=-1, isr=(2,))
    assert list(leadership_of_returning_broker(image, 1, renew=False)) == []
    replay(image, list(leadership_of_returning_broker(image, 2, renew=False)))
    assert (partition(image).leader, partition(image).isr) == (2, (2,))


def test_a_returning_broker_that_left_last_as_kafka_writes_it() -> None:
    image = with_change(leader=-1, isr=(), eligible_leader_replicas=(2,), last_known_elr=(2,))
    assert list(leadership_of_returning_broker(image, 1, renew=False)) == []
    replay(image, list(leadership_of_returning_broker(image, 2, renew=False)))
    found = partition(image)
    assert (found.leader, found.isr, found.eligible_leader_replicas, found.last_known_elr) == (2, (2,), (), ())
