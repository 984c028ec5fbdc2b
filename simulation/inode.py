"""The bytes of a simulated file: what a read returns, and what a power cut would leave.

``data`` is the page cache's view. For each page that was written since the last sync, ``dirty`` keeps the page as it is on the
disk; so a sync only forgets these, and the disk's view is ``data`` with them put back. ``data`` is shared between an inode
and its crash images until one of them writes (``owned``).

After a failed sync the pages are clean in the cache but not on the disk, as in Linux: they move to ``phantom``, where no later
sync touches them unless they are written again. The size is metadata and stays to be synced.

What a power cut leaves of un-synced work:
- each dirty page by itself is kept, lost, or torn at sector granularity;
- each phantom page is lost;
- the size is any between the synced and the written one, and lost pages inside it read as zeros where there was nothing before;
- a truncation below the synced size is kept or lost as one piece: if lost, the bytes behind it are the old ones.
"""

from tidelog.ports.randomness import Randomness

PAGE_BYTES = 4096
SECTOR_BYTES = 512

# How likely one file's pages are to be kept. This is drawn once per file: with one fixed likelihood a file with many dirty pages
# would hardly ever be kept whole or lost whole.
_KEEP_LIKELIHOODS = (0.0, 0.1, 0.5, 0.9, 1.0)
_TORN_LIKELIHOOD = 0.2


