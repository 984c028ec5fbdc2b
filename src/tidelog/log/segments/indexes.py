"""The three indexes of a segment, and the cache of their contents.

    ``.index``      offset -> position    8 bytes: offset relative to the base offset u32, position in the ``.log`` file u32
    ``.timeindex``  timestamp -> offset   12 bytes: timestamp in milliseconds i64, relative offset u32
    ``.txnindex``   aborted transactions  34 bytes: version i16 (0), producer id, first offset, last offset (that of the abort
                                          marker), last stable offset just after the abort (i64 each)

These are Kafka's formats, big-endian. All three hold entries of a fixed size, appended in order (``IndexFile``): a file, and a
tail of entries that are not in the file yet. When the tail passes ``SPILL_BYTES`` it is written to the file. The file's bytes
are not kept in memory: a lookup loads them through the ``IndexCache``. An index without entries takes only a few slots of
memory and has no file until its first spill or ``write_tail``.

A crash leaves any part of what was not synced. No index is the only copy: it can always be rebuilt from its segment, and
recovery does so from the recovery point on. ``check`` tells whether an index contradicts itself.

Kafka preallocates the offset and time index of its active segment with zeros and trims them when the segment closes; after a
crash of Kafka the zeros are still there. ``load`` counts only the entries before the zeros, and ``write_tail`` trims them. An
entry of zeros only says "the base offset is at position 0" (or "nothing is older than 1970"). A lookup gives that answer
without an entry too, so treating such an entry as padding loses nothing.

Invariants: ``entry_count == _written_count + len(_tail) / ENTRY_BYTES``; a cached content is exactly the first
``_written_count`` entries of the file.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import pairwise
from struct import Struct
from typing import ClassVar, NamedTuple

from tidelog.log.errors import CorruptIndex
from tidelog.ports.disk import Disk, DiskFile


class IndexCache:
    __slots__ = ("_contents", "bytes_held", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._contents: OrderedDict[str, bytearray] = OrderedDict()

    def get(self, path: str) -> bytearray | None:
        content = self._contents.get(path)
        if content is not None:
            self._contents.move_to_end(path)
        return content

    def put(self, path: str, content: bytearray) -> None:
        """Keep ``content``, which is the file's content now. Content larger than the whole cache is not kept."""
        self.discard(path)
        if len(content) <= self.bytes_max:
            self._contents[path] = content
            self.bytes_held += len(content)
            self._evict()

    def extend(self, path: str, data: bytes | bytearray) -> None:
        """Called when ``data`` was appended to the file. A file that is not cached stays so."""
        content = self._contents.get(path)
        if content is not None:
            content += data
            self.bytes_held += len(data)
            self._evict()

    def discard(self, path: str) -> None:
        content = self._contents.pop(path, None)
        if content is not None:
            self.bytes_held -= len(content)

    def _evict(self) -> None:
        while self.bytes_held > self.bytes_max:
            _, content = self._contents.popitem(last=False)
            self.bytes_held -= len(content)


# One page: small enough to keep for every active segment, large enough that opening the file for each spill does not matter.
SPILL_BYTES = 4096


