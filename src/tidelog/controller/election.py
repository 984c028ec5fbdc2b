"""Elects leaders, on request and when a broker returns.

A *preferred* election makes a partition's first replica its leader, if that is in sync. An *unclean* one gives a partition
without a leader to any active replica; the records that this replica lacks are lost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.errors import ApiError
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER, MetadataRecord, PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.records.topic_partition import TopicPartition
from tidelog.wire.errors import ErrorCode

RECOVERING = 1


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectionResult:
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def elect_leaders(
    image: ClusterImage, election_type: int, partitions: Sequence[TopicPartition] | None
) -> ControllerResult[list[ElectionResult]]:
    """``partitions`` None means all; partitions that need no election are then left out of the response, as in Kafka."""
    if election_type not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no election type {election_type}")
    wanted = partitions
    if wanted is None:
        wanted = [(topic.name, index) for topic in image.topics for index in topic.partitions]
    records: list[MetadataRecord] = []
    results: list[ElectionResult] = []
    for name, index in dict.fromkeys(wanted):
        try:
            topic, partition = _find(image, name, index)
            records.append(_elect(image, election_type, topic, index, partition))
            results.append(ElectionResult(name, index))
        except ApiError as error:
            if partitions is not None or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                results.append(ElectionResult(name, index, error.code, error.message))
    return ControllerResult(records, results)


def _find(image: ClusterImage, name: str, index: int) -> tuple[TopicImage, PartitionImage]:
    topic = image.topic(name)
    partition = topic.partitions.get(index) if topic is not None else None
    if topic is None or partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{index} does not exist")
    return topic, partition


def _elect(
    image: ClusterImage, election_type: int, topic: TopicImage, index: int, partition: PartitionImage
) -> PartitionChangeRecord:
    place = f"{topic.name}-{index}"
    if election_type == ElectionType.PREFERRED:
        preferred = partition.replicas[0]
        if partition.leader == preferred:
            raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, f"{place} is led by its preferred leader")
        if preferred not in partition.isr or not image.brokers.is_active(preferred):
            raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {preferred} is not in sync for {place}")
        return PartitionChangeRecord(index, topic.topic_id, leader=preferred)
    if partition.leader != NO_LEADER:
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, f"{place} has a leader")
    in_sync = [replica for replica in partition.replicas if replica in partition.isr and image.brokers.is_active(replica)]
    if in_sync:
        return PartitionChangeRecord(index, topic.topic_id, leader=in_sync[0])
    for replica in partition.replicas:
        if image.brokers.is_active(replica):
            return PartitionChangeRecord(index, topic.topic_id, isr=(replica,), leader=replica, leader_recovery_state=RECOVERING)
    raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"no replica of {place} is active")


def leadership_of_returning_broker(image: ClusterImage, broker_id: int, *, renew: bool) -> Iterator[PartitionChangeRecord]:
    """Make a returning broker the leader of partitions that have no leader and whose records it certainly has (it was in sync, or
    eligible when the last leader left). With ``renew`` it also begins a new leader epoch where it leads already: a crash may have
    lost records that were read."""
    for topic in image.topics:
        for index, partition in topic.partitions.items():
            if partition.leader == broker_id:
                if renew:
                    yield PartitionChangeRecord(index, topic.topic_id, leader=broker_id)
            elif partition.leader == NO_LEADER and broker_id in partition.isr:
                yield PartitionChangeRecord(index, topic.topic_id, leader=broker_id)
            elif partition.leader == NO_LEADER and not partition.isr and broker_id in partition.eligible_leader_replicas:
                yield PartitionChangeRecord(
                    index,
                    topic.topic_id,
                    isr=(broker_id,),
                    leader=broker_id,
                    eligible_leader_replicas=(),
                    last_known_elr=(),
                )
