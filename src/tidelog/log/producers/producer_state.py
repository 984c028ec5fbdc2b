"""The producers that write to one partition: their ids and epochs, how far each one is, and which transactions are open.

This is Kafka's ProducerStateManager. ``check`` and ``check_marker`` refuse a batch before anything is written. ``update``,
``update_marker`` and ``complete`` follow what was written and never refuse: the log is the truth, and replaying it must give
the same state as living through it. An aborted transaction is entered in the transaction index between
``last_stable_offset_for`` and ``complete``.

A batch is in sequence when it starts one above the producer's last sequence number (0 follows 2^31 - 1). An unknown producer
may start anywhere: its state may have expired, or have been deleted together with its segments.

read_committed may not read past the first unstable offset: the lowest first offset of all open transactions and of those whose
marker is not below the high watermark yet, because that marker could still be lost.

The state lives in memory; producer_snapshot.py writes it to the disk. A snapshot keeps only the last batch of each producer,
and no decided transaction whose marker was above the high watermark, so a reload forgets these. It reads the earlier batches
again from the log (``recall``), as far as they are near.

Invariants: ``_ongoing`` holds exactly the entries' open transactions, ordered by first offset; ``first_unstable_offset`` is the
minimum over ``_ongoing`` and ``_undecided``.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from tidelog.log.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from tidelog.records.control import ControlType, EndTransactionMarker
from tidelog.records.header import NO_PRODUCER_EPOCH, NO_SEQUENCE, SEQUENCE_COUNT, TRANSACTIONAL_MASK, BatchHeader

# Kafka's number: an idempotent producer has at most five requests in flight, so it never resends an older batch.
BATCHES_KEPT_MAX = 5
NO_TRANSACTION = -1
NO_COORDINATOR_EPOCH = -1

# The fields are last sequence, last offset, offset delta, timestamp.
_BATCH = Struct(">iqiq")
_EARLIER_BYTES_MAX = (BATCHES_KEPT_MAX - 1) * _BATCH.size
_pack = _BATCH.pack
# A snapshot's entry: see producer_snapshot.
_pack_snapshot_head = Struct(">qh").pack
_pack_snapshot_tail = Struct(">qiq").pack
_SNAPSHOT_BATCH_BYTES = 16
_NO_SNAPSHOT_BATCH = Struct(">iqi").pack(-1, -1, 0)


class BatchMetadata(NamedTuple):
    """The metadata of a written batch that is needed to recognise it when it is sent again."""

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
    """One producer's epoch, its last batches in that epoch, and its open transaction. A log may have a hundred thousand of these,
    so the batches are packed, newest first: five objects would take 900 bytes, the packed bytes take 150."""

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

    def recall(self, earlier: Iterable[BatchMetadata]) -> None:
        """Add batches of the epoch that were written before those that are known, oldest first."""
        known = self.batches
        self._packed = b""
        for batch in (*earlier, *known):
            self.add_batch(*batch)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch: sequence numbers start again, and no earlier batch can be resent."""
        self.epoch = epoch
        self.last_sequence = NO_SEQUENCE
        self._packed = b""

    @property
    def batches(self) -> list[BatchMetadata]:
        """The batches, oldest first."""
        return [BatchMetadata(*fields) for fields in _BATCH.iter_unpack(self._packed)][::-1]

    @property
    def last_offset(self) -> int:
        """The last offset of its last batch of records; -1 if it has not written any in this epoch."""
        return _BATCH.unpack_from(self._packed)[1] if self._packed else -1

    @property
    def last_offset_delta(self) -> int:
        return _BATCH.unpack_from(self._packed)[2] if self._packed else 0

    def snapshot_fields(self) -> tuple[int, int, int, int, int, int, int, int]:
        """The fields of a snapshot entry, in its order."""
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

    def snapshot_entry(self) -> bytes:
        """The same as bytes. A roll writes the entries of all producers, so the packed batch is copied as it is, without the
        timestamp, which a marker may have changed."""
        return (
            _pack_snapshot_head(self.producer_id, self.epoch)
            + (self._packed[:_SNAPSHOT_BATCH_BYTES] or _NO_SNAPSHOT_BATCH)
            + _pack_snapshot_tail(self.last_timestamp, self.coordinator_epoch, self.current_transaction_first_offset)
        )


