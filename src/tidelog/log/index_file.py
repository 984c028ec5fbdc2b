"""What the three index files have in common: fixed-size entries, appended in order.

An index is a file of entries and a tail of entries that are not in the file yet. Appends go to the tail; when it passes
``SPILL_BYTES`` it is written out. The file's bytes are not in memory: a lookup loads them through the ``IndexCache``. An index
without entries is a handful of slots and has no file before its first spill or ``write_tail``.

A crash leaves any part of what was not synced. Nothing here is the only copy: an index can always be rebuilt from its segment,
and recovery does so from the recovery point on. ``check`` tells whether an index contradicts itself.

Kafka preallocates the offset and time index of its active segment with zeros and cuts them when the segment closes; after
its crash the zeros are still there. ``load`` counts only entries before the zeros, and ``write_tail`` cuts them off. An entry of
zeros alone says "the base offset is at position 0" (or "nothing is older than 1970"), which a lookup answers anyway without
an entry, so none is lost by taking it for padding.

Invariants: ``entry_count == _written_count + len(_tail) / ENTRY_BYTES``; a cached content is exactly the first ``_written_count``
entries of the file.
"""

from typing import ClassVar

from tidelog.log.errors import CorruptIndex
from tidelog.log.index_cache import IndexCache
from tidelog.ports.disk import Disk, DiskFile

# One page: small enough to hold for every active segment, large enough that opening the file per spill does not count.
SPILL_BYTES = 4096


class IndexFile:
    __slots__ = ("_cache", "_disk", "_tail", "_written_count", "base_offset", "entry_count", "path")

    ENTRY_BYTES: ClassVar[int]
    # The offset and time index of a closed segment are always there; a transaction index only when it has entries.
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
        """The last entry is now this one; empty when there is none."""
        raise NotImplementedError

    def check(self) -> None:
        """Read it all and raise CorruptIndex if it contradicts itself."""
        raise NotImplementedError

    def load(self) -> bool:
        """Take the file as it is; only its end is read. False when there is none, and the index is then empty."""
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
        """All entries are in the file when this returns, and nothing else; not yet durable."""
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

        The batch is in the log already, so a full disk must not turn its append into a failure: the tail stays in memory, and
        is tried again after as many entries more. Rolling and closing call ``write_tail``, which does report it.
        """
        try:
            self.write_tail()
        except OSError:
            return

    def sync(self) -> None:
        """Make the file durable; ``write_tail`` was called before. Blocks, and touches nothing but the file."""
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
        """All entries, for the rare callers that want every one."""
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
        """The directory was renamed: the same file is now found here."""
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
        """The file must hold whole entries; a crash of the process in mid-write can leave part of one."""
        if self._disk.exists(self.path):
            size_bytes = self._disk.file_size(self.path)
            if size_bytes % self.ENTRY_BYTES:
                raise CorruptIndex(f"{self.path} has {size_bytes} bytes, which is no multiple of {self.ENTRY_BYTES}")
