"""The producers' state of a log on the disk: snapshots, and replaying the log from one.

File ``<offset>.snapshot``: the state at that offset, in Kafka's version 1, big-endian: version i16; CRC-32C u32 of everything
that follows; count i32; then for each producer: producer id i64, epoch i16, last sequence i32, last offset i64, offset delta
i32, timestamp i64, coordinator epoch i32, first offset of the current transaction i64 (-1: none). It keeps only a producer's
last batch. A producer may send five again, in order, and takes it for lost data if the first one is not recognised. So a reload
after a crash or a cut reads the batches before a snapshot again (``recall_batches``). After a clean stop it does so only if there
are records above the high watermark: the producers of all others have their answers.

A crash may leave any part of a snapshot that was not synced; the CRC reveals it. A snapshot is never the only copy: recovery
falls back to an older one, or to none, and replays the log from there. Replaying needs only the headers, and the content of
transaction markers.

Opening or truncating a log removes the snapshots above the trusted offset: after a crash they may describe batches that were
lost, and the log could reach their offset again with other batches.
"""

from collections import deque
from collections.abc import Iterable
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

from tidelog.log import names
from tidelog.log.environment import Report
from tidelog.log.errors import CorruptIndex, CorruptLog, CorruptSnapshot
from tidelog.log.producers.producer_state import BATCHES_KEPT_MAX, BatchMetadata, ProducerEntry, ProducerState
from tidelog.log.segments.batch_scan import SCAN_CHUNK_BYTES, scan_headers
from tidelog.log.segments.indexes import AbortedTransaction
from tidelog.log.segments.segment import LogSegment, Segments
from tidelog.ports.disk import Buffer, Disk, DiskFile
from tidelog.records.control import EndTransactionMarker, read_end_transaction_marker
from tidelog.records.header import CONTROL_MASK, SEQUENCE_COUNT, BatchHeader

SNAPSHOT_VERSION = 1
# How much of the log before a snapshot is searched for earlier batches: five of the largest that clients send by default, or a
# few thousand small ones, which take some milliseconds. A batch that was not acknowledged is among the last.
RECALLED_BYTES_MAX = 5 << 20
# Small enough that large batches are skipped rather than read.
RECALL_CHUNK_BYTES = 64 << 10

_VERSION_CRC = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_ENTRIES_POSITION = _VERSION_CRC.size + _COUNT.size


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """The entries are ordered by producer id, so that the same state gives the same bytes."""
    # Producer ids are not negative, so their bytes have the same order.
    rows = sorted([entry.snapshot_entry() for entry in entries])
    body = b"".join((_COUNT.pack(len(rows)), *rows))
    return _VERSION_CRC.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes, path: str) -> list[ProducerEntry]:
    """The producers in a snapshot. Raises CorruptSnapshot, which names ``path``, when the bytes are not a valid snapshot."""
    if len(data) < _ENTRIES_POSITION:
        raise CorruptSnapshot(f"{path} has {len(data)} bytes, but a producer snapshot has at least {_ENTRIES_POSITION}")
    version, crc = _VERSION_CRC.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"{path} has version {version}, only {SNAPSHOT_VERSION} is known")
    body = memoryview(data)[_VERSION_CRC.size :]
    computed_crc = crc32c(body)
    if computed_crc != crc:
        raise CorruptSnapshot(f"{path} states the CRC {crc:#010x}, but its bytes have {computed_crc:#010x}")
    (count,) = _COUNT.unpack_from(body)
    if count < 0 or len(data) != _ENTRIES_POSITION + count * _ENTRY.size:
        raise CorruptSnapshot(f"{path} claims {count} producers in {len(data)} bytes")
    entries = [_entry(*fields) for fields in _ENTRY.iter_unpack(body[_COUNT.size :])]
    if len({entry.producer_id for entry in entries}) != count:
        raise CorruptSnapshot(f"{path} lists a producer twice")
    return entries


def write_snapshot(disk: Disk, directory: str, offset: int, producers: ProducerState) -> DiskFile:
    """Write the producers' state at ``offset``. The caller syncs the file and the directory."""
    file = disk.open(names.segment_path(directory, offset, names.SNAPSHOT_SUFFIX), "create")
    file.truncate(0)
    file.write(0, [encode_snapshot(producers.entries())])
    return file


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    transaction_first_offset: int,
) -> ProducerEntry:
    batches = [BatchMetadata(last_sequence, last_offset, offset_delta, timestamp)] if last_offset >= 0 else []
    return ProducerEntry(producer_id, epoch, batches, coordinator_epoch, timestamp, transaction_first_offset)


def marker_of(buffer: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The content of a transaction marker; None for records, and for a marker that Kafka's compaction has emptied."""
    if not header.attributes & CONTROL_MASK or not header.record_count:
        return None
    return read_end_transaction_marker(buffer, position, header)


def note_batch_of_producer(
    producers: ProducerState,
    segment: LogSegment | None,
    header: BatchHeader,
    base_offset: int,
    marker: EndTransactionMarker | None,
) -> None:
    """``header`` was written at ``base_offset``; ``marker`` is the content of a control batch. Without a segment the transaction
    index is left alone, because it already has the transaction."""
    if marker is None:
        if header.attributes & CONTROL_MASK:
            return  # An emptied marker: its transaction ended long ago.
        producers.update(header, base_offset)
        return
    completed = producers.update_marker(header.producer_id, header.producer_epoch, marker, base_offset, header.max_timestamp)
    if completed is None:
        return
    if completed.is_aborted and segment is not None:
        last_stable_offset = producers.last_stable_offset_for(completed)
        segment.transaction_index.append(
            AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset)
        )
    producers.complete(completed)


