"""Reassigns partitions to other brokers, and lists the reassignments in progress (KIP-455).

A partition that moves has the brokers of both assignments as replicas, the new ones first. The new ones (``adding_replicas``)
copy it from the leader like any other follower. When all of them are in sync, the old ones (``removing_replicas``) leave, and if
the leader was one of them, one of the new ones leads. ``controller.election`` decides that with the change of the in-sync set, so
a move needs nobody to watch it: it goes on when the controller or the brokers restart.

A new order of the same brokers, or fewer of them, is decided at once. Cancelling returns to the replicas from before the move.
Beyond what Kafka refuses, an added broker has to be active, and nothing may move below ``min.insync.replicas``.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.election import (
    PartitionChange,
    ReplicaAssignment,
    TopicElectionRules,
    effective_min_insync,
    replicas_of,
)
from tidelog.controller.errors import ApiError
from tidelog.controller.placement import Replicas, check_assignment, directory_of
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER, MetadataRecord, PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.records.topic_partition import TopicPartition
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
    image: ClusterImage,
    rules: TopicElectionRules,
    reassignments: Sequence[Reassignment],
    *,
    allow_replication_factor_change: bool,
) -> ControllerResult[list[ReassignmentResult]]:
    """Return one result for each, in order. A partition that is listed twice is refused the second time."""
    records: list[MetadataRecord] = []
    results: list[ReassignmentResult] = []
    named: set[TopicPartition] = set()
    for wanted in reassignments:
        place = (wanted.topic, wanted.partition)
        try:
            if place in named:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"the request names {wanted.topic}-{wanted.partition} twice")
            named.add(place)
            if not allow_replication_factor_change:
                _check_replication_factor(image, wanted)
            records += _change(image, rules, wanted)
        except ApiError as error:
            results.append(ReassignmentResult(wanted.topic, wanted.partition, error.code, error.message))
            continue
        results.append(ReassignmentResult(wanted.topic, wanted.partition))
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
            if partition is not None and replicas_of(partition).is_moving:
                yield OngoingReassignment(name, index, partition)


def _change(image: ClusterImage, rules: TopicElectionRules, wanted: Reassignment) -> Sequence[PartitionChangeRecord]:
    """Return no record when there is nothing to change."""
    topic, partition = _find(image, wanted)
    before = replicas_of(partition)
    if wanted.replicas is None:
        if not before.is_moving:
            raise ApiError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"no reassignment of {wanted.topic}-{wanted.partition} is in progress"
            )
        assignment = ReplicaAssignment(before.settled)
    else:
        assignment = _new_assignment(image, rules, wanted, before.settled)
    if assignment == before:
        return ()
    outcome = PartitionChange(
        topic,
        wanted.partition,
        image.brokers.is_active,
        rules.min_insync_replicas(topic.name),
        partition.isr,
        assignment=assignment,
        new_directories={broker_id: directory_of(image, broker_id) for broker_id in assignment.adding},
    ).decide()
    had_leader = partition.leader != NO_LEADER
    if any(election.is_unclean or (had_leader and election.leader == NO_LEADER) for election in outcome.elections):
        raise _invalid(f"none of the replicas {list(assignment.replicas)} of {wanted.topic}-{wanted.partition} is in sync")
    return outcome.records


def _new_assignment(image: ClusterImage, rules: TopicElectionRules, wanted: Reassignment, settled: Replicas) -> ReplicaAssignment:
    """Move to the wanted replicas from those of before. Replicas that an unfinished move was adding go at once, unless they are
    wanted again, so that cancelling always leads back to where the first move began."""
    place = f"{wanted.topic}-{wanted.partition}"
    target = check_assignment(image, wanted.replicas or (), None)
    adding = tuple(replica for replica in target if replica not in settled)
    removing = tuple(replica for replica in settled if replica not in target)
    for broker_id in adding:
        if not image.brokers.is_active(broker_id):
            raise _invalid(f"{place} cannot move to broker {broker_id}, which is fenced or shutting down: start it first")
    minimum = effective_min_insync(rules.min_insync_replicas(wanted.topic), settled)
    if len(target) < minimum:
        raise _invalid(f"{len(target)} replica(s) of {place} are fewer than the {minimum} of its min.insync.replicas")
    return ReplicaAssignment((*target, *removing), adding, removing)


def _check_replication_factor(image: ClusterImage, wanted: Reassignment) -> None:
    _, partition = _find(image, wanted)
    settled = replicas_of(partition).settled
    if wanted.replicas is not None and len(wanted.replicas) != len(settled):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{len(wanted.replicas)} replica(s) instead of {len(settled)}, which the request does not allow",
        )


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _find(image: ClusterImage, wanted: Reassignment) -> tuple[TopicImage, PartitionImage]:
    topic = image.topic(wanted.topic)
    partition = topic.partitions.get(wanted.partition) if topic is not None else None
    if topic is None or partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{wanted.topic}-{wanted.partition} does not exist")
    return topic, partition
