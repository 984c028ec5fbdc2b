"""Decides on changes of in-sync sets, which the leaders of partitions ask for (AlterPartition).

A leader removes followers that lag and adds those that have caught up. It names the leader epoch and the partition epoch on which
its view is based; if the partition has changed since, the request is refused, and the leader looks at the metadata again. A
member must be registered with the epoch that the leader has seen, and neither fenced nor shutting down (KIP-841, KIP-903): a
broker that has been restarted since may have lost what the leader believes it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.election import RECOVERED, RECOVERING, PartitionChange, TopicElectionRules
from tidelog.controller.errors import ApiError
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import BrokerIds, MetadataRecord, PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage, changed_partition
from tidelog.wire.errors import ErrorCode

ANY_BROKER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class InSyncChange:
    """The in-sync set that a leader asks for."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """(broker id, broker epoch) pairs; epoch -1 is not checked."""
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True)
class InSyncResult:
    topic_id: bytes
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: PartitionImage | None = None
    """The partition after the change."""


def check_broker_epoch(image: ClusterImage, broker_id: int, broker_epoch: int) -> None:
    """Refuse the request of a broker that is not registered, or of an earlier process of it."""
    broker = image.brokers.find(broker_id)
    if broker is None:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered")
    if broker.broker_epoch != broker_epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} is registered with epoch {broker.broker_epoch}, the request has epoch {broker_epoch}",
        )


def alter_partitions(
    image: ClusterImage, rules: TopicElectionRules, broker_id: int, broker_epoch: int, changes: Sequence[InSyncChange]
) -> ControllerResult[list[InSyncResult]]:
    """Return one result for each change, in order. Refusing one does not stop the others."""
    check_broker_epoch(image, broker_id, broker_epoch)
    records: list[MetadataRecord] = []
    results: list[InSyncResult] = []
    named: set[tuple[bytes, int]] = set()
    for change in changes:
        place = (change.topic_id, change.partition)
        try:
            if place in named:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the request names the partition twice")
            named.add(place)
            record, state = _alter(image, rules, broker_id, change)
        except ApiError as error:
            results.append(InSyncResult(*place, error.code, error.message))
            continue
        records += record
        results.append(InSyncResult(*place, state=state))
    return ControllerResult(records, results)


def _alter(
    image: ClusterImage, rules: TopicElectionRules, broker_id: int, wanted: InSyncChange
) -> tuple[list[PartitionChangeRecord], PartitionImage]:
    topic = image.topic_by_id(wanted.topic_id)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    partition = topic.partitions.get(wanted.partition)
    place = f"{topic.name}-{wanted.partition}"
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{place} does not exist")
    _check_epochs(place, partition, broker_id, wanted)
    isr = tuple(member for member, _ in wanted.isr)
    _check_members(place, partition, isr, wanted.leader_recovery_state)
    _check_eligible(image, place, wanted)
    outcome = PartitionChange(
        topic,
        wanted.partition,
        image.brokers.is_active,
        rules.min_insync_replicas(topic.name),
        isr,
        leader_recovery_state=wanted.leader_recovery_state,
    ).decide()
    # The leader is in the set that it asks for and has just been found to be active. It stays, unless this completes a move of
    # the partition to other brokers.
    if not outcome.records:
        # The leader asks for the set that it has, because it does not know what became of an earlier request. A record without a
        # change begins a partition epoch, and the earlier request cannot be decided any more.
        outcome.records.append(PartitionChangeRecord(wanted.partition, topic.topic_id, isr=isr))
    for record in outcome.records:
        partition = changed_partition(partition, record)
    return outcome.records, partition


def _check_epochs(place: str, partition: PartitionImage, broker_id: int, wanted: InSyncChange) -> None:
    if wanted.leader_epoch > partition.leader_epoch or wanted.partition_epoch > partition.partition_epoch:
        # Somebody else is the active controller by now, and knows more.
        raise ApiError(ErrorCode.NOT_CONTROLLER, f"the request about {place} has an epoch that this controller does not know")
    if wanted.leader_epoch < partition.leader_epoch:
        raise ApiError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"{place} is in leader epoch {partition.leader_epoch}, the request has epoch {wanted.leader_epoch}",
        )
    if partition.leader != broker_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{place} is led by broker {partition.leader}, not by broker {broker_id}")
    if wanted.partition_epoch < partition.partition_epoch:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{place} is in partition epoch {partition.partition_epoch}, the request has epoch {wanted.partition_epoch}",
        )


def _check_members(place: str, partition: PartitionImage, isr: BrokerIds, recovery_state: int) -> None:
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"{list(isr)} are not replicas of {place}, which is on {list(partition.replicas)}"
        )
    if partition.leader not in isr:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"the in-sync set {list(isr)} of {place} is without its leader")
    if recovery_state not in (RECOVERED, RECOVERING):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no leader recovery state {recovery_state}")
    if recovery_state == RECOVERING and len(isr) > 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"{place} has not recovered from an unclean election, so only its leader is in sync"
        )
    if recovery_state == RECOVERING and partition.leader_recovery_state == RECOVERED:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{place} has recovered already")


def _check_eligible(image: ClusterImage, place: str, wanted: InSyncChange) -> None:
    for member, broker_epoch in wanted.isr:
        broker = image.brokers.find(member)
        if broker is None:
            reason = "is not registered"
        elif broker.in_controlled_shutdown:
            reason = "is shutting down"
        elif broker.fenced:
            reason = "is fenced"
        elif broker_epoch not in (ANY_BROKER_EPOCH, broker.broker_epoch):
            reason = f"is registered with epoch {broker.broker_epoch}, the leader has seen epoch {broker_epoch}"
        else:
            continue
        raise ApiError(ErrorCode.INELIGIBLE_REPLICA, f"broker {member} cannot be in sync for {place}: it {reason}")