def load_newest_snapshot(
    disk: Disk, directory: str, trusted_below: int, producers: ProducerState, report: Report, replayable_from: int = 0
) -> int | None:
    """Load the newest snapshot taken at or below ``trusted_below`` and return its offset; None if there is no snapshot. Snapshots
    that cannot be used are removed.

    ``replayable_from`` is where the log's first segment begins: an older snapshot lacks batches that are gone, and knowing
    nothing about a producer is better than expecting a sequence number that it has long passed.
    """
    offsets = names.base_offsets_of(disk.list_directory(directory), names.SNAPSHOT_SUFFIX)
    for offset in reversed(offsets):
        path = names.segment_path(directory, offset, names.SNAPSHOT_SUFFIX)
        if not replayable_from <= offset <= trusted_below:
            disk.remove(path)
            continue
        try:
            file = disk.open(path, "read")
            producers.load(decode_snapshot(file.read(0, file.size()), path))
        except CorruptSnapshot as error:
            report("producer_snapshot_discarded", {"path": path, "error": str(error)})
            disk.remove(path)
            continue
        return offset
    producers.clear()
    return None


def recall_batches(producers: ProducerState, segments: Segments, snapshot_offset: int | None) -> None:
    """The state was loaded from a snapshot, which has the last batch of each producer: add the ones before, as far as they lie in
    the last ``RECALLED_BYTES_MAX`` below the snapshot. What cannot be read is left out."""
    if snapshot_offset is None or not producers.producer_count:
        return
    found: dict[int, deque[BatchMetadata]] = {}
    try:
        for segment, start in _last_bytes_below(segments, snapshot_offset):
            for _, header in scan_headers(segment.file(), start, segment.size, RECALL_CHUNK_BYTES):
                if header.base_offset >= snapshot_offset:
                    break
                _note_recalled(producers, found, header)
                if header.next_offset >= snapshot_offset:
                    break  # The rest is not checked yet, and may be torn.
    except (CorruptLog, CorruptIndex, OSError):
        pass  # It is below what recovery checks, and a fault there is reported to whoever reads it.
    for producer_id, batches in found.items():
        entry = producers.entry(producer_id)
        if entry is not None:
            entry.recall(batches)


def _last_bytes_below(segments: Segments, offset: int) -> list[tuple[LogSegment, int]]:
    """The last ``RECALLED_BYTES_MAX`` before ``offset``, as segments in their order, each with the position to start from."""
    parts: list[tuple[LogSegment, int]] = []
    left = RECALLED_BYTES_MAX
    for segment in reversed(list(segments)):
        if segment.base_offset >= offset or left <= 0:
            continue
        index = segment.offset_index
        start, end = 0, index.lookup(offset)[1]
        if end > left:
            first_offset = index.first_offset_at(end - left)
            assert first_offset is not None, "the entry at the end is one"
            start = index.lookup(first_offset)[1]
        parts.append((segment, start))
        left -= end - start
    return parts[::-1]


def _note_recalled(producers: ProducerState, found: dict[int, deque[BatchMetadata]], header: BatchHeader) -> None:
    entry = producers.entry(header.producer_id)
    if entry is None or entry.epoch != header.producer_epoch or header.base_sequence < 0 or header.is_control:
        return
    last_offset = header.last_offset
    if last_offset < entry.last_offset:
        last_sequence = (header.base_sequence + header.last_offset_delta) % SEQUENCE_COUNT
        batch = BatchMetadata(last_sequence, last_offset, header.last_offset_delta, header.max_timestamp)
        found.setdefault(header.producer_id, deque(maxlen=BATCHES_KEPT_MAX - 1)).append(batch)


def replay_producers(producers: ProducerState, segments: Segments, from_offset: int, to_offset: int) -> None:
    """Bring the state from ``from_offset`` to ``to_offset`` by reading the headers in between. The transaction index already has
    them."""
    if from_offset >= to_offset:
        return
    for segment in segments.from_offset(from_offset):
        if segment.base_offset >= to_offset:
            return
        _replay_segment(producers, segment, from_offset, to_offset)


def _replay_segment(producers: ProducerState, segment: LogSegment, from_offset: int, to_offset: int) -> None:
    start = segment.offset_index.lookup(from_offset)[1] if from_offset > segment.base_offset else 0
    file = segment.file()
    for position, header in scan_headers(file, start, segment.size, SCAN_CHUNK_BYTES):
        base_offset = header.base_offset
        if base_offset >= to_offset:
            return
        if header.producer_id >= 0 and base_offset >= from_offset:
            marker = None
            if header.is_control:
                marker = marker_of(file.read(position, header.size), 0, header)
            note_batch_of_producer(producers, None, header, base_offset, marker)
        if header.next_offset >= to_offset:
            return  # The rest is not checked yet, and may be torn.


def remove_snapshots_above(disk: Disk, directory: str, offset: int) -> None:
    for snapshot_offset in names.base_offsets_of(disk.list_directory(directory), names.SNAPSHOT_SUFFIX):
        if snapshot_offset > offset:
            disk.remove(names.segment_path(directory, snapshot_offset, names.SNAPSHOT_SUFFIX))
