"""Offset to position in a segment's ``.index`` file.

Kafka's bytes: entries of 8, each the offset relative to the segment's base (u32, big-endian) and the position in the ``.log``
file (u32). Sparse: one entry per ``index.interval.bytes`` or so; a reader goes to the greatest entry at or below its offset and
scans batch headers from there. What a crash leaves: see index_file.py.

Invariant: offsets and positions both rise strictly from entry to entry.
"""

from collections.abc import Iterator
from itertools import pairwise
from struct import Struct

from tidelog.log.errors import CorruptIndex
from tidelog.log.index_file import SPILL_BYTES, IndexFile

_ENTRY = Struct(">II")
_RELATIVE_OFFSET = Struct(">I")
_pack_entry = _ENTRY.pack
_unpack_entry = _ENTRY.unpack_from
_unpack_relative_offset = _RELATIVE_OFFSET.unpack_from


class OffsetIndex(IndexFile):
    __slots__ = ("last_offset", "last_position")

    ENTRY_BYTES = 8

    last_offset: int
    last_position: int

    def _restore_last(self, entry: bytes) -> None:
        relative_offset, self.last_position = _ENTRY.unpack(entry) if entry else (0, 0)
        self.last_offset = self.base_offset + relative_offset

    def append(self, offset: int, position: int) -> None:
        assert offset > self.last_offset or not self.entry_count, (offset, self.last_offset)
        tail = self._tail
        if tail is None:
            tail = self._tail = bytearray()
        tail += _pack_entry(offset - self.base_offset, position)
        self.entry_count += 1
        self.last_offset = offset
        self.last_position = position
        if not len(tail) % SPILL_BYTES:
            self._spill()

    def lookup(self, offset: int) -> tuple[int, int]:
        """The greatest entry at or below ``offset`` as (offset, position); the segment's very start when there is none."""
        if offset >= self.last_offset:
            return self.last_offset, self.last_position
        base_offset = self.base_offset
        target = offset - base_offset
        content = self._tail
        if content is None or _unpack_relative_offset(content)[0] > target:
            if not self._written_count:
                return base_offset, 0
            content = self._body()
        count = _entries_below(content, target + 1)
        if not count:
            return base_offset, 0
        relative_offset, position = _unpack_entry(content, (count - 1) * 8)
        return base_offset + relative_offset, position

    def first_offset_at(self, position: int) -> int | None:
        """The offset of the first entry at or after ``position``; a batch that begins before it ends below that offset."""
        if not self.entry_count or position > self.last_position:
            return None
        content = self._tail
        if self._written_count:
            body = self._body()
            if content is None or _unpack_entry(body, len(body) - 8)[1] >= position:
                content = body
        assert content is not None
        low, high = 0, len(content) >> 3
        while low < high:
            middle = (low + high) >> 1
            if _unpack_entry(content, middle << 3)[1] < position:
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
            self._keep(self._written_count + _entries_below(tail, target))
        elif self._written_count:
            self._keep(_entries_below(self._body(), target))
        else:
            self._keep(0)

    def entries(self) -> Iterator[tuple[int, int]]:
        """All entries as (offset, position)."""
        base_offset = self.base_offset
        for relative_offset, position in _ENTRY.iter_unpack(self._content()):
            yield base_offset + relative_offset, position

    def check(self) -> None:
        self._check_size()
        for number, (earlier, later) in enumerate(pairwise(_ENTRY.iter_unpack(self._content())), start=1):
            if later[0] <= earlier[0] or later[1] <= earlier[1]:
                raise CorruptIndex(
                    f"{self.path}: entry {number} (offset {self.base_offset + later[0]}, position {later[1]}) does not come "
                    f"after entry {number - 1} (offset {self.base_offset + earlier[0]}, position {earlier[1]})"
                )


def _entries_below(content: bytearray, target: int) -> int:
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