_SEQUENCE_MASK = SEQUENCE_COUNT - 1


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended; ``last_offset`` is the marker's offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerState:
    __slots__ = ("_expiration_ms", "_ongoing", "_producers", "_undecided", "first_unstable_offset")

    def __init__(self, expiration_ms: int) -> None:
        self._expiration_ms = expiration_ms
        self._producers: dict[int, ProducerEntry] = {}
        # Maps the first offset to the producer id. Transactions begin at ever higher offsets, so insertion order is offset order.
        self._ongoing: dict[int, int] = {}
        # Maps the first offset to the marker's offset: ended, but the marker is not below the high watermark yet.
        self._undecided: dict[int, int] = {}
        self.first_unstable_offset: int | None = None

    def change_expiration(self, expiration_ms: int) -> None:
        self._expiration_ms = expiration_ms

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    def entry(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    def entries(self) -> list[ProducerEntry]:
        return list(self._producers.values())

    @property
    def oldest_open_transaction(self) -> int | None:
        """The first offset of the transaction that has been open the longest."""
        return next(iter(self._ongoing), None)

    @property
    def open_transaction_count(self) -> int:
        return len(self._ongoing)

    @property
    def oldest_open_producer(self) -> ProducerEntry | None:
        """The producer whose transaction has been open the longest."""
        producer_id = next(iter(self._ongoing.values()), None)
        return None if producer_id is None else self._producers.get(producer_id)

    def check(self, header: BatchHeader) -> BatchMetadata | None:
        """Check whether this client's batch may be written next. If it is a duplicate, returns the batch that was already
        written."""
        entry = self._producers.get(header.producer_id)
        first_sequence = header.base_sequence
        if entry is None:
            if first_sequence < 0:
                raise _no_sequence(header)
            return None
        if header.producer_epoch != entry.epoch or first_sequence != (entry.last_sequence + 1) & _SEQUENCE_MASK:
            duplicate = _check_unusual(header, entry)
            if duplicate is not None:
                return duplicate
        if entry.current_transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL_MASK:
            raise InvalidTransactionState(
                f"producer {header.producer_id} has a transaction open since offset {entry.current_transaction_first_offset} "
                f"and sent a batch that is not part of it"
            )
        return None

    def update(self, header: BatchHeader, base_offset: int) -> None:
        """A batch of records was written, or read back, at ``base_offset``; the offsets in the header itself are ignored."""
        producer_id = header.producer_id
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id, header.producer_epoch)
        elif entry.epoch != header.producer_epoch:
            entry.begin_epoch(header.producer_epoch)
        delta = header.last_offset_delta
        first_sequence = header.base_sequence
        entry.last_timestamp = timestamp = header.max_timestamp
        last_sequence = (first_sequence + delta) & _SEQUENCE_MASK if first_sequence >= 0 else first_sequence
        entry.add_batch(last_sequence, base_offset + delta, delta, timestamp)
        if header.attributes & TRANSACTIONAL_MASK and entry.current_transaction_first_offset < 0:
            entry.current_transaction_first_offset = base_offset
            self._ongoing[base_offset] = producer_id
            if self.first_unstable_offset is None:
                self.first_unstable_offset = base_offset

    def check_marker(self, producer_id: int, producer_epoch: int, marker: EndTransactionMarker) -> None:
        """Check whether this transaction marker may be written."""
        entry = self._producers.get(producer_id)
        if entry is None:
            return
        if producer_epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"a transaction marker has epoch {producer_epoch} of producer {producer_id}, which is at epoch {entry.epoch}"
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"a transaction marker for producer {producer_id} has coordinator epoch {marker.coordinator_epoch}, the last one "
                f"had {entry.coordinator_epoch}"
            )

    def update_marker(
        self, producer_id: int, producer_epoch: int, marker: EndTransactionMarker, offset: int, timestamp: int
    ) -> CompletedTransaction | None:
        """A transaction marker was written, or read back, at ``offset``. Returns the transaction that it ended, if any."""
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id, producer_epoch)
        elif entry.epoch != producer_epoch:
            entry.begin_epoch(producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp
        first_offset = entry.current_transaction_first_offset
        if first_offset < 0:
            return None
        entry.current_transaction_first_offset = NO_TRANSACTION
        return CompletedTransaction(producer_id, first_offset, offset, marker.control_type == ControlType.ABORT)

    def last_stable_offset_for(self, completed: CompletedTransaction) -> int:
        """Where the last stable offset will be once this transaction's marker is below the high watermark."""
        for first_offset in self._ongoing:
            if first_offset != completed.first_offset:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTransaction) -> None:
        """The transaction is no longer open, but stays unstable until the high watermark has passed its marker."""
        del self._ongoing[completed.first_offset]
        self._undecided[completed.first_offset] = completed.last_offset

    def on_high_watermark(self, offset: int) -> None:
        """Transactions whose marker is below ``offset`` are decided. Also called when the log start offset has moved up."""
        undecided = self._undecided
        if not undecided:
            return
        decided = [first_offset for first_offset, marker_offset in undecided.items() if marker_offset < offset]
        if decided:
            for first_offset in decided:
                del undecided[first_offset]
            self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        first_ongoing = next(iter(self._ongoing), None)
        first_undecided = min(self._undecided, default=None)
        if first_ongoing is None or (first_undecided is not None and first_undecided < first_ongoing):
            self.first_unstable_offset = first_undecided
        else:
            self.first_unstable_offset = first_ongoing

    def remove_expired(self, now_ms: int) -> int:
        """Forget producers that have not written for ``expiration_ms``, unless they have a transaction open. Returns how many."""
        last_timestamp_max = now_ms - self._expiration_ms
        expired = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.last_timestamp <= last_timestamp_max and entry.current_transaction_first_offset < 0
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def clear(self) -> None:
        self._producers = {}
        self._ongoing = {}
        self._undecided = {}
        self.first_unstable_offset = None

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Take over the state of a snapshot, and ownership of its entries."""
        self.clear()
        self._producers = {entry.producer_id: entry for entry in entries}
        ongoing = [
            (entry.current_transaction_first_offset, entry.producer_id)
            for entry in self._producers.values()
            if entry.current_transaction_first_offset >= 0
        ]
        self._ongoing = dict(sorted(ongoing))
        self._find_first_unstable()

    def describe(self) -> dict[str, object]:
        """Everything that a state rebuilt from a snapshot and the log must share with this one."""
        return {
            "producers": sorted(entry.snapshot_fields() for entry in self._producers.values()),
            "open_transactions": list(self._ongoing.items()),
        }


def _check_unusual(header: BatchHeader, entry: ProducerEntry) -> BatchMetadata | None:
    """Check a batch that does not simply follow its producer's last one: a duplicate, the first one of an epoch, or an error."""
    producer_id, epoch, first_sequence = header.producer_id, header.producer_epoch, header.base_sequence
    if epoch < entry.epoch:
        raise InvalidProducerEpoch(f"producer {producer_id} sent a batch of epoch {epoch}, but is at epoch {entry.epoch}")
    if first_sequence < 0:
        raise _no_sequence(header)
    if epoch > entry.epoch:
        if first_sequence != 0:
            raise OutOfOrderSequence(
                f"producer {producer_id} must start its new epoch {epoch} at sequence 0, but sent {first_sequence}"
            )
        return None
    batches = entry.batches
    if not batches:
        if first_sequence != 0:
            raise OutOfOrderSequence(f"producer {producer_id} must start epoch {epoch} at sequence 0, but sent {first_sequence}")
        return None
    last_sequence = (first_sequence + header.last_offset_delta) & _SEQUENCE_MASK
    for batch in batches:
        if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
            return batch
    expected = (batches[-1].last_sequence + 1) & _SEQUENCE_MASK
    raise OutOfOrderSequence(
        f"producer {producer_id}, epoch {epoch}: the next sequence is {expected}, the batch has {first_sequence} "
        f"to {last_sequence}"
    )


def _no_sequence(header: BatchHeader) -> InvalidRecord:
    return InvalidRecord(f"a batch of producer {header.producer_id} has no sequence number: {header.base_sequence}")