class IndexFile:
    __slots__ = ("_cache", "_disk", "_tail", "_written_count", "base_offset", "entry_count", "path")

    ENTRY_BYTES: ClassVar[int]
    # A closed segment always has an offset and a time index, but a transaction index only when it has entries.
    EMPTY_FILE_IS_WRITTEN: ClassVar[bool] = True

    def __init__(self, disk: Disk, cache: IndexCache, path: str, base_offset: int) -> None:
        self._disk = disk
        self._cache = cache
        self._tail: bytearray | None = None
        self._written_count = 0
        self.path = path
        self.base_offset = base_offset
        self.entry_count = 0
        self._restore_last(b"")

    def _restore_last(self, entry: bytes) -> None:
        """Set ``entry`` as the last entry; it is empty if the index is."""
        raise NotImplementedError

    def check(self) -> None:
        """Read the whole index and raise CorruptIndex if it contradicts itself."""
        raise NotImplementedError

    def load(self) -> bool:
        """Load the file, reading only its end. Returns False if there is no file; then the index is empty."""
        self._cache.discard(self.path)
        self._tail = None
        count, last_entry = 0, b""
        try:
            file = self._disk.open(self.path, "read")
        except FileNotFoundError:
            found = False
        else:
            found = True
            count, last_entry = self._count_entries(file)
        self._written_count = self.entry_count = count
        self._restore_last(last_entry)
        return found

    def _count_entries(self, file: DiskFile) -> tuple[int, bytes]:
        """How many entries there are before the zeros, and the last of them."""
        size = self.ENTRY_BYTES
        count = file.size() // size
        if not count:
            return 0, b""
        last_entry = file.read((count - 1) * size, size)
        if any(last_entry):
            return count, last_entry
        # Entries, then zeros to the end: find where the zeros start. The first entry may be all zeros itself.
        low, high = 1, count
        while low < high:
            middle = (low + high) // 2
            if any(file.read(middle * size, size)):
                low = middle + 1
            else:
                high = middle
        last_entry = file.read((low - 1) * size, size)
        return (low, last_entry) if any(last_entry) else (0, b"")

    def write_tail(self) -> None:
        """Write all entries to the file, and nothing else. They are not durable yet."""
        tail = self._tail
        if tail is None and not self.entry_count and not self.EMPTY_FILE_IS_WRITTEN:
            return
        file = self._disk.open(self.path, "create")
        written_bytes = self._written_count * self.ENTRY_BYTES
        if tail:
            written_bytes += file.write(written_bytes, [tail])
        if file.size() > written_bytes:
            file.truncate(written_bytes)
        if tail:
            self._cache.extend(self.path, tail)
        self._tail = None
        self._written_count = self.entry_count

    def _spill(self) -> None:
        """Write the tail out from within an append.

        The batch is in the log already, so a full disk must not make its append fail: the tail stays in memory, and is tried
        again after as many further entries. Rolling and closing call ``write_tail``, which does report the error.
        """
        try:
            self.write_tail()
        except OSError:
            return

    def sync(self) -> None:
        """Make the file durable, after ``write_tail``. Blocks, and touches nothing but the file."""
        if self.entry_count or self.EMPTY_FILE_IS_WRITTEN:
            self._disk.open(self.path, "write").sync()

    def _body(self) -> bytearray:
        """The entries in the file."""
        content = self._cache.get(self.path)
        if content is None:
            wanted_bytes = self._written_count * self.ENTRY_BYTES
            content = bytearray(self._disk.open(self.path, "read").read(0, wanted_bytes) if wanted_bytes else b"")
            if len(content) != wanted_bytes:
                raise CorruptIndex(f"{self.path} has {len(content)} bytes where {wanted_bytes} were written")
            self._cache.put(self.path, content)
        return content

    def _content(self) -> bytes:
        """All entries, for the few callers that want every one."""
        body = self._body() if self._written_count else b""
        return b"".join((body, self._tail or b""))

    def _keep(self, count: int) -> None:
        """Drop all entries but the first ``count``."""
        size = self.ENTRY_BYTES
        if count >= self.entry_count:
            return
        if count < self._written_count:
            last_entry = bytes(self._body()[(count - 1) * size : count * size]) if count else b""
            self._disk.open(self.path, "write").truncate(count * size)
            self._cache.discard(self.path)
            self._tail = None
            self._written_count = count
        else:
            tail = self._tail or bytearray()
            del tail[(count - self._written_count) * size :]
            last_entry = bytes(tail[-size:]) if tail else bytes(self._body()[-size:])
            self._tail = tail or None
        self.entry_count = count
        self._restore_last(last_entry)

    def reset(self) -> None:
        """Drop all entries."""
        if self._disk.exists(self.path):
            self._disk.open(self.path, "write").truncate(0)
        self._cache.discard(self.path)
        self._tail = None
        self._written_count = self.entry_count = 0
        self._restore_last(b"")

    def rename(self, new_path: str) -> None:
        """Rename the file, if there is one. The directory is not synced: the caller renames several files and syncs once."""
        if self._disk.exists(self.path):
            self._disk.rename(self.path, new_path)
        self.relocate(new_path)

    def relocate(self, new_path: str) -> None:
        """The directory was renamed: the file is now at ``new_path``."""
        self._cache.discard(self.path)
        self._cache.discard(new_path)
        self.path = new_path

    def remove(self) -> None:
        """Remove the file, if there is one."""
        if self._disk.exists(self.path):
            self._disk.remove(self.path)
        self._cache.discard(self.path)
        self._tail = None
        self._written_count = self.entry_count = 0
        self._restore_last(b"")

    def _check_size(self) -> None:
        """The file must hold complete entries; a crash in the middle of a write can leave part of one."""
        if self._disk.exists(self.path):
            size_bytes = self._disk.file_size(self.path)
            if size_bytes % self.ENTRY_BYTES:
                raise CorruptIndex(f"{self.path} has {size_bytes} bytes, which is not a multiple of {self.ENTRY_BYTES}")


