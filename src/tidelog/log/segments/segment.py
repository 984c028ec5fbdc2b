"""One segment of a partition log: a ``.log`` file of batches and the indexes that find things in it.

Files, named by the segment's base offset: ``.log`` (record batches, nothing else), ``.index`` (offset -> position),
``.timeindex`` (timestamp -> offset), ``.txnindex`` (aborted transactions; only when there are any). The log file is the truth;
the indexes are hints that recovery rebuilds from it.

An index entry (last offset of a batch, position of that batch) is added at most every ``index.interval.bytes``, so a lookup
lands at or before the wanted batch and walks headers from there.

A crash leaves the log file with any of its unsynced pages lost, kept or torn, and indexes with entries beyond the log's end or no
entries at all. ``size`` counts only bytes whose write call succeeded.

``Segments`` holds the segments of one log, in order of base offset.

It is a sorted list with a parallel list of base offsets: a lookup is a bisection, and a log with one segment costs two
one-element lists.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tidelog.log import names
from tidelog.log.errors import CorruptLog
from tidelog.log.segments.batch_scan import LOOKUP_CHUNK_BYTES, scan_headers
from tidelog.log.segments.file_handles import FileHandles
from tidelog.log.segments.indexes import IndexCache, OffsetIndex, TimeIndex, TransactionIndex
from tidelog.log.settings import LogSettings
from tidelog.ports.disk import Buffer, Disk, DiskFile
from tidelog.ports.steps import Steps
from tidelog.ports.system import is_cached
from tidelog.records.batch import read_records
from tidelog.records.compression import CompressionType
from tidelog.records.errors import RecordError
from tidelog.records.header import BatchHeader
from tidelog.records.record import Record

# Index entries hold offsets relative to the base offset, in 31 bits as Kafka reads them.
RELATIVE_OFFSET_MAX = 2**31 - 1
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
# Our own reads decode what was validated at append: the limit only stops a damaged file from using up the memory.
DECODED_BATCH_BYTES_MAX = 1 << 30
DECODED_BATCH_RECORDS_MAX = 1 << 26
# A lookup by time blocks the event loop, and only the records of compacted topics are decoded before they are written.
LOOKUP_BATCH_BYTES_MAX = 32 << 20
LOOKUP_BATCH_RECORDS_MAX = 1 << 18
# A lookup that reads records pauses after this many.
LOOKUP_RECORDS_PER_STEP = 256
NO_TIMESTAMP = -1
_NOT_LOADED = -2


def _read_records(file: DiskFile, position: int, header: BatchHeader) -> Iterator[Record]:
    data = file.read(position, header.size)
    if len(data) < header.size:
        raise CorruptLog(file.path, position, header.base_offset, "the file ends inside this batch")
    return read_records(data, 0, header, size_max=LOOKUP_BATCH_BYTES_MAX, count_max=LOOKUP_BATCH_RECORDS_MAX)


class LogSegment:
    __slots__ = (
        "_bytes_since_index_entry",
        "_directory",
        "_disk",
        "_first_timestamp",
        "_handles",
        "_indexes_are_loaded",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offset_index",
        "_time_index",
        "_transaction_index",
        "base_offset",
        "created_ms",
        "dirty_file",
        "path",
        "size",
    )

    def __init__(
        self,
        disk: Disk,
        handles: FileHandles,
        cache: IndexCache,
        directory: str,
        base_offset: int,
        size: int,
        created_ms: int,
        state_suffix: str = "",
    ) -> None:
        self._disk = disk
        self._handles = handles
        self._directory = directory
        self.base_offset = base_offset
        self.size = size
        self.created_ms = created_ms
        stem = names.segment_path(directory, base_offset, "")
        self.path = f"{stem}{names.LOG_SUFFIX}{state_suffix}"
        self._offset_index = OffsetIndex(disk, cache, f"{stem}{names.INDEX_SUFFIX}{state_suffix}", base_offset)
        self._time_index = TimeIndex(disk, cache, f"{stem}{names.TIME_INDEX_SUFFIX}{state_suffix}", base_offset)
        self._transaction_index = TransactionIndex(
            disk, cache, f"{stem}{names.TRANSACTION_INDEX_SUFFIX}{state_suffix}", base_offset
        )
        # The indexes of a closed segment are loaded on first use: in a log that nobody reads they never are.
        self._indexes_are_loaded = size == 0
        # Kept from the first unsynced write until a sync covers it: the kernel reports a lost write only through a descriptor
        # that was open when the write was lost, so this one must not be evicted and reopened in between.
        self.dirty_file: DiskFile | None = None
        self._bytes_since_index_entry = 0
        self._first_timestamp: int | None = None
        self._max_timestamp = NO_TIMESTAMP if size == 0 else _NOT_LOADED
        self._max_timestamp_offset = base_offset

    # -- indexes --------------------------------------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        if not self._indexes_are_loaded:
            self._load_indexes()
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if not self._indexes_are_loaded:
            self._load_indexes()
        return self._time_index

    @property
    def transaction_index(self) -> TransactionIndex:
        if not self._indexes_are_loaded:
            self._load_indexes()
        return self._transaction_index

    def _load_indexes(self) -> None:
        self._offset_index.load()
        self._time_index.load()
        self._transaction_index.load()
        self._indexes_are_loaded = True

    def reset_indexes(self, with_transactions: bool = True) -> None:
        """Empty the indexes. ``note_batch`` fills them again from the log; the transactions come from the producers' state."""
        self._offset_index.reset()
        self._time_index.reset()
        if with_transactions:
            self._transaction_index.reset()
        self._indexes_are_loaded = True
        self._bytes_since_index_entry = 0
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, self.base_offset

    # -- writing -------------------------------------------------------------------------------------------------------------

    def create_file(self) -> None:
        """The directory must be synced before a byte of this file counts as durable."""
        self.dirty_file = self._handles.create(self.path)

    def write(self, buffers: Sequence[Buffer], size: int) -> int:
        """Append bytes in one gathered write and return their position. After an OSError the size is unchanged, and ``cut`` must
        follow."""
        file = self.dirty_file
        if file is None:
            file = self.dirty_file = self._handles.open(self.path)
        position = self.size
        file.write(position, buffers)
        self.size = position + size
        return position

    def note_synced(self) -> None:
        """A sync covered every write so far, or the segment is new and empty: the descriptor may be evicted."""
        self.dirty_file = None

    def count_bytes_below(self, position: int) -> None:
        """Recovery trusts only the bytes below ``position``: the rest counts as absent."""
        self.size = position

    def cut(self) -> None:
        """Remove the partial bytes of a failed write."""
        file = self.dirty_file or self._handles.open(self.path)
        if file.size() > self.size:
            file.truncate(self.size)

    def note_batch(self, position: int, size: int, last_offset: int, max_timestamp: int, index_interval_bytes: int) -> None:
        """Index a batch that was written at ``position``."""
        if self._max_timestamp == _NOT_LOADED:
            self._load_max_timestamp()
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if position == 0:
            self._first_timestamp = max_timestamp
        if self._bytes_since_index_entry > index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self._max_timestamp, self._max_timestamp_offset)
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += size

    def close_for_appends(self) -> None:
        """Add an entry for the newest timestamp, so that the segment's age is known without reading it, and write the indexes.
        After an OSError they are still complete in memory, and ``write_indexes`` may be called again."""
        if self.size:
            self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset)
        self.write_indexes()

    def write_indexes(self) -> None:
        self.offset_index.write_tail()
        self.time_index.write_tail()
        self.transaction_index.write_tail()

    def index_files(self) -> list[DiskFile]:
        """The index files, opened, so that a sync on the executor does not depend on names that may change. Call
        ``write_indexes`` first."""
        paths = [self.offset_index.path, self.time_index.path]
        if self.transaction_index.entry_count:
            paths.append(self.transaction_index.path)
        return [self._disk.open(path, "write") for path in paths]

    # -- rolling -------------------------------------------------------------------------------------------------------------

    def should_roll(
        self, settings: LogSettings, jitter_ms: int, size: int, last_offset: int, timestamp: int, now_ms: int
    ) -> bool:
        """Whether a write of this size, last offset and timestamp must go into a new segment."""
        if last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return True
        size_now = self.size
        if size_now == 0:
            return False
        if size_now + size > settings.segment_bytes:
            return True
        first = self._first_timestamp
        if first is None:
            first = self._load_first_timestamp()
        waited_ms = timestamp - first if first >= 0 and timestamp >= 0 else now_ms - self.created_ms
        if waited_ms > settings.segment_ms - jitter_ms:
            return True
        if not self._indexes_are_loaded:
            self._load_indexes()
        # One more entry must fit; in the time index also the one that closing adds.
        entries_bytes_max = settings.segment_index_bytes
        return (self._offset_index.entry_count + 1) * OFFSET_ENTRY_BYTES > entries_bytes_max or (
            self._time_index.entry_count + 2
        ) * TIME_ENTRY_BYTES > entries_bytes_max

    def _load_first_timestamp(self) -> int:
        for _, header in scan_headers(self.file(), 0, self.size, LOOKUP_CHUNK_BYTES):
            self._first_timestamp = header.max_timestamp
            return header.max_timestamp
        return -1

    # -- reading -------------------------------------------------------------------------------------------------------------

    def file(self) -> DiskFile:
        return self.dirty_file or self._handles.open(self.path)

    @property
    def max_timestamp(self) -> int:
        """The newest timestamp in this segment; -1 when no record has one."""
        if self._max_timestamp == _NOT_LOADED:
            self._load_max_timestamp()
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the first batch that carries ``max_timestamp``."""
        if self._max_timestamp == _NOT_LOADED:
            self._load_max_timestamp()
        return self._max_timestamp_offset

    def max_timestamp_from(self, offset: int) -> Steps[int]:
        """The newest timestamp of a record at or above ``offset``. Reads from there on only when the newest of all lies below
        it, which may take long."""
        newest = self.find_batch(self.max_timestamp_offset) if offset > self.base_offset else None
        if offset <= self.base_offset or (newest is not None and newest[1].base_offset >= offset):
            return self.max_timestamp
        found = self.find_batch(offset)
        if found is None:
            return NO_TIMESTAMP
        position, header = found
        timestamp = NO_TIMESTAMP
        try:
            for number, record in enumerate((yield from self._records(position, header)), 1):
                if record.offset >= offset:
                    timestamp = max(timestamp, record.timestamp)
                if not number % LOOKUP_RECORDS_PER_STEP:
                    yield
        except RecordError:
            timestamp = header.max_timestamp
        rest = scan_headers(self.file(), position + header.size, self.size, LOOKUP_CHUNK_BYTES)
        for number, (_, later) in enumerate(rest, 1):
            timestamp = max(timestamp, later.max_timestamp)
            if not number % LOOKUP_RECORDS_PER_STEP:
                yield
        return timestamp

    def _load_max_timestamp(self) -> None:
        timestamp, offset = self.time_index.last_entry
        # Both indexes get their entries together, so only batches after the last entry can be newer.
        position = self.offset_index.last_position
        for _, header in scan_headers(self.file(), position, self.size, LOOKUP_CHUNK_BYTES):
            if header.max_timestamp > timestamp:
                timestamp, offset = header.max_timestamp, header.last_offset
        # Assigned last: a read that fails must not leave the segment with a timestamp that is too old.
        self._max_timestamp, self._max_timestamp_offset = timestamp, offset

    def find_batch(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return the first batch that ends at or above ``offset`` as (position, header); None when the segment ends before it."""
        position = self.offset_index.lookup(offset)[1]
        for found in scan_headers(self.file(), position, self.size, LOOKUP_CHUNK_BYTES):
            header = found[1]
            if header.base_offset + header.last_offset_delta >= offset:
                return found
        return None

    def cold_read(self, offset: int) -> Callable[[], object] | None:
        """What ``find_batch`` would wait for: a call for a helper thread that reads it into the page cache. None if there is
        nothing, as far as the kernel can tell. The index tells where the batch is, so ask again after the call."""
        paths: list[str] = []
        if not self._indexes_are_loaded:
            paths = [self._offset_index.path, self._time_index.path, self._transaction_index.path]
        elif not self._offset_index.is_in_memory(offset):
            paths = [self._offset_index.path]
        cold = [file for path in paths if (file := self._cold_file(path)) is not None]
        if cold:
            return partial(_read_whole, cold)
        position = self.offset_index.lookup(offset)[1]
        length = min(LOOKUP_CHUNK_BYTES, self.size - position)
        file = self.file()
        return None if length <= 0 or is_range_cached(file, position, length) else partial(file.read, position, length)

    def _cold_file(self, path: str) -> DiskFile | None:
        try:
            file = self._disk.open(path, "read")
        except FileNotFoundError:
            return None
        size = file.size()
        return None if not size or is_range_cached(file, 0, size) else file

    def is_recent(self, offset: int) -> bool:
        """Whether the batch with ``offset`` was among the last to be written, so that it is in the page cache."""
        return self._indexes_are_loaded and self._offset_index.is_recent(offset)

    def next_offset(self) -> int:
        """One past the last offset in this segment, by walking from the last index entry."""
        end = self.base_offset
        position = self.offset_index.last_position
        for _, header in scan_headers(self.file(), position, self.size, LOOKUP_CHUNK_BYTES):
            end = header.next_offset
        return end

    def find_timestamp(self, timestamp: int, start_offset: int) -> Steps[tuple[int, int, int] | None]:
        """The first record at or after ``start_offset`` stamped ``timestamp`` or later: (timestamp, offset, leader epoch). It has
        to read the records of a batch, which may take long."""
        if self.max_timestamp < timestamp:
            return None
        from_offset = max(self.time_index.lookup(timestamp)[1], start_offset)
        position = self.offset_index.lookup(from_offset)[1]
        for at, header in scan_headers(self.file(), position, self.size, LOOKUP_CHUNK_BYTES):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            try:
                for number, record in enumerate((yield from self._records(at, header)), 1):
                    if not number % LOOKUP_RECORDS_PER_STEP:
                        yield
                    if record.timestamp >= timestamp and record.offset >= start_offset:
                        # The deltas that a client sent may add up to more than a timestamp can hold; the header's maximum cannot.
                        return min(record.timestamp, header.max_timestamp), record.offset, header.leader_epoch
            except RecordError:
                # The records cannot be decoded, or are too many. That is the client's affair; the header has a timestamp.
                return header.max_timestamp, max(header.base_offset, start_offset), header.leader_epoch
        return None

    def _records(self, position: int, header: BatchHeader) -> Steps[Iterator[Record]]:
        """A batch that is large, or becomes so when it is decompressed, is read in a helper thread."""
        read = partial(_read_records, self.file(), position, header)
        if header.size <= LOOKUP_CHUNK_BYTES and header.compression is CompressionType.NONE:
            return read()
        records: Iterator[Record] = yield read
        return records

    # -- cutting and removing --------------------------------------------------------------------------------------------------

    def truncate_to(self, position: int, offset: int) -> None:
        """Keep the bytes before ``position``; ``offset`` is the first offset that is lost."""
        file = self.file()
        file.truncate(position)
        self.dirty_file = file
        self.size = position
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        self._bytes_since_index_entry = 0
        if position == 0:
            self._first_timestamp = None
            self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        else:
            self._max_timestamp = _NOT_LOADED

    def rename(self, state_suffix: str) -> None:
        """Rename every file of this segment to another state (``.deleted``, ``.swap`` or none)."""
        self._handles.forget(self.path)
        new_path = names.segment_path(self._directory, self.base_offset, names.LOG_SUFFIX) + state_suffix
        self._disk.rename(self.path, new_path)
        self.path = new_path
        for index in (self._offset_index, self._time_index, self._transaction_index):
            index.rename(names.strip_state(index.path) + state_suffix)

    def remove(self) -> None:
        """Delete this segment's files. Freeing a large file takes milliseconds, so it runs on the executor, except in
        recovery."""
        self._handles.forget(self.path)
        # When a segment is compacted twice within the delay, two deleted segments have the same name.
        if self._disk.exists(self.path):
            self._disk.remove(self.path)
        for index in (self._offset_index, self._time_index, self._transaction_index):
            index.remove()

    def forget_cached(self) -> None:
        """The directory was renamed: a new log of the same name must not find what is cached under the old names."""
        for index in (self._offset_index, self._time_index, self._transaction_index):
            index.relocate(index.path)


