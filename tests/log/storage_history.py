"""What follows from the batches that a log was given: producers and transactions, worked out by other code than the log's.

The history is all that was ever appended and not truncated, what was deleted since included.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from tidelog.records.batch import read_records
from tidelog.records.control import ControlType, EndTransactionMarker, read_end_transaction_marker
from tidelog.records.header import BatchHeader, iterate_headers, read_header
from tidelog.records.record import Record

SIZE_MAX = 1 << 20


class Decoded(NamedTuple):
    header: BatchHeader
    records: tuple[Record, ...]
    marker: EndTransactionMarker | None


@lru_cache(maxsize=20_000)
def decoded(data: bytes) -> Decoded:
    header = read_header(data)
    marker = read_end_transaction_marker(data, 0, header) if header.is_control and header.record_count else None
    records = () if header.is_control else tuple(read_records(data, 0, header, size_max=SIZE_MAX, count_max=SIZE_MAX))
    return Decoded(header, records, marker)


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    data: bytes

    @property
    def header(self) -> BatchHeader:
        return decoded(self.data).header

    @property
    def records(self) -> tuple[Record, ...]:
        return decoded(self.data).records

    @property
    def marker(self) -> EndTransactionMarker | None:
        return decoded(self.data).marker


def split(data: bytes) -> list[Batch]:
    """The whole batches in ``data``; a cut-off one at its end is left out."""
    return [Batch(header.base_offset, header.last_offset, data[at : at + header.size]) for at, header in iterate_headers(data)]


@dataclass(slots=True)
class Producer:
    """What a log must know of a producer, in the order of a snapshot's fields."""

    producer_id: int
    epoch: int
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1
    batches: list[Batch] = field(default_factory=list)

    def snapshot_fields(self) -> tuple[int, ...]:
        return (
            self.producer_id,
            self.epoch,
            self.last_sequence,
            self.last_offset,
            self.offset_delta,
            self.timestamp,
            self.coordinator_epoch,
            self.transaction_first_offset,
        )


class Transaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(slots=True)
class Derived:
    producers: dict[int, Producer] = field(default_factory=dict)
    completed: list[Transaction] = field(default_factory=list)

    @property
    def first_open_offset(self) -> int | None:
        first_offsets = [one.transaction_first_offset for one in self.producers.values() if one.transaction_first_offset >= 0]
        return min(first_offsets, default=None)

    def is_aborted(self, batch: Batch) -> bool:
        producer_id = batch.header.producer_id
        return batch.header.is_transactional and any(
            one.is_aborted and one.producer_id == producer_id and one.first_offset <= batch.base_offset <= one.last_offset
            for one in self.completed
        )


def derive(batches: Iterable[Batch]) -> Derived:
    """Producers and transactions, from the batches alone."""
    derived = Derived()
    producers = derived.producers
    for batch in batches:
        header = batch.header
        if header.producer_id < 0:
            continue
        producer = producers.get(header.producer_id)
        if producer is None:
            producer = producers[header.producer_id] = Producer(header.producer_id, header.producer_epoch)
        if producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.last_sequence, producer.last_offset, producer.offset_delta = -1, -1, 0
            producer.batches.clear()
        producer.timestamp = header.max_timestamp
        marker = batch.marker
        if marker is not None:
            producer.coordinator_epoch = marker.coordinator_epoch
            if producer.transaction_first_offset >= 0:
                is_aborted = marker.control_type is ControlType.ABORT
                first_offset = producer.transaction_first_offset
                derived.completed.append(Transaction(header.producer_id, first_offset, batch.base_offset, is_aborted))
                producer.transaction_first_offset = -1
            continue
        producer.last_sequence = header.last_sequence
        producer.last_offset, producer.offset_delta = batch.last_offset, header.last_offset_delta
        producer.batches.append(batch)
        if header.is_transactional and producer.transaction_first_offset < 0:
            producer.transaction_first_offset = batch.base_offset
    return derived
