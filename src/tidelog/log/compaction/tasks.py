"""The two tasks of a cleaning that run in a child process, and their arguments and results as JSON.

``map_keys`` runs once: it builds the key map over the dirty section and decides which segments become one group. Only records
that count go into the map: no records of aborted transactions, no control records. When the map is full, the pass ends at the
batch before; the next cleaning continues from there.

``clean`` runs once per group: it writes one segment with what stays of the group's segments: ``B.log.cleaned``,
``B.index.cleaned``, ``B.timeindex.cleaned`` and, when an aborted transaction still has its marker and an emptied batch,
``B.txnindex.cleaned``. All are synced, and the directory too, before the task returns. A crash leaves any part of them; they
mean nothing until the swap, and the next start or the next cleaning removes them. No record of an aborted transaction is left
in a cleaned segment, so nothing depends on its transaction index.

What a group must know from the groups before it (which producers have data without a marker so far) goes through the event
loop; the key map goes through a file.

Compaction makes new bytes with new checksums, so damage that it overlooked would be sealed for good: every batch is checked
before it is used.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, TypeVar

from tidelog.log import names
from tidelog.log.compaction.batch_filter import BatchFilter, TransactionScan
from tidelog.log.compaction.key_map import KeyMap, read_key_map
from tidelog.log.errors import CorruptLog
from tidelog.log.segments.batch_scan import scan_batches
from tidelog.log.segments.file_handles import FileHandles
from tidelog.log.segments.indexes import AbortedTransaction, IndexCache, TransactionIndex
from tidelog.log.segments.segment import DECODED_BATCH_BYTES_MAX, DECODED_BATCH_RECORDS_MAX, RELATIVE_OFFSET_MAX, LogSegment
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk, DiskFile
from tidelog.records.batch import iterate_keys
from tidelog.records.header import CONTROL_MASK, BatchHeader, crc_is_valid, read_header

TaskValue = TypeVar("TaskValue", "MapKeysArguments", "MapKeysResult", "CleanArguments", "CleanResult")


@dataclass(frozen=True, slots=True)
class MapKeysArguments:
    directory: str
    base_offsets: list[int]
    """The base offsets of all segments from the log's start up to ``upper_offset``."""
    first_dirty_offset: int
    upper_offset: int
    """The end of the last of these segments."""
    aborted: list[list[int]]
    """Aborted transactions that began below ``upper_offset`` and whose marker lies above it, where only the event loop may
    read."""
    key_map_bytes_max: int
    segment_bytes: int
    segment_index_bytes: int


@dataclass(frozen=True, slots=True)
class MapKeysResult:
    end_offset: int
    """The map covers [first dirty, end offset). It ends below the upper offset when not all keys fit."""
    keys: int
    groups: list[list[int]]
    """The base offsets of the segments that become one, group by group."""
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class CleanArguments:
    directory: str
    group: list[int]
    end_offset: int
    upper_offset: int
    aborted: list[list[int]]
    producers_with_data: list[int]
    """The producers with transactional data in earlier groups, and no marker after it yet."""
    active_producers: list[list[int]]
    """Producer id, epoch, and last data offset (-1 if the epoch has none)."""
    delete_retention_ms: int
    index_interval_bytes: int


@dataclass(frozen=True, slots=True)
class CleanResult:
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    producers_with_data: list[int]
    horizon_ms: int | None
    """When the first of the kept tombstones and markers may be removed."""


def to_json(value: TaskValue) -> dict[str, Any]:
    return asdict(value)


def from_json(kind: type[TaskValue], values: Mapping[str, Any]) -> TaskValue:
    return kind(**values)


# Enough for a few transaction indexes; each is read once.
INDEX_CACHE_BYTES = 1 << 20


def open_segment(disk: Disk, directory: str, base_offset: int) -> DiskFile:
    return disk.open(names.segment_path(directory, base_offset, names.LOG_SUFFIX), "read")


