"""A plain model of a partition: what was appended, what was promised, and what a log that came back must therefore show.

The model keeps every batch that the log was given, as the bytes that must be in the file, and forgets none when the log deletes
it: what follows from the history (producers, transactions) is worked out here from all of it, by other code than the log's.

Promises, and where they are kept:

    acknowledged_end    below it the log has said "durable" (a waiter was called, or consumers were let see it)
    deleted_below       a delete of records was acknowledged up to here: they never come back
    start_offset_max    the log may begin here at the latest: nobody asked for more to be deleted
    ever                all bytes that were ever given to the log at an offset; anything else is out of thin air

``check_log`` compares a log that was opened from a disk with the model. It knows nothing of the way that led there: the same
check serves a clean stop, a power cut at any disk operation, and a running log.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, read
from tidelog.log.transaction_index import AbortedTransaction
from tidelog.records.batch import read_records
from tidelog.records.control import ControlType, EndTransactionMarker, read_end_transaction_marker
from tidelog.records.header import BatchHeader, crc_is_valid, iterate_headers, read_header
from tidelog.records.record import Record

# Small, so that a read is cut in the middle of a batch as often as not.
READ_BYTES = 700
SIZE_MAX = 1 << 20


class ModelError(AssertionError):
    """A promise was broken."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise ModelError(message)


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


# -- what follows from a history -------------------------------------------------------------------------------------------------


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


# -- the model -------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartitionModel:
    topic: str
    partition: int
    topic_id: bytes
    is_compacted: bool = False
    batches: list[Batch] = field(default_factory=list)
    ever: dict[int, set[bytes]] = field(default_factory=dict)
    acknowledged_end: int = 0
    deleted_below: int = 0
    start_offset_max: int = 0
    is_deletion_asked: bool = False
    is_deletion_done: bool = False
    is_truncating: bool = False
    truncations: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def copy(self) -> "PartitionModel":
        ever = {offset: set(versions) for offset, versions in self.ever.items()}
        return PartitionModel(
            self.topic,
            self.partition,
            self.topic_id,
            self.is_compacted,
            list(self.batches),
            ever,
            self.acknowledged_end,
            self.deleted_below,
            self.start_offset_max,
            self.is_deletion_asked,
            self.is_deletion_done,
        )

    def offer(self, batches: Iterable[Batch]) -> None:
        """These are about to be appended: from now on they may be found after a crash."""
        for batch in batches:
            self.ever.setdefault(batch.base_offset, set()).add(batch.data)

    def appended(self, batches: Iterable[Batch]) -> None:
        self.batches.extend(batches)

    def acknowledge(self, end_offset: int) -> None:
        self.acknowledged_end = max(self.acknowledged_end, end_offset)

    def end_after_cut(self, offset: int) -> int:
        """Where a log ends that was truncated to ``offset``: never inside a batch, nor in a gap."""
        return max([batch.last_offset + 1 for batch in self.batches if batch.last_offset < offset], default=0)

    def truncation_asked(self, offset: int) -> None:
        self.is_truncating = True
        self.truncations += 1
        self.acknowledged_end = min(self.acknowledged_end, self.end_after_cut(offset))

    def truncated(self, offset: int) -> None:
        end_offset = self.end_after_cut(offset)
        self.batches = [batch for batch in self.batches if batch.last_offset < end_offset]

    def came_back(self, history: list[Batch], topic_id: bytes, log_start_offset: int) -> None:
        """After a reopening what the log holds is the truth, and all of it durable."""
        self.topic_id = topic_id
        self.batches = history
        self.acknowledged_end = self.end_offset
        self.deleted_below = log_start_offset
        self.start_offset_max = max(self.start_offset_max, log_start_offset)
        self.is_deletion_asked = self.is_deletion_done = self.is_truncating = False


# -- the check -------------------------------------------------------------------------------------------------------------------


def read_all(log: PartitionLog, isolation: Isolation) -> Iterator[tuple[list[Batch], list[AbortedTransaction]]]:
    """Whole batches from the log start on, read by read, with the aborted transactions that each read named."""
    offset = log.log_start_offset
    while True:
        found = read(log, offset, READ_BYTES, isolation)
        if found.records is None:
            return
        file, position, length = found.records
        batches = split(file.read(position, length))
        require(bool(batches), f"{log.name}: a read at {offset} holds no whole batch")
        require(batches[0].last_offset >= offset, f"{log.name}: a read at {offset} begins with a batch that ends below it")
        for batch in batches:
            require(crc_is_valid(batch.data, 0, batch.header), f"{log.name}: a batch at {batch.base_offset} fails its CRC")
        yield batches, found.aborted
        offset = batches[-1].last_offset + 1


