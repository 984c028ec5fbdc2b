"""The settings, ports and callbacks that the broker hands to every shard of the transaction coordinator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.coordinator.machine import ShardTimers
from tidelog.ports.clock import Clock
from tidelog.transactions.producer_ids import ProducerIds

if TYPE_CHECKING:
    from tidelog.transactions.end_transaction import MarkersToWrite


@dataclass(frozen=True, slots=True)
class TransactionEnvironment:
    clock: Clock
    settings: Mapping[str, Any]
    """The broker's settings, parsed, under Kafka's names."""
    timers: ShardTimers
    producer_ids: ProducerIds
    send_markers: "Callable[[MarkersToWrite], None]"
    """Writes the markers later, and retries until all are written or the batch is cancelled. It must neither raise nor report a
    written marker before it returns."""
    coordinator_epoch: Callable[[str], int]
    """The leader epoch of the partition that a transactional id belongs to."""
    transaction_version: Callable[[], int]
    """The finalized level of the feature ``transaction.version``."""
    record_bytes_max: Callable[[], int]
    """The largest batch that the shard's log accepts."""
    report: Callable[[str, dict[str, object]], None]
    """Reports an event to the operator."""
