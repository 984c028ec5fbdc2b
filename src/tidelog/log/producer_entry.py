"""What a log remembers of one producer.

A log may have a hundred thousand of them, so the last batches are packed: five as objects take 900 bytes, in one string of bytes
150. The newest comes first.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from tidelog.records.header import NO_PRODUCER_EPOCH, NO_SEQUENCE, SEQUENCE_COUNT

# Kafka's number: an idempotent producer has at most five requests in flight, so an older batch is never sent again.
BATCHES_KEPT_MAX = 5
NO_TRANSACTION = -1
NO_COORDINATOR_EPOCH = -1

# Last sequence, last offset, offset delta, timestamp.
_BATCH = Struct("<iqiq")
_EARLIER_BYTES_MAX = (BATCHES_KEPT_MAX - 1) * _BATCH.size
_pack = _BATCH.pack


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
    """One producer's epoch, its last batches in that epoch, and its open transaction."""

    __slots__ = (
        "_packed",
        "coordinator_epoch",
        "current_transaction_first_offset",
        "epoch",
        "last_sequence",
        "last_timestamp",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        epoch: int = NO_PRODUCER_EPOCH,
        batches: Iterable[BatchMetadata] = (),
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_timestamp: int = -1,
        current_transaction_first_offset: int = NO_TRANSACTION,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._packed = b""
        self.last_sequence = NO_SEQUENCE
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.current_transaction_first_offset = current_transaction_first_offset
        for batch in batches:
            self.add_batch(*batch)

    def add_batch(self, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None:
        self.last_sequence = last_sequence
        self._packed = _pack(last_sequence, last_offset, offset_delta, timestamp) + self._packed[:_EARLIER_BYTES_MAX]

    def begin_epoch(self, epoch: int) -> None:
        """Sequences begin anew, and no batch of before can come again."""
        self.epoch = epoch
        self.last_sequence = NO_SEQUENCE
        self._packed = b""

    @property
    def batches(self) -> list[BatchMetadata]:
        """Oldest first."""
        return [BatchMetadata(*fields) for fields in _BATCH.iter_unpack(self._packed)][::-1]

    @property
    def last_offset(self) -> int:
        """Of its last batch of records; -1 when it has written none in this epoch."""
        return _BATCH.unpack_from(self._packed)[1] if self._packed else -1

    @property
    def last_offset_delta(self) -> int:
        return _BATCH.unpack_from(self._packed)[2] if self._packed else 0

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
