"""Producers, remembered in full: what ProducerState must agree with.

Sequence numbers here never wrap, batches are never forgotten, and every question is answered by looking at all of it. Only where
the batches of a client become a header are the numbers brought into Kafka's range.
"""

from dataclasses import dataclass, field

from tidelog.records.header import HEADER_SIZE, LOG_OVERHEAD, TRANSACTIONAL_MASK, BatchHeader

SEQUENCES = 2**31


def batch_header(
    producer_id: int,
    epoch: int,
    first_sequence: int,
    count: int,
    *,
    transactional: bool = False,
    timestamp: int = 1000,
) -> BatchHeader:
    attributes = TRANSACTIONAL_MASK if transactional else 0
    length = HEADER_SIZE - LOG_OVERHEAD
    sequence = first_sequence % SEQUENCES if first_sequence >= 0 else first_sequence
    return BatchHeader(0, length, -1, 2, 0, attributes, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count)


@dataclass
class WrittenBatch:
    first_sequence: int
    last_sequence: int
    last_offset: int


@dataclass
class Transaction:
    producer_id: int
    first_offset: int
    marker_offset: int | None = None


@dataclass
class Producer:
    epoch: int
    batches: list[WrittenBatch] = field(default_factory=list)
    coordinator_epoch: int = -1
    last_timestamp: int = -1

    @property
    def next_sequence(self) -> int:
        return self.batches[-1].last_sequence + 1 if self.batches else 0

    def enter_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = []


class ProducerModel:
    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        self.transactions: list[Transaction] = []

    def open_transaction(self, producer_id: int) -> Transaction | None:
        for transaction in self.transactions:
            if transaction.producer_id == producer_id and transaction.marker_offset is None:
                return transaction
        return None

    def verdict(self, producer_id: int, epoch: int, first_sequence: int, count: int, transactional: bool) -> str | int:
        """What ``check`` says: the name of an error, "write" or the last offset of the batch that this one repeats."""
        producer = self.producers.get(producer_id)
        if producer is None:
            return "write"
        if epoch < producer.epoch:
            return "InvalidProducerEpoch"
        if epoch > producer.epoch:
            if first_sequence % SEQUENCES:
                return "OutOfOrderSequence"
        elif first_sequence != producer.next_sequence:
            last_sequence = first_sequence + count - 1
            for batch in producer.batches[-5:]:
                if (batch.first_sequence, batch.last_sequence) == (first_sequence, last_sequence):
                    return batch.last_offset
            return "OutOfOrderSequence"
        if not transactional and self.open_transaction(producer_id) is not None:
            return "InvalidTransactionState"
        return "write"

    def write(self, producer_id: int, epoch: int, first_sequence: int, count: int, transactional: bool, offset: int) -> None:
        producer = self.producers.setdefault(producer_id, Producer(epoch))
        producer.enter_epoch(epoch)
        producer.batches.append(WrittenBatch(first_sequence, first_sequence + count - 1, offset + count - 1))
        if transactional and self.open_transaction(producer_id) is None:
            self.transactions.append(Transaction(producer_id, offset))

    def write_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int) -> Transaction | None:
        producer = self.producers.setdefault(producer_id, Producer(epoch))
        producer.enter_epoch(epoch)
        producer.coordinator_epoch = coordinator_epoch
        transaction = self.open_transaction(producer_id)
        if transaction is not None:
            transaction.marker_offset = offset
        return transaction

    def decide(self, high_watermark: int) -> None:
        self.transactions = [
            transaction
            for transaction in self.transactions
            if transaction.marker_offset is None or transaction.marker_offset >= high_watermark
        ]

    @property
    def first_unstable_offset(self) -> int | None:
        return min((transaction.first_offset for transaction in self.transactions), default=None)

    @property
    def open_first_offsets(self) -> list[int]:
        return sorted(transaction.first_offset for transaction in self.transactions if transaction.marker_offset is None)

    def reload(self) -> None:
        """What a snapshot does not keep is gone."""
        for producer in self.producers.values():
            del producer.batches[:-1]
        self.transactions = [transaction for transaction in self.transactions if transaction.marker_offset is None]