_OFFSET_ENTRY = Struct(">II")
_RELATIVE_OFFSET = Struct(">I")
_pack_offset_entry = _OFFSET_ENTRY.pack
_unpack_offset_entry = _OFFSET_ENTRY.unpack_from
_unpack_relative_offset = _RELATIVE_OFFSET.unpack_from


class OffsetIndex(IndexFile):
    __slots__ = ("last_offset", "last_position")

    ENTRY_BYTES = 8

    last_offset: int
    last_position: int

    def _restore_last(self, entry: bytes) -> None:
        relative_offset, self.last_position = _OFFSET_ENTRY.unpack(entry) if entry else (0, 0)
        self.last_offset = self.base_offset + relative_offset

    def append(self, offset: int, position: int) -> None:
        assert offset > self.last_offset or not self.entry_count, (offset, self.last_offset)
        tail = self._tail
        if tail is None:
            tail = self._tail = bytearray()
        tail += _pack_offset_entry(offset - self.base_offset, position)
        self.entry_count += 1
        self.last_offset = offset
        self.last_position = position
        if not len(tail) % SPILL_BYTES:
            self._spill()

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return the greatest entry at or below ``offset`` as (offset, position); the beginning of the segment if there is no
        entry."""
        if offset >= self.last_offset:
            return self.last_offset, self.last_position
        base_offset = self.base_offset
        target = offset - base_offset
        content = self._tail
        if content is None or _unpack_relative_offset(content)[0] > target:
            if not self._written_count:
                return base_offset, 0
            content = self._body()
        count = _offset_entries_below(content, target + 1)
        if not count:
            return base_offset, 0
        relative_offset, position = _unpack_offset_entry(content, (count - 1) * 8)
        return base_offset + relative_offset, position

    def is_in_memory(self, offset: int) -> bool:
        """Whether a lookup of ``offset`` needs nothing from the file."""
        if offset >= self.last_offset or not self._written_count or self._cache.get(self.path) is not None:
            return True
        return self._tail is not None and _unpack_relative_offset(self._tail)[0] <= offset - self.base_offset

    def is_recent(self, offset: int) -> bool:
        """Whether the batch with ``offset`` was among the last to be written."""
        tail = self._tail
        return offset >= self.last_offset or (tail is not None and _unpack_relative_offset(tail)[0] <= offset - self.base_offset)

    def first_offset_at(self, position: int) -> int | None:
        """The offset of the first entry at or after ``position``; a batch that begins before ``position`` ends below that
        offset."""
        if not self.entry_count or position > self.last_position:
            return None
        content = self._tail
        if self._written_count:
            body = self._body()
            if content is None or _unpack_offset_entry(body, len(body) - 8)[1] >= position:
                content = body
        assert content is not None
        low, high = 0, len(content) >> 3
        while low < high:
            middle = (low + high) >> 1
            if _unpack_offset_entry(content, middle << 3)[1] < position:
                low = middle + 1
            else:
                high = middle
        relative_offset: int = _unpack_relative_offset(content, low << 3)[0]
        return self.base_offset + relative_offset

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above ``offset``."""
        target = offset - self.base_offset
        tail = self._tail
        if tail is not None and _unpack_relative_offset(tail)[0] < target:
            self._keep(self._written_count + _offset_entries_below(tail, target))
        elif self._written_count:
            self._keep(_offset_entries_below(self._body(), target))
        else:
            self._keep(0)

    def entries(self) -> Iterator[tuple[int, int]]:
        """All entries as (offset, position)."""
        base_offset = self.base_offset
        for relative_offset, position in _OFFSET_ENTRY.iter_unpack(self._content()):
            yield base_offset + relative_offset, position

    def check(self) -> None:
        self._check_size()
        for number, (earlier, later) in enumerate(pairwise(_OFFSET_ENTRY.iter_unpack(self._content())), start=1):
            if later[0] <= earlier[0] or later[1] <= earlier[1]:
                raise CorruptIndex(
                    f"{self.path}: entry {number} (offset {self.base_offset + later[0]}, position {later[1]}) does not come "
                    f"after entry {number - 1} (offset {self.base_offset + earlier[0]}, position {earlier[1]})"
                )


def _offset_entries_below(content: bytearray, target: int) -> int:
    """How many entries have a relative offset below ``target``."""
    unpack = _unpack_relative_offset
    low = 0
    high = len(content) >> 3
    while low < high:
        middle = (low + high) >> 1
        if unpack(content, middle << 3)[0] < target:
            low = middle + 1
        else:
            high = middle
    return low


NO_TIMESTAMP = -1

_TIME_ENTRY = Struct(">qI")
_pack_time_entry = _TIME_ENTRY.pack
_unpack_time_entry = _TIME_ENTRY.unpack_from
_unpack_timestamp = Struct(">q").unpack_from
_SPILL_BYTES = SPILL_BYTES // 12 * 12


