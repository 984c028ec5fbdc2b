"""What a log remembers of one producer."""

from typing import NamedTuple

from tidelog.records.header import NO_PRODUCER_EPOCH, NO_SEQUENCE, SEQUENCE_COUNT

# Kafka's number: an idempotent producer has at most five requests in flight, so an older batch is never sent again.
BATCHES_KEPT_MAX = 5
NO_TRANSACTION = -1
NO_COORDINATOR_EPOCH = -1


class BatchMetadata(NamedTuple):
    """A batch that was written, in as far as it takes to recognise it when it is sent again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % SEQUENCE_COUNT

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer's epoch, its last batches in that epoch (oldest first), and its open transaction."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_transaction_first_offset",
        "epoch",
        "last_timestamp",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        epoch: int = NO_PRODUCER_EPOCH,
        batches: list[BatchMetadata] | None = None,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_timestamp: int = -1,
        current_transaction_first_offset: int = NO_TRANSACTION,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[BatchMetadata] = [] if batches is None else batches
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.current_transaction_first_offset = current_transaction_first_offset

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Of its last batch of records; -1 when it has written none in this epoch."""
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    def snapshot_fields(self) -> tuple[int, int, int, int, int, int, int, int]:
        """What a snapshot keeps of it, in the snapshot's order."""
        return (
            self.producer_id,
            self.epoch,
            self.last_sequence,
            self.last_offset,
            self.last_offset_delta,
            self.last_timestamp,
            self.coordinator_epoch,
            self.current_transaction_first_offset,
        )
