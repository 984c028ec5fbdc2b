"""Reassigns partitions to other brokers, and lists the reassignments in progress.

A reassignment to other brokers lets them catch up first (``adding_replicas``) and removes the old ones at the end
(``removing_replicas``). No broker copies partitions from another yet, so such a request is refused. A new order of the same
brokers only changes the preferred leader and is decided at once. A reassignment that is in progress in metadata written by Kafka
is listed and can be cancelled: the partition keeps the replicas that it had before.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.errors import ApiError
from tidelog.controller.placement import Replicas, check_assignment
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER_CHANGE, MetadataRecord, PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.wire.errors import ErrorCode


class Reassignment(NamedTuple):
    topic: str
    partition: int
    replicas: Replicas | None
    """The new replicas in preferred order; None cancels a reassignment that is in progress."""


class ReassignmentResult(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class OngoingReassignment(NamedTuple):
    topic: str
    partition: int
    state: PartitionImage


def alter_partition_reassignments(
    image: ClusterImage, reassignments: Sequence[Reassignment], *, allow_replication_factor_change: bool
) -> ControllerResult[list[ReassignmentResult]]:
    """Return one result for each, in order, even for a partition that is listed twice, as in Kafka."""
    records: list[MetadataRecord] = []
    results: list[ReassignmentResult] = []
    for wanted in reassignments:
        try:
            change = _change(image, wanted, allow_replication_factor_change)
        except ApiError as error:
            results.append(ReassignmentResult(wanted.topic, wanted.partition, error.code, error.message))
            continue
        results.append(ReassignmentResult(wanted.topic, wanted.partition))
        if change is not None:
            records.append(change)
    return ControllerResult(records, results)


def ongoing_reassignments(
    image: ClusterImage, wanted: Iterable[tuple[str, Sequence[int]]] | None
) -> Iterator[OngoingReassignment]:
    """``wanted`` None means all topics. A partition that does not exist is left out, as in Kafka."""
    if wanted is None:
        wanted = [(topic.name, tuple(topic.partitions)) for topic in image.topics]
    for name, indexes in wanted:
        topic = image.topic(name)
        for index in dict.fromkeys(indexes) if topic is not None else ():
            partition = topic.partitions.get(index) if topic is not None else None
            if partition is not None and _is_under_way(partition):
                yield OngoingReassignment(name, index, partition)


def _change(image: ClusterImage, wanted: Reassignment, allow_replication_factor_change: bool) -> PartitionChangeRecord | None:
    """Return None when there is nothing to change."""
    topic, partition = _find(image, wanted)
    before = tuple(replica for replica in partition.replicas if replica not in partition.adding_replicas)
    if wanted.replicas is None:
        if not _is_under_way(partition):
            raise ApiError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"no reassignment of {wanted.topic}-{wanted.partition} is in progress"
            )
        return _finish(topic, wanted.partition, partition, before)
    target = check_assignment(image, wanted.replicas, None)
    if not allow_replication_factor_change and len(target) != len(before):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{len(target)} replica(s) instead of {len(before)}, which the request does not allow",
        )
    if sorted(target) != sorted(before):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{wanted.topic}-{wanted.partition} is on {list(before)}; moving it to {list(target)} is not supported yet",
        )
    if target == before and not _is_under_way(partition):
        return None
    return _finish(topic, wanted.partition, partition, target)


def _finish(topic: TopicImage, index: int, partition: PartitionImage, replicas: Replicas) -> PartitionChangeRecord:
    """End the reassignment: the partition keeps these of its replicas."""
    isr = tuple(replica for replica in partition.isr if replica in replicas)
    if not isr:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"none of the replicas {list(replicas)} is in sync")
    directories = dict(zip(partition.replicas, partition.directories, strict=False))
    return PartitionChangeRecord(
        index,
        topic.topic_id,
        isr=isr,
        leader=NO_LEADER_CHANGE if partition.leader in replicas else isr[0],
        replicas=replicas,
        removing_replicas=(),
        adding_replicas=(),
        directories=tuple(directories.get(replica, bytes(16)) for replica in replicas),
    )


def _find(image: ClusterImage, wanted: Reassignment) -> tuple[TopicImage, PartitionImage]:
    topic = image.topic(wanted.topic)
    partition = topic.partitions.get(wanted.partition) if topic is not None else None
    if topic is None or partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{wanted.topic}-{wanted.partition} does not exist")
    return topic, partition


def _is_under_way(partition: PartitionImage) -> bool:
    return bool(partition.adding_replicas or partition.removing_replicas)