class TimeIndexEntry(NamedTuple):
    timestamp: int
    offset: int


class TimeIndex(IndexFile):
    __slots__ = ("last_offset", "last_timestamp")

    ENTRY_BYTES = 12

    last_offset: int
    last_timestamp: int

    def _restore_last(self, entry: bytes) -> None:
        self.last_timestamp, relative_offset = _TIME_ENTRY.unpack(entry) if entry else (NO_TIMESTAMP, 0)
        self.last_offset = self.base_offset + relative_offset

    @property
    def last_entry(self) -> TimeIndexEntry:
        """The last entry; (-1, base offset) if there is no entry."""
        return TimeIndexEntry(self.last_timestamp, self.last_offset)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Append, unless the last entry is at least as late."""
        if timestamp <= self.last_timestamp:
            return
        assert offset >= self.last_offset, (offset, self.last_offset)
        tail = self._tail
        if tail is None:
            tail = self._tail = bytearray()
        tail += _pack_time_entry(timestamp, offset - self.base_offset)
        self.entry_count += 1
        self.last_timestamp = timestamp
        self.last_offset = offset
        if not len(tail) % _SPILL_BYTES:
            self._spill()

    def lookup(self, timestamp: int) -> TimeIndexEntry:
        """Return the greatest entry at or below ``timestamp``; (-1, base offset) if there is no entry."""
        if timestamp >= self.last_timestamp:
            return self.last_entry
        content = self._tail
        if content is None or _unpack_timestamp(content)[0] > timestamp:
            if not self._written_count:
                return TimeIndexEntry(NO_TIMESTAMP, self.base_offset)
            content = self._body()
        low = 0
        high = len(content) // 12
        while low < high:
            middle = (low + high) >> 1
            if _unpack_timestamp(content, middle * 12)[0] <= timestamp:
                low = middle + 1
            else:
                high = middle
        if not low:
            return TimeIndexEntry(NO_TIMESTAMP, self.base_offset)
        found, relative_offset = _unpack_time_entry(content, (low - 1) * 12)
        return TimeIndexEntry(found, self.base_offset + relative_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above ``offset``."""
        target = offset - self.base_offset
        tail = self._tail
        if tail is not None and _unpack_time_entry(tail)[1] < target:
            self._keep(self._written_count + _time_entries_below_offset(tail, target))
        elif self._written_count:
            self._keep(_time_entries_below_offset(self._body(), target))
        else:
            self._keep(0)

    def entries(self) -> Iterator[TimeIndexEntry]:
        base_offset = self.base_offset
        for timestamp, relative_offset in _TIME_ENTRY.iter_unpack(self._content()):
            yield TimeIndexEntry(timestamp, base_offset + relative_offset)

    def check(self) -> None:
        self._check_size()
        for number, (earlier, later) in enumerate(pairwise(_TIME_ENTRY.iter_unpack(self._content())), start=1):
            if later[0] <= earlier[0] or later[1] < earlier[1]:
                raise CorruptIndex(
                    f"{self.path}: entry {number} (timestamp {later[0]}, offset {self.base_offset + later[1]}) does not come "
                    f"after entry {number - 1} (timestamp {earlier[0]}, offset {self.base_offset + earlier[1]})"
                )


def _time_entries_below_offset(content: bytearray, target: int) -> int:
    """How many entries have a relative offset below ``target``."""
    low = 0
    high = len(content) // 12
    while low < high:
        middle = (low + high) >> 1
        if _unpack_time_entry(content, middle * 12)[1] < target:
            low = middle + 1
        else:
            high = middle
    return low


