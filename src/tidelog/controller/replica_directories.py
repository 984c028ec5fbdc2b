"""Decides what it means that a broker assigns its replicas to log directories (AssignReplicasToDirs, KIP-858).

A broker that assigns a replica to a directory without being registered with it says that the replica is lost: it is damaged, or
its disk has failed. ``LOST_DIRECTORY`` is the id for that. The replica leaves the in-sync set and the eligible replicas, and
another one leads; only when the answer says so may the broker discard it and copy it again. The last replica that may lead is not
abandoned: what is left of it is the best there is, and the operator decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.election import TopicElectionRules, replica_lost
from tidelog.controller.errors import ApiError
from tidelog.controller.in_sync_set import check_broker_epoch
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import MetadataRecord, PartitionChangeRecord
from tidelog.metadata.topics import TopicImage
from tidelog.wire.errors import ErrorCode

LOST_DIRECTORY = bytes(15) + b"\x01"
NO_DIRECTORY = bytes(16)


@dataclass(frozen=True, slots=True)
class ReplicaDirectory:
    directory: bytes
    topic_id: bytes
    partition: int


@dataclass(frozen=True, slots=True)
class ReplicaDirectoryResult:
    wanted: ReplicaDirectory
    error: ErrorCode = ErrorCode.NONE


def assign_replicas(
    image: ClusterImage,
    rules: TopicElectionRules,
    broker_id: int,
    broker_epoch: int,
    assignments: Sequence[ReplicaDirectory],
) -> ControllerResult[list[ReplicaDirectoryResult]]:
    """Return one result for each, in order. A partition that is named twice is refused the second time."""
    check_broker_epoch(image, broker_id, broker_epoch)
    broker = image.brokers.find(broker_id)
    log_dirs = broker.log_dirs if broker is not None else ()
    records: list[MetadataRecord] = []
    results: list[ReplicaDirectoryResult] = []
    named: set[tuple[bytes, int]] = set()
    for wanted in assignments:
        place = (wanted.topic_id, wanted.partition)
        try:
            if place in named:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the request names the partition twice")
            named.add(place)
            topic = _find(image, broker_id, wanted)
            if wanted.directory in log_dirs:
                records += _assign(topic, broker_id, wanted)
            else:
                records += _lose(image, rules, topic, broker_id, wanted.partition)
        except ApiError as error:
            results.append(ReplicaDirectoryResult(wanted, error.code))
        else:
            results.append(ReplicaDirectoryResult(wanted))
    return ControllerResult(records, results)


def _find(image: ClusterImage, broker_id: int, wanted: ReplicaDirectory) -> TopicImage:
    topic = image.topic_by_id(wanted.topic_id)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    partition = topic.partitions.get(wanted.partition)
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name}-{wanted.partition} does not exist")
    if broker_id not in partition.replicas:
        message = f"broker {broker_id} is not a replica of {topic.name}-{wanted.partition}"
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
    return topic


def _assign(topic: TopicImage, broker_id: int, wanted: ReplicaDirectory) -> list[PartitionChangeRecord]:
    partition = topic.partitions[wanted.partition]
    known = dict(zip(partition.replicas, partition.directories, strict=False))
    if known.get(broker_id) == wanted.directory:
        return []
    known[broker_id] = wanted.directory
    directories = tuple(known.get(replica, NO_DIRECTORY) for replica in partition.replicas)
    return [PartitionChangeRecord(wanted.partition, topic.topic_id, directories=directories)]


def _lose(
    image: ClusterImage, rules: TopicElectionRules, topic: TopicImage, broker_id: int, index: int
) -> list[PartitionChangeRecord]:
    partition = topic.partitions[index]
    if not {*partition.isr, *partition.eligible_leader_replicas} - {broker_id}:
        message = f"nobody else may lead {topic.name}-{index}"
        raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)
    return replica_lost(image, rules, broker_id, [(topic, index)]).records