class Segments:
    __slots__ = ("_base_offsets", "_segments")

    def __init__(self, segments: list[LogSegment]) -> None:
        self._segments = segments
        self._base_offsets = [segment.base_offset for segment in segments]
        assert self._base_offsets == sorted(set(self._base_offsets)), "base offsets strictly rise"

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    def __getitem__(self, index: int) -> LogSegment:
        return self._segments[index]

    @property
    def active(self) -> LogSegment:
        return self._segments[-1]

    @property
    def closed(self) -> list[LogSegment]:
        return self._segments[:-1]

    def floor_index(self, offset: int) -> int:
        """The index of the segment that may hold ``offset``; 0 when the offset is below all segments."""
        index = bisect_right(self._base_offsets, offset) - 1
        return index if index > 0 else 0

    def from_offset(self, offset: int) -> list[LogSegment]:
        """Return every segment that may hold ``offset`` or more."""
        return self._segments[self.floor_index(offset) :]

    def base_offset_after(self, segment: LogSegment) -> int | None:
        index = bisect_right(self._base_offsets, segment.base_offset)
        return self._base_offsets[index] if index < len(self._base_offsets) else None

    def append(self, segment: LogSegment) -> None:
        assert not self._base_offsets or segment.base_offset > self._base_offsets[-1]
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)

    def replace(self, old: list[LogSegment], new: list[LogSegment]) -> None:
        """Replace ``old``, a run of neighbours, by ``new``."""
        start = self._segments.index(old[0])
        assert self._segments[start : start + len(old)] == old, "only neighbours are replaced together"
        self._segments[start : start + len(old)] = new
        self._base_offsets[start : start + len(old)] = [segment.base_offset for segment in new]

    def drop_first(self, count: int) -> None:
        del self._segments[:count]
        del self._base_offsets[:count]


def is_range_cached(file: DiskFile, position: int, length: int) -> bool:
    """Whether a range of a file is in the page cache, as far as the kernel can tell."""
    try:
        descriptor = file.descriptor()
    except OSError:
        return True  # A simulated file is all memory.
    return is_cached(descriptor, position, length)


def _read_whole(files: Sequence[DiskFile]) -> None:
    for file in files:
        file.read(0, file.size())
