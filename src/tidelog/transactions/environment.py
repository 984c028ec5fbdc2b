"""What every part of the transaction coordinator is given."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidelog.coordinator.machine import Cancellable
from tidelog.coordinator.shard_timers import ShardTimers
from tidelog.ports.clock import Clock
from tidelog.transactions.producer_ids import ProducerIds
from tidelog.transactions.records import TopicPartitions


class MarkersToSend(NamedTuple):
    """A decision that is durable, to be told to every partition of the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    partitions: tuple[TopicPartitions, ...]
    transaction_version: int
    """Of the client. From 2 on the marker's epoch is above that of the transaction's records."""


OnPartitionMarked = Callable[[str, int], None]
"""Topic and partition: its marker is committed, or it no longer exists. Each is told once."""

SendMarkers = Callable[[MarkersToSend, OnPartitionMarked], Cancellable]
"""Sends in its own time and never gives up by itself. After ``cancel`` nothing more is written: who is told to stop may no longer
be the coordinator, and a late marker could end the producer's next transaction. Does not call back before it returns; must not
raise."""


class TransactionEnvironment:
    """``settings`` are the broker's, parsed, under Kafka's names. ``report`` tells the operator what happened."""

    __slots__ = (
        "clock",
        "coordinator_epoch",
        "producer_ids",
        "record_bytes_max",
        "report",
        "send_markers",
        "settings",
        "timers",
        "transaction_version",
    )

    def __init__(
        self,
        *,
        clock: Clock,
        settings: Mapping[str, Any],
        timers: ShardTimers,
        producer_ids: ProducerIds,
        send_markers: SendMarkers,
        coordinator_epoch: Callable[[str], int],
        transaction_version: Callable[[], int],
        record_bytes_max: Callable[[], int],
        report: Callable[[str, dict[str, object]], None],
    ) -> None:
        """``coordinator_epoch`` gives the leader epoch of the partition that a transactional id belongs to,
        ``transaction_version`` the finalized level of that feature, ``record_bytes_max`` the largest batch that the shard's log
        takes."""
        self.clock = clock
        self.settings = settings
        self.timers = timers
        self.producer_ids = producer_ids
        self.send_markers = send_markers
        self.coordinator_epoch = coordinator_epoch
        self.transaction_version = transaction_version
        self.record_bytes_max = record_bytes_max
        self.report = report
