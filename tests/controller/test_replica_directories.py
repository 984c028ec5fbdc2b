"""What it means that a broker assigns replicas to log directories, or says that they are lost."""

import pytest

from tests.controller.cluster import DIRECTORY, new_image, replay, topic_id
from tidelog.controller.errors import ApiError
from tidelog.controller.replica_directories import LOST_DIRECTORY, ReplicaDirectory, assign_replicas
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage
from tidelog.wire.errors import ErrorCode

ID = topic_id("orders")
LOST = ReplicaDirectory(LOST_DIRECTORY, ID, 0)
EPOCH = 0


class Rules:
    def min_insync_replicas(self, topic: str) -> int:
        return 2

    def allows_unclean_election(self, topic: str) -> bool:
        return False

    def is_relaxed(self, topic: str) -> bool:
        return False


def decide(image: ClusterImage, broker_id: int, *wanted: ReplicaDirectory) -> list[ErrorCode]:
    """The codes; the image has the records then."""
    result = assign_replicas(image, Rules(), broker_id, EPOCH, wanted)
    replay(image, result.records)
    return [each.error for each in result.response]


def state(image: ClusterImage) -> PartitionImage:
    topic = image.topic("orders")
    assert topic is not None
    return topic.partitions[0]


def test_a_lost_leader_is_replaced_and_leaves_both_sets() -> None:
    image = new_image((1, 2, 3), orders=1)
    assert decide(image, 1, LOST) == [ErrorCode.NONE]
    assert (state(image).leader, state(image).isr, state(image).eligible_leader_replicas) == (2, (2, 3), ())


def test_a_lost_replica_that_is_eligible_is_not_so_any_more() -> None:
    image = new_image((1, 2), orders=1)
    replay(image, [PartitionChangeRecord(0, ID, isr=(1,), eligible_leader_replicas=(2,))])
    assert decide(image, 2, LOST) == [ErrorCode.NONE]
    assert (state(image).leader, state(image).isr, state(image).eligible_leader_replicas) == (1, (1,), ())


@pytest.mark.parametrize("isr", [(1,), ()])
def test_the_last_replica_that_may_lead_is_not_given_up(isr: tuple[int, ...]) -> None:
    image = new_image((1, 2), orders=1)
    replay(image, [PartitionChangeRecord(0, ID, isr=isr, eligible_leader_replicas=() if isr else (1,))])
    before = state(image)
    assert decide(image, 1, LOST) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    assert state(image) == before


def test_a_replica_that_has_left_both_sets_may_be_discarded_without_a_record() -> None:
    image = new_image((1, 2), orders=1)
    replay(image, [PartitionChangeRecord(0, ID, isr=(1,))])
    before = state(image)
    assert decide(image, 2, LOST) == [ErrorCode.NONE]
    assert state(image) == before


def test_a_directory_of_the_broker_is_written_down_once() -> None:
    image = new_image((1, 2), orders=1)
    wanted = ReplicaDirectory(DIRECTORY, ID, 0)
    assert decide(image, 2, wanted) == [ErrorCode.NONE]
    assert state(image).directories == (bytes(16), DIRECTORY)
    assert assign_replicas(image, Rules(), 2, EPOCH, [wanted]).records == []


def test_what_does_not_exist_is_refused_and_stops_nothing_else() -> None:
    image = new_image((1, 2, 3), orders=1)
    unknown = ReplicaDirectory(LOST_DIRECTORY, b"?" * 16, 0), ReplicaDirectory(LOST_DIRECTORY, ID, 9)
    assert decide(image, 1, *unknown, LOST, LOST) == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]


def test_another_broker_and_an_earlier_process_are_refused() -> None:
    image = new_image((1, 2, 3), orders=1)
    replay(image, [PartitionChangeRecord(0, ID, replicas=(1, 2), isr=(1, 2))])
    assert decide(image, 3, LOST) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with pytest.raises(ApiError, match="epoch"):
        assign_replicas(image, Rules(), 1, 7, [LOST])
