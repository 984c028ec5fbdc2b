"""Appends the markers that end a transaction to the partitions of this broker.

A marker for ``__consumer_offsets`` goes through the shard of the group coordinator, which is the only writer of its partition.
Other internal topics have no transactions. A marker for one of them is refused, because it would come between a shard and its
log.

On a topic with relaxed durability the marker waits for a sync all the same. Otherwise a power cut could lose the marker and keep
the records, at a time when no coordinator knows about the transaction any more.
"""

from functools import partial

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.partitions import Partitions
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import OnCommitted
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.log.append_check import AppendOrigin
from tidelog.log.errors import InvalidProducerEpoch
from tidelog.log.producers.producer_state import ProducerState
from tidelog.metadata.topics import GROUPS_TOPIC
from tidelog.ports.clock import Clock
from tidelog.records.control import build_end_transaction_marker
from tidelog.records.topic_partition import TopicPartition
from tidelog.replication.partition import Partition
from tidelog.transactions.end_transaction import TransactionMarker
from tidelog.transactions.transaction import TRANSACTION_VERSION_2
from tidelog.wire.errors import ErrorCode


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