def check_log(model: PartitionModel, log: PartitionLog) -> list[Batch]:
    """Raise ModelError unless the log keeps what was promised. Returns its whole history, deleted batches included."""
    found = [batch for batches, _ in read_all(log, Isolation.LOG_END) for batch in batches]
    start, end = log.log_start_offset, log.log_end_offset
    name = log.name
    require(start >= model.deleted_below, f"{name} starts at {start}: records below {model.deleted_below} were deleted for good")
    require(start <= model.start_offset_max, f"{name} starts at {start}: nothing from {model.start_offset_max} on was deleted")
    require(end >= model.acknowledged_end, f"{name} ends at {end}: {model.acknowledged_end} was acknowledged as durable")
    require(start <= log.high_watermark <= end, f"{name}: high watermark {log.high_watermark} is not in {start}..{end}")
    require(log.durable.offset <= end, f"{name}: durable {log.durable.offset} is above the end {end}")
    _check_order(model, found, start, end)
    for batch in found:
        _check_was_appended(model, batch)
    _check_acknowledged(model, found, start)
    kept = [batch for batch in model.batches if batch.last_offset < model.acknowledged_end]
    if model.is_compacted:
        # Compaction takes batches away; what follows from the history must not change with them.
        history = kept + [batch for batch in found if batch.base_offset >= model.acknowledged_end]
    else:
        first = found[0].base_offset if found else end
        history = [batch for batch in kept if batch.last_offset < first] + found
    derived = derive(history)
    _check_epochs(model, log, found)
    _check_producers(model, log, derived)
    _check_read_committed(model, log, history, derived)
    return history


def check_all_visible(model: PartitionModel, log: PartitionLog, history: list[Batch]) -> None:
    """The same with everything below the high watermark, so that no transaction is out of sight."""
    log.advance_high_watermark(log.log_end_offset)
    _check_read_committed(model, log, history, derive(history))


def _check_order(model: PartitionModel, found: list[Batch], start: int, end: int) -> None:
    name = f"{model.topic}-{model.partition}"
    next_offset = None
    epoch = -1
    for batch in found:
        if next_offset is not None:
            is_next = batch.base_offset >= next_offset if model.is_compacted else batch.base_offset == next_offset
            require(is_next, f"{name}: a batch at {batch.base_offset} where {next_offset} was expected")
        require(batch.header.leader_epoch >= epoch, f"{name}: the leader epoch goes back at {batch.base_offset}")
        epoch = batch.header.leader_epoch
        next_offset = batch.last_offset + 1
    if model.is_compacted:
        return
    require((found[0].base_offset <= start) if found else start == end, f"{name}: nothing is found at the log start {start}")
    require(next_offset in (None, end), f"{name}: the last batch ends before {next_offset}, the log at {end}")


def _check_was_appended(model: PartitionModel, batch: Batch) -> None:
    versions = model.ever.get(batch.base_offset, set())
    if batch.data in versions:
        return
    name = f"{model.topic}-{model.partition}"
    require(model.is_compacted, f"{name}: the batch at {batch.base_offset} was never appended there")
    require(any(_is_compacted_form(batch, version) for version in versions), f"{name}: no batch was compacted to {batch}")


def _is_compacted_form(batch: Batch, version: bytes) -> bool:
    """The same ends, producer and epoch, and a part of the records."""
    original, header = decoded(version), batch.header
    same = ("last_offset_delta", "producer_id", "producer_epoch", "base_sequence", "leader_epoch", "is_control")
    if any(getattr(header, name) != getattr(original.header, name) for name in same):
        return False
    return set(batch.records) <= set(original.records) and batch.marker in (None, original.marker)


def _check_acknowledged(model: PartitionModel, found: list[Batch], start: int) -> None:
    if model.is_compacted:
        return  # By key, in the read_committed view.
    found_by_offset = {batch.base_offset: batch.data for batch in found}
    for batch in model.batches:
        if batch.last_offset >= model.acknowledged_end:
            break
        if batch.last_offset >= start:
            name = f"{model.topic}-{model.partition}"
            require(batch.base_offset in found_by_offset, f"{name}: the acknowledged batch at {batch.base_offset} is lost")
            is_same = found_by_offset[batch.base_offset] == batch.data
            require(is_same, f"{name}: the acknowledged batch at {batch.base_offset} has other bytes now")


def _check_epochs(model: PartitionModel, log: PartitionLog, found: list[Batch]) -> None:
    for batch in found:
        epoch = log.epochs.epoch_for_offset(max(batch.base_offset, log.log_start_offset))
        # A crash that undid a deletion nobody was told of may have kept that the epochs before it are forgotten.
        is_forgotten = epoch < 0 and batch.base_offset < model.start_offset_max
        is_right = epoch == batch.header.leader_epoch or is_forgotten
        require(is_right, f"{log.name}: {batch.base_offset} is of epoch {batch.header.leader_epoch}, the log says {epoch}")
    if found:
        last = found[-1].header.leader_epoch
        require(log.epochs.latest_epoch == last, f"{log.name}: the latest epoch is {log.epochs.latest_epoch}, not {last}")