_TRANSACTION_ENTRY = Struct(">hqqqq")
_TRANSACTION_VERSION = 0
_unpack_last_offset = Struct(">18xq").unpack_from
_unpack_last_stable_offset = Struct(">26xq").unpack_from
# The entries whose first offsets a search looks into together.
BLOCK_ENTRIES = 1024
# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and a search may find many thousands.
_new_tuple = tuple.__new__


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex(IndexFile):
    """Entries have rising last offsets, and last stable offsets that do not fall. Their first offsets are in no order. While a
    transaction stays open the last stable offset stands still, and then nothing in an entry tells where a search may end. So a
    search remembers the lowest first offset of each block of entries, and the next one skips blocks by it."""

    __slots__ = ("_lowest_of_block", "last_offset")

    ENTRY_BYTES = 34
    EMPTY_FILE_IS_WRITTEN = False

    last_offset: int

    def _restore_last(self, entry: bytes) -> None:
        self.last_offset = _unpack_last_offset(entry)[0] if entry else -1
        # The lowest first offset of each complete block that a search has looked into.
        self._lowest_of_block: dict[int, int] = {}

    def append(self, transaction: AbortedTransaction) -> None:
        assert transaction.last_offset > self.last_offset, (transaction, self.last_offset)
        if self._tail is None:
            self._tail = bytearray()
        self._tail += _TRANSACTION_ENTRY.pack(_TRANSACTION_VERSION, *transaction)
        self.entry_count += 1
        self.last_offset = transaction.last_offset
        if len(self._tail) >= SPILL_BYTES:
            self._spill()

    def collect(self, first_offset: int, upper_bound_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [first_offset, upper_bound_offset) whose marker is in this segment."""
        found: list[AbortedTransaction] = []
        self.collect_into(found, first_offset, upper_bound_offset)
        return found

    def collect_into(
        self, found: list[AbortedTransaction], first_offset: int, upper_bound_offset: int, enough: int | None = None
    ) -> bool:
        """Like ``collect``, but adds to ``found``. Returns True when the search may end: no later segment can matter, or
        more than ``enough`` are found."""
        if self.last_offset < first_offset:
            return False
        content = memoryview(self._content())
        count = self.entry_count
        position = _entries_below(content, first_offset, _unpack_last_offset)
        # Nothing after the first entry that was written when all that is wanted was stable can matter.
        last = max(_entries_below(content, upper_bound_offset, _unpack_last_stable_offset), position)
        end = min(last + 1, count)
        while position < end:
            block = position // BLOCK_ENTRIES
            block_end = min((block + 1) * BLOCK_ENTRIES, end)
            if self._lowest(content, block) < upper_bound_offset:
                entries = content[position * 34 : block_end * 34]
                found += [
                    _new_tuple(AbortedTransaction, (producer_id, first, end_offset, stable))
                    for _, producer_id, first, end_offset, stable in _TRANSACTION_ENTRY.iter_unpack(entries)
                    if first < upper_bound_offset
                ]
            position = block_end
            if enough is not None and len(found) > enough:
                return True
        return last < count

    def _lowest(self, content: memoryview, block: int) -> int:
        """The lowest first offset of a block, or -1 if the block is not complete."""
        lowest = self._lowest_of_block.get(block)
        if lowest is None:
            start, end = block * BLOCK_ENTRIES, (block + 1) * BLOCK_ENTRIES
            if end > self.entry_count:
                return -1
            lowest = min([entry[2] for entry in _TRANSACTION_ENTRY.iter_unpack(content[start * 34 : end * 34])])
            self._lowest_of_block[block] = lowest
        return lowest

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose marker is at or above ``offset``."""
        if self.entry_count and self.last_offset >= offset:
            self._keep(_entries_below(self._content(), offset, _unpack_last_offset))

    def entries(self, from_offset: int = 0) -> Iterator[AbortedTransaction]:
        """The transactions whose marker is at or above ``from_offset``, in order."""
        content = self._content()
        start = _entries_below(content, from_offset, _unpack_last_offset) if from_offset else 0
        for _, *fields in _TRANSACTION_ENTRY.iter_unpack(memoryview(content)[start * 34 :]):
            yield AbortedTransaction(*fields)

    def check(self) -> None:
        self._check_size()
        last_offset, last_stable_offset = self.base_offset - 1, -1
        for number, (version, *fields) in enumerate(_TRANSACTION_ENTRY.iter_unpack(self._content())):
            transaction = AbortedTransaction(*fields)
            if version != _TRANSACTION_VERSION:
                raise CorruptIndex(f"{self.path}: entry {number} has version {version}, only {_TRANSACTION_VERSION} is known")
            if transaction.first_offset > transaction.last_offset:
                raise CorruptIndex(f"{self.path}: entry {number} ends before it begins: {transaction}")
            if transaction.last_offset <= last_offset or transaction.last_stable_offset < last_stable_offset:
                raise CorruptIndex(
                    f"{self.path}: entry {number} does not come after last offset {last_offset} and last stable offset "
                    f"{last_stable_offset}: {transaction}"
                )
            last_offset, last_stable_offset = transaction.last_offset, transaction.last_stable_offset


def _entries_below(content: bytes | memoryview, offset: int, unpack: Callable[..., tuple[int]]) -> int:
    """How many transactions come before ``offset``, by the offset that ``unpack`` reads. It rises from entry to entry."""
    low = 0
    high = len(content) // 34
    while low < high:
        middle = (low + high) >> 1
        if unpack(content, middle * 34)[0] < offset:
            low = middle + 1
        else:
            high = middle
    return low