def checked_batches(file: DiskFile) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of every batch. Raises CorruptLog at the first damaged one."""
    for position, header, batch in scan_batches(file, 0, file.size()):
        if not crc_is_valid(batch, 0, header):
            raise CorruptLog(file.path, position, header.base_offset, "a batch's CRC does not match its bytes")
        yield position, header, batch


def read_aborted(
    disk: Disk, directory: str, from_offset: int, upper_offset: int, later: Iterable[Iterable[int]]
) -> list[AbortedTransaction]:
    """The aborted transactions whose marker is at or above ``from_offset``: from the index files below ``upper_offset``, which no
    longer change, and from ``later``, which the event loop knows."""
    found: list[AbortedTransaction] = []
    base_offsets = names.base_offsets_of(disk.list_directory(directory), names.TRANSACTION_INDEX_SUFFIX)
    for base_offset in base_offsets:
        if from_offset <= base_offset < upper_offset:
            path = names.segment_path(directory, base_offset, names.TRANSACTION_INDEX_SUFFIX)
            index = TransactionIndex(disk, IndexCache(INDEX_CACHE_BYTES), path, base_offset)
            index.load()
            index.check()
            found += index.entries()
    found += [AbortedTransaction(*fields) for fields in later]
    return found


# The originals of a group are renamed together on the event loop: four files each, a few milliseconds for this many. A log with
# more small segments gets smaller with every cleaning.
GROUP_SEGMENTS_MAX = 64


def map_keys(disk: Disk, clock: Clock, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """A child task: ``MapKeysArguments`` to ``MapKeysResult``; leaves the key map's file in the partition's directory."""
    del clock
    work = from_json(MapKeysArguments, arguments)
    key_map = KeyMap(work.key_map_bytes_max)
    end_offset, bytes_read = _map_dirty_section(disk, work, key_map)
    bytes_written = key_map.write(disk, work.directory)
    groups = list(_groups(disk, work, end_offset))
    return to_json(MapKeysResult(end_offset, len(key_map.offsets), groups, bytes_read, bytes_written))


def _map_dirty_section(disk: Disk, work: MapKeysArguments, key_map: KeyMap) -> tuple[int, int]:
    """Returns (end of the pass, bytes read)."""
    first_dirty_offset = work.first_dirty_offset
    dirty = [base for base, end in _ranges(work) if end > first_dirty_offset]
    bytes_read = 0
    if not dirty:
        return work.upper_offset, bytes_read
    transactions = TransactionScan(read_aborted(disk, work.directory, dirty[0], work.upper_offset, work.aborted))
    for base_offset in dirty:
        file = open_segment(disk, work.directory, base_offset)
        for _, header, batch in checked_batches(file):
            bytes_read += len(batch)
            if header.attributes & CONTROL_MASK:
                transactions.end_transaction(header, batch)
                continue
            if transactions.is_aborted(header) or header.last_offset < first_dirty_offset:
                continue
            if not key_map.has_room_for(header.record_count):
                return header.base_offset, bytes_read
            keys = iterate_keys(batch, 0, header, size_max=DECODED_BATCH_BYTES_MAX, count_max=DECODED_BATCH_RECORDS_MAX)
            key_map.add_batch(header.base_offset, keys)
    return work.upper_offset, bytes_read


def _ranges(work: MapKeysArguments) -> Iterator[tuple[int, int]]:
    """(base offset, end) of each segment."""
    return pairwise([*work.base_offsets, work.upper_offset])


def _groups(disk: Disk, work: MapKeysArguments, end_offset: int) -> Iterator[list[int]]:
    """Group adjacent segments that fit into one segment by their current sizes. An empty segment has no last batch to keep, and
    is left out."""
    group: list[int] = []
    group_bytes = [0, 0, 0]
    bytes_max = (work.segment_bytes, work.segment_index_bytes, work.segment_index_bytes)
    for base_offset, segment_end_offset in _ranges(work):
        if base_offset >= end_offset:
            break
        segment_bytes = _segment_bytes(disk, work.directory, base_offset)
        total_bytes = [*map(sum, zip(group_bytes, segment_bytes, strict=True))]
        fits = all(size <= size_max for size, size_max in zip(total_bytes, bytes_max, strict=True))
        is_full = not fits or len(group) == GROUP_SEGMENTS_MAX
        if group and (not segment_bytes[0] or is_full or segment_end_offset - 1 - group[0] > RELATIVE_OFFSET_MAX):
            yield group
            group, total_bytes = [], segment_bytes
        if segment_bytes[0]:
            group.append(base_offset)
            group_bytes = total_bytes
    if group:
        yield group


def _segment_bytes(disk: Disk, directory: str, base_offset: int) -> list[int]:
    """The sizes of the log, the offset index and the time index."""
    return [
        disk.file_size(path) if disk.exists(path := names.segment_path(directory, base_offset, suffix)) else 0
        for suffix in (names.LOG_SUFFIX, names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
    ]


# Large enough that the number of calls does not matter, small compared with the key map.
WRITE_BYTES = 1 << 20
_OPEN_FILES_MAX = 4


def clean(disk: Disk, clock: Clock, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """A child task: ``CleanArguments`` to ``CleanResult``."""
    work = from_json(CleanArguments, arguments)
    now_ms = clock.now_ms()
    remove_cleaned(disk, work.directory, work.group[0])
    transactions = TransactionScan(
        read_aborted(disk, work.directory, work.group[0], work.upper_offset, work.aborted), work.producers_with_data
    )
    batch_filter = BatchFilter(
        read_key_map(disk, work.directory),
        work.end_offset,
        transactions,
        {producer_id: (epoch, last_offset) for producer_id, epoch, last_offset in work.active_producers},
        now_ms,
        work.delete_retention_ms,
    )
    cleaned = _CleanedSegment(disk, work.directory, work.group[0], now_ms, work.index_interval_bytes)
    bytes_read = _clean_group(disk, work, batch_filter, cleaned)
    cleaned.finish()
    return to_json(
        CleanResult(
            bytes_read=bytes_read,
            bytes_written=cleaned.segment.size,
            records_read=batch_filter.records_read,
            records_kept=batch_filter.records_kept,
            producers_with_data=sorted(transactions.producers_with_data),
            horizon_ms=batch_filter.horizon_ms,
        )
    )


def _clean_group(disk: Disk, work: CleanArguments, batch_filter: BatchFilter, cleaned: "_CleanedSegment") -> int:
    """Returns how many bytes were read."""
    bytes_read = 0
    for base_offset in work.group:
        file = open_segment(disk, work.directory, base_offset)
        size = file.size()
        last_batch_ends_at = size if base_offset == work.group[-1] else -1
        for position, header, batch in checked_batches(file):
            is_last = position + len(batch) == last_batch_ends_at
            if header.attributes & CONTROL_MASK:
                kept, aborted = batch_filter.filter_control(header, batch, is_last)
                if kept is not None and aborted is not None:
                    cleaned.segment.transaction_index.append(aborted)
            else:
                kept = batch_filter.filter_records(header, batch, is_last)
            if kept is not None:
                max_timestamp = header.max_timestamp if kept is batch else read_header(kept).max_timestamp
                cleaned.add(kept, header.last_offset, max_timestamp)
        bytes_read += size
    return bytes_read


class _CleanedSegment:
    """A segment under its ``.cleaned`` names, written in large pieces."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, now_ms: int, index_interval_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._pending = bytearray()
        handles = FileHandles(disk, _OPEN_FILES_MAX)
        cache = IndexCache(INDEX_CACHE_BYTES)
        self.segment = LogSegment(disk, handles, cache, directory, base_offset, 0, now_ms, names.CLEANED_SUFFIX)
        self.segment.create_file()

    def add(self, batch: bytes | bytearray | memoryview, last_offset: int, max_timestamp: int) -> None:
        pending = self._pending
        size = len(batch)
        self.segment.note_batch(self.segment.size + len(pending), size, last_offset, max_timestamp, self._index_interval_bytes)
        pending += batch
        if len(pending) >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        self.segment.write([self._pending], len(self._pending))
        self._pending = bytearray()

    def finish(self) -> None:
        """Make everything durable under its ``.cleaned`` name."""
        segment = self.segment
        self._write()
        segment.close_for_appends()
        segment.file().sync()
        for file in segment.index_files():
            file.sync()
        self._disk.sync_directory(self._directory)


def remove_cleaned(disk: Disk, directory: str, base_offset: int) -> None:
    """Remove what an earlier attempt left. This also runs on the executor when a cleaning is abandoned."""
    for suffix in names.SEGMENT_SUFFIXES:
        path = names.segment_path(directory, base_offset, suffix) + names.CLEANED_SUFFIX
        if disk.exists(path):
            disk.remove(path)
