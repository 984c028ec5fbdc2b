"""Writes the markers that end a transaction: to the partitions of this broker, or through the brokers that lead the others.

A marker for ``__consumer_offsets`` goes through the shard of the group coordinator, which is the only writer of its partition.
Other internal topics have no transactions. A marker for one of them is refused, because it would come between a shard and its
log.

On a topic with relaxed durability the marker waits for a sync all the same. Otherwise a power cut could lose the marker and keep
the records, at a time when no coordinator knows about the transaction any more.
"""

from functools import partial

from tidelog.broker.broker_channels import BrokerChannels
from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.partitions import Partitions
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import OnCommitted
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.log.append_check import AppendOrigin
from tidelog.log.errors import InvalidProducerEpoch
from tidelog.log.producers.producer_state import ProducerState
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER
from tidelog.metadata.topics import GROUPS_TOPIC
from tidelog.ports.clock import Clock
from tidelog.records.control import ControlType, build_end_transaction_marker
from tidelog.records.topic_partition import TopicPartition
from tidelog.replication.errors import NotLeader
from tidelog.replication.partition import Partition
from tidelog.transactions.end_transaction import TransactionMarker
from tidelog.transactions.transaction import TRANSACTION_VERSION_2
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

WRITE_TXN_MARKERS = ApiKey.WRITE_TXN_MARKERS, 2


class PartitionMarkerWriter:
    __slots__ = ("_clock", "_groups", "_partitions")

    def __init__(self, partitions: Partitions, groups: CoordinatorService[GroupCoordinator], clock: Clock) -> None:
        self._partitions = partitions
        self._groups = groups
        self._clock = clock

    def write(self, partition: TopicPartition, marker: TransactionMarker, on_committed: OnCommitted) -> None:
        topic, index = partition
        found = self._partitions.find(topic, None, index)
        if topic == GROUPS_TOPIC:
            self._write_to_group_coordinator(index, found, marker, on_committed)
        elif found.is_internal:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is an internal topic without transactions")
        else:
            self._write_to_partition(found, marker, on_committed)

    def is_open(self, partition: TopicPartition, producer_id: int) -> bool:
        topic, index = partition
        entry = self._partitions.find(topic, None, index).log.producers.entry(producer_id)
        return entry is not None and entry.current_transaction_first_offset >= 0

    def _write_to_group_coordinator(
        self, index: int, partition: Partition, marker: TransactionMarker, on_committed: OnCommitted
    ) -> None:
        shard = self._groups.shard(index)
        # Check first, once everything that the shard has decided is in the log: a refused append makes the shard drop its state.
        shard.flush()
        check_marker(marker, partition.log.producers)
        producer = marker.producer_id, marker.producer_epoch
        shard.end_transaction(producer, marker.control, partial(self._written, partition, on_committed))

    def _write_to_partition(self, partition: Partition, marker: TransactionMarker, on_committed: OnCommitted) -> None:
        check_marker(marker, partition.log.producers)
        batch = build_end_transaction_marker(
            marker.control,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp=self._clock.now_ms(),
        )
        result = partition.append(batch, True, AppendOrigin.COORDINATOR)
        partition.wait_replicated(result.last_offset + 1, partial(self._written, partition, on_committed))

    def _written(self, partition: Partition, on_committed: OnCommitted, error: Exception | None) -> None:
        if error is None and partition.log.settings.is_relaxed:
            self._partitions.wait_durable(partition, on_committed)
        else:
            on_committed(error)


class ClusterMarkerWriter:
    """Writes markers wherever the partition is led. Another broker is asked with WriteTxnMarkers.

    Only NONE, and an epoch that the partition has left behind, are final. Whatever else another broker answers may be due to old
    metadata, there or here: "no such partition" counts only when this node's own image says so."""

    __slots__ = ("_channels", "_image", "_local", "_node_id")

    def __init__(self, local: PartitionMarkerWriter, image: ClusterImage, node_id: int, channels: BrokerChannels) -> None:
        self._local = local
        self._image = image
        self._node_id = node_id
        self._channels = channels

    def write(self, partition: TopicPartition, marker: TransactionMarker, on_committed: OnCommitted) -> None:
        leader = self._other_leader(partition)
        if leader is None:
            self._local.write(partition, marker, on_committed)
            return
        topic, index = partition
        end = {
            "producer_id": marker.producer_id,
            "producer_epoch": marker.producer_epoch,
            "transaction_result": marker.control.control_type is ControlType.COMMIT,
            "topics": [{"name": topic, "partition_indexes": [index]}],
            "coordinator_epoch": marker.control.coordinator_epoch,
            "transaction_version": marker.transaction_version,
        }

        def replied(response: DecodedMessage) -> None:
            codes = [part.error_code for each in response.markers for found in each.topics for part in found.partitions]
            code = ErrorCode(codes[0]) if len(codes) == 1 else ErrorCode.UNKNOWN_SERVER_ERROR
            if code is ErrorCode.NONE:
                on_committed(None)
            elif code is ErrorCode.INVALID_PRODUCER_EPOCH:
                on_committed(InvalidProducerEpoch(f"broker {leader} refused the marker for {topic}-{index}"))
            else:
                on_committed(NotLeader(f"broker {leader} answered {code.name} for {topic}-{index}"))

        self._channels.request(leader, WRITE_TXN_MARKERS, {"markers": [end]}, replied, on_committed)

    def is_open(self, partition: TopicPartition, producer_id: int) -> bool:
        # What another broker has is not known here, so the marker is tried again.
        return self._other_leader(partition) is not None or self._local.is_open(partition, producer_id)

    def _other_leader(self, partition: TopicPartition) -> int | None:
        found = self._image.topic(partition[0])
        state = found.partitions.get(partition[1]) if found is not None else None
        return state.leader if state is not None and state.leader not in (self._node_id, NO_LEADER) else None


def check_marker(marker: TransactionMarker, producers: ProducerState) -> None:
    """Raise what the log would raise. With transactions v2 the decision raised the epoch, so a transaction that is open in the
    marker's own epoch is a later one, and this marker must not end it."""
    producer_id, producer_epoch = marker.producer_id, marker.producer_epoch
    producers.check_marker(producer_id, producer_epoch, marker.control)
    entry = producers.entry(producer_id)
    if (
        marker.transaction_version >= TRANSACTION_VERSION_2
        and entry is not None
        and entry.current_transaction_first_offset >= 0
        and entry.epoch == producer_epoch
    ):
        raise InvalidProducerEpoch(f"producer {producer_id} has begun another transaction in epoch {producer_epoch}")
