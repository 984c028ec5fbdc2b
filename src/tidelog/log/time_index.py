"""Timestamp to offset in a segment's ``.timeindex`` file.

Kafka's bytes: entries of 12, each a timestamp in milliseconds (i64, big-endian) and an offset relative to the segment's base
(u32). An entry (t, o) says: no record at or below offset o is later than t, and the batch that ends at o holds t. So the first
record at or after a time is found by going to the greatest entry below it and scanning. What a crash leaves: see index_file.py.

Invariant: timestamps rise strictly from entry to entry, offsets never fall.
"""

from collections.abc import Iterator
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from tidelog.log.errors import CorruptIndex
from tidelog.log.index_file import SPILL_BYTES, IndexFile

NO_TIMESTAMP = -1

_ENTRY = Struct(">qI")
_pack_entry = _ENTRY.pack
_unpack_entry = _ENTRY.unpack_from
_unpack_timestamp = Struct(">q").unpack_from
_SPILL_BYTES = SPILL_BYTES // 12 * 12


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class TimeIndex(IndexFile):
    __slots__ = ("last_offset", "last_timestamp")

    ENTRY_BYTES = 12

    last_offset: int
    last_timestamp: int

    def _restore_last(self, entry: bytes) -> None:
        self.last_timestamp, relative_offset = _ENTRY.unpack(entry) if entry else (NO_TIMESTAMP, 0)
        self.last_offset = self.base_offset + relative_offset

    @property
    def last_entry(self) -> TimestampOffset:
        """(-1, base offset) when there is none."""
        return TimestampOffset(self.last_timestamp, self.last_offset)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Append, unless the last entry is at least as late."""
        if timestamp <= self.last_timestamp:
            return
        assert offset >= self.last_offset, (offset, self.last_offset)
        tail = self._tail
        if tail is None:
            tail = self._tail = bytearray()
        tail += _pack_entry(timestamp, offset - self.base_offset)
        self.entry_count += 1
        self.last_timestamp = timestamp
        self.last_offset = offset
        if not len(tail) % _SPILL_BYTES:
            self._spill()

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The greatest entry at or below ``timestamp``; (-1, base offset) when there is none."""
        if timestamp >= self.last_timestamp:
            return self.last_entry
        content = self._tail
        if content is None or _unpack_timestamp(content)[0] > timestamp:
            if not self._written_count:
                return TimestampOffset(NO_TIMESTAMP, self.base_offset)
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
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        found, relative_offset = _unpack_entry(content, (low - 1) * 12)
        return TimestampOffset(found, self.base_offset + relative_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above ``offset``."""
        target = offset - self.base_offset
        tail = self._tail
        if tail is not None and _unpack_entry(tail)[1] < target:
            self._keep(self._written_count + _entries_below_offset(tail, target))
        elif self._written_count:
            self._keep(_entries_below_offset(self._body(), target))
        else:
            self._keep(0)

    def entries(self) -> Iterator[TimestampOffset]:
        base_offset = self.base_offset
        for timestamp, relative_offset in _ENTRY.iter_unpack(self._content()):
            yield TimestampOffset(timestamp, base_offset + relative_offset)

    def check(self) -> None:
        self._check_size()
        for number, (earlier, later) in enumerate(pairwise(_ENTRY.iter_unpack(self._content())), start=1):
            if later[0] <= earlier[0] or later[1] < earlier[1]:
                raise CorruptIndex(
                    f"{self.path}: entry {number} (timestamp {later[0]}, offset {self.base_offset + later[1]}) does not come "
                    f"after entry {number - 1} (timestamp {earlier[0]}, offset {self.base_offset + earlier[1]})"
                )


def _entries_below_offset(content: bytearray, target: int) -> int:
    """How many entries have a relative offset below ``target``."""
    low = 0
    high = len(content) // 12
    while low < high:
        middle = (low + high) >> 1
        if _unpack_entry(content, middle * 12)[1] < target:
            low = middle + 1
        else:
            high = middle
    return low
