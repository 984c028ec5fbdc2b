"""Compares a log with its model: it shows all that was promised, and nothing that was never appended.

``check_log`` knows nothing of the way that led there: the same check serves a clean stop, a power cut at any disk operation, and
a running log.
"""

from collections.abc import Iterable, Iterator

from tests.log.storage_history import Batch, Derived, decoded, derive, split
from tests.log.storage_model import PartitionModel
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, read
from tidelog.log.segments.indexes import AbortedTransaction
from tidelog.records.control import ControlType
from tidelog.records.header import crc_is_valid
from tidelog.records.record import Record

# Small, so that a read is cut in the middle of a batch as often as not.
READ_BYTES = 700


class ModelError(AssertionError):
    """A promise was broken."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise ModelError(message)


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


# -- the batches -------------------------------------------------------------------------------------------------------------


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


# -- what follows from them --------------------------------------------------------------------------------------------------


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