def _check_producers(model: PartitionModel, log: PartitionLog, derived: Derived) -> None:
    """Equal to what the whole log gives. Of producers whose batches were all deleted the log may have forgotten what it knew."""
    start = log.log_start_offset
    actual = {entry.producer_id: entry for entry in log.producers.entries()}
    for producer_id, entry in actual.items():
        require(producer_id in derived.producers, f"{log.name}: producer {producer_id} is out of thin air")
        producer = derived.producers[producer_id]
        written = [(batch.base_offset, batch.last_offset) for batch in producer.batches]
        known = [(batch.first_offset, batch.last_offset) for batch in entry.batches]
        # Compaction may have taken some of them away, but never the last.
        expected = [one for one in written if one in known] if model.is_compacted else written[len(written) - len(known) :]
        is_last_known = not known or known[-1] == written[-1]
        is_right = known == expected and is_last_known
        require(is_right, f"{log.name}: producer {producer_id} wrote {written}, known are {known}")
    for producer_id, producer in derived.producers.items():
        found = actual.get(producer_id)
        if found is None or found.snapshot_fields() != producer.snapshot_fields():
            if producer.last_offset < start or -1 < producer.transaction_first_offset < start:
                continue
            fields = None if found is None else found.snapshot_fields()
            raise ModelError(f"{log.name}: producer {producer.snapshot_fields()} is known as {fields}")


def _check_read_committed(model: PartitionModel, log: PartitionLog, history: list[Batch], derived: Derived) -> None:
    name, start, stable = log.name, log.log_start_offset, log.last_stable_offset
    first_open = derived.first_open_offset
    require(stable <= log.high_watermark, f"{name}: last stable offset {stable}, high watermark {log.high_watermark}")
    if first_open is not None and first_open >= start:
        require(stable <= first_open, f"{name}: last stable offset {stable}, a transaction is open since {first_open}")
    undecided = [one.first_offset for one in derived.completed if one.last_offset >= log.high_watermark]
    stable_min = min([log.high_watermark, *undecided, *([] if first_open is None else [first_open])])
    require(stable >= stable_min, f"{name}: last stable offset {stable} stays below {stable_min}")

    expected = {
        record.offset: record
        for batch in history
        if batch.last_offset < stable and not derived.is_aborted(batch)
        for record in batch.records
        if record.offset >= start
    }
    seen: dict[int, Record] = {}
    for batches, aborted in read_all(log, Isolation.LAST_STABLE):
        for record in committed_records(batches, aborted):
            if record.offset >= start:
                require(record.offset in expected, f"{name}: the record at {record.offset} is not committed, and was read")
                require(expected[record.offset] == record, f"{name}: another record is at {record.offset}: {record}")
                seen[record.offset] = record
    if model.is_compacted:
        # Compaction saw a higher high watermark than a crash brings back: what is out of sight now has taken its place.
        if log.high_watermark == log.log_end_offset:
            _check_latest(name, expected, seen)
    else:
        missing = sorted(expected.keys() - seen.keys())
        require(not missing, f"{name}: committed records at {missing} were not read")


def committed_records(batches: Iterable[Batch], aborted: list[AbortedTransaction]) -> Iterator[Record]:
    """What a consumer makes of one read with isolation.level=read_committed, by Kafka's own way of doing it."""
    waiting = sorted(aborted, key=lambda transaction: transaction.first_offset)
    aborted_producers: set[int] = set()
    for batch in batches:
        header = batch.header
        while waiting and waiting[0].first_offset <= batch.last_offset:
            aborted_producers.add(waiting.pop(0).producer_id)
        if header.is_control:
            if batch.marker is not None and batch.marker.control_type is ControlType.ABORT:
                aborted_producers.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted_producers):
            yield from batch.records


def _check_latest(name: str, expected: dict[int, Record], seen: dict[int, Record]) -> None:
    """The newest record of every key is there. A tombstone may go in time, but then with all that it deleted."""
    newest: dict[bytes | None, int] = {}
    for offset, record in expected.items():
        newest[record.key] = max(offset, newest.get(record.key, -1))
    for key, offset in newest.items():
        if expected[offset].value is not None:
            require(offset in seen, f"{name}: the newest record of {key!r}, at {offset}, is lost")
        elif offset not in seen:
            older = [record.offset for record in seen.values() if record.key == key]
            require(not older, f"{name}: {key!r} was deleted at {offset}, the tombstone is gone, and {older} are back")