class Inode:
    __slots__ = (
        "data",
        "dirty",
        "durable_size",
        "error_count",
        "linked",
        "locked",
        "modified_ms",
        "owned",
        "phantom",
        "truncated_to",
    )

    def __init__(self, modified_ms: int) -> None:
        self.data = bytearray()
        self.owned = True
        self.dirty: dict[int, bytes] = {}
        self.phantom: dict[int, bytes] = {}
        self.durable_size = 0
        # The lowest size below ``durable_size`` to which it was truncated since the last sync.
        self.truncated_to: int | None = None
        self.modified_ms = modified_ms
        # Whether a name leads to it: a removed file takes no space.
        self.linked = True
        self.locked = False
        # The number of failed syncs: an open file reports each failure once.
        self.error_count = 0

    def is_synced(self) -> bool:
        return not self.dirty and self.durable_size == len(self.data) and self.truncated_to is None

    def read(self, position: int, length: int) -> bytes:
        return bytes(memoryview(self.data)[position : position + length])

    def write(self, position: int, buffer: bytes | bytearray | memoryview) -> None:
        length = len(buffer)
        if not length:
            return
        self._before_change(position // PAGE_BYTES, (position + length - 1) // PAGE_BYTES)
        data = self.data
        if position > len(data):
            data.extend(bytes(position - len(data)))
        data[position : position + length] = buffer

    def truncate(self, size: int) -> None:
        end = len(self.data)
        if size < end:
            self._before_change(size // PAGE_BYTES, (end - 1) // PAGE_BYTES)
            del self.data[size:]
            if size < self.durable_size and (self.truncated_to is None or size < self.truncated_to):
                self.truncated_to = size
        elif size > end:
            self._own()
            self.data.extend(bytes(size - end))

    def sync(self) -> None:
        self.dirty.clear()
        self.durable_size = len(self.data)
        self.truncated_to = None

    def fail_sync(self) -> None:
        self.phantom.update(self.dirty)
        self.dirty.clear()
        self.error_count += 1

    def drop_clean_pages(self) -> None:
        """Drop the cache's clean pages: those that never reached the disk show its old content again."""
        if self.phantom:
            self._own()
            for page, old in self.phantom.items():
                _put_page(self.data, page, old)
            self.phantom.clear()

    def flip_bit(self, position: int, bit: int) -> None:
        """Flip a bit on the disk, and in the cache as if the page had just been read from there."""
        self._own()
        self.data[position] ^= 1 << bit
        page, offset = divmod(position, PAGE_BYTES)
        for old_pages in (self.dirty, self.phantom):
            old = old_pages.get(page)
            if old is not None and offset < len(old):
                changed = bytearray(old)
                changed[offset] ^= 1 << bit
                old_pages[page] = bytes(changed)

    def after_kill(self) -> "Inode":
        """Return a copy as the next process finds it after kill -9: the page cache survives, unsynced as it was."""
        copy = self._share()
        copy.dirty = self.dirty.copy()
        copy.phantom = self.phantom.copy()
        copy.durable_size = self.durable_size
        copy.truncated_to = self.truncated_to
        return copy

    def after_power_cut(self, randomness: Randomness | None) -> "Inode":
        """Return a copy as the disk may show it after a power cut; without randomness, only what was synced."""
        if not self.dirty and not self.phantom and self.durable_size == len(self.data) and self.truncated_to is None:
            return self._share()
        copy = Inode(self.modified_ms)
        if randomness is None:
            copy.data = self._only_synced()
        elif self.truncated_to is not None and randomness.fraction() < 0.5:
            copy.data = self._without_truncation(randomness, self.truncated_to)
        else:
            copy.data = self._with_some_pages(randomness)
        copy.durable_size = len(copy.data)
        return copy

    def _only_synced(self) -> bytearray:
        data = _resized(self.data, self.durable_size)
        for pages in (self.dirty, self.phantom):
            for page, old in pages.items():
                _put_page(data, page, old)
        return data

    def _without_truncation(self, randomness: Randomness, truncated_to: int) -> bytearray:
        """Return the content if the truncation was lost: everything behind it is old, and pages before it (including the one it
        cut) are treated like any other."""
        data = _resized(self.data, self.durable_size)
        first_page_behind = -(-truncated_to // PAGE_BYTES)
        before = {page: old for page, old in self.dirty.items() if page < first_page_behind}
        for page, old in self.dirty.items():
            if page >= first_page_behind:
                _put_page(data, page, old)
        self._lose_pages(data, before, randomness)
        return data

    def _with_some_pages(self, randomness: Randomness) -> bytearray:
        low = self.durable_size
        dirty = self.dirty
        if self.truncated_to is not None:
            low = cut = self.truncated_to
            dirty = {page: old[: max(0, cut - page * PAGE_BYTES)] for page, old in dirty.items()}
        data = self.data.copy()
        self._lose_pages(data, dirty, randomness)
        size = _draw_size(low, len(data), randomness)
        del data[size:]
        return data

    def _lose_pages(self, data: bytearray, dirty: dict[int, bytes], randomness: Randomness) -> None:
        fraction = randomness.fraction
        keep = _KEEP_LIKELIHOODS[int(fraction() * len(_KEEP_LIKELIHOODS))]
        for page, old in dirty.items():
            if fraction() < keep:
                continue
            if keep and fraction() < _TORN_LIKELIHOOD:
                _tear_page(data, page, old, int(fraction() * 256))
            else:
                _put_page(data, page, old)
        for page, old in self.phantom.items():
            _put_page(data, page, old)

    def _before_change(self, first_page: int, last_page: int) -> None:
        """Keep the disk's content of pages that are about to change."""
        self._own()
        dirty = self.dirty
        data = self.data
        for page in range(first_page, last_page + 1):
            if page not in dirty:
                old = self.phantom.pop(page, None) if self.phantom else None
                if old is None:
                    start = page * PAGE_BYTES
                    old = bytes(memoryview(data)[start : start + PAGE_BYTES])
                dirty[page] = old

    def _share(self) -> "Inode":
        copy = Inode(self.modified_ms)
        copy.data = self.data
        copy.durable_size = len(self.data)
        copy.owned = self.owned = False
        return copy

    def _own(self) -> None:
        if not self.owned:
            self.data = self.data.copy()
            self.owned = True


def _resized(data: bytearray, size: int) -> bytearray:
    copy = data[:size]
    if len(copy) < size:
        copy.extend(bytes(size - len(copy)))
    return copy


def _put_page(data: bytearray, page: int, content: bytes) -> None:
    """Overwrite a page, as far as it is inside the file; what ``content`` does not cover reads as zeros."""
    start = page * PAGE_BYTES
    length = min(PAGE_BYTES, len(data) - start)
    if length > 0:
        data[start : start + length] = content[:length].ljust(length, b"\0")


def _tear_page(data: bytearray, page: int, old: bytes, lost_sectors: int) -> None:
    """Put back the old content of those sectors of a page whose bit is set."""
    start = page * PAGE_BYTES
    for sector in range(PAGE_BYTES // SECTOR_BYTES):
        if lost_sectors >> sector & 1:
            offset = sector * SECTOR_BYTES
            length = min(SECTOR_BYTES, len(data) - start - offset)
            if length > 0:
                content = old[offset : offset + length].ljust(length, b"\0")
                data[start + offset : start + offset + length] = content


def _draw_size(low: int, high: int, randomness: Randomness) -> int:
    """Often one of the ends (nothing of the new size reached the disk, or all), else the end of a page or any size between."""
    if low == high:
        return low
    draw = randomness.fraction()
    if draw < 0.25:
        return low
    if draw < 0.6:
        return high
    size = low + int(randomness.fraction() * (high - low + 1))
    return size if draw < 0.8 else max(low, size - size % PAGE_BYTES)
