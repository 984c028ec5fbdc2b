"""The segments of one log, in order of base offset.

A plain sorted list with its base offsets beside it: lookups are a bisection, and a log with one segment costs two one-element
lists.
"""

from bisect import bisect_right
from collections.abc import Iterator

from tidelog.log.segment import LogSegment


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
        """Where the segment that may hold ``offset`` stands; 0 when the offset is below all of them."""
        index = bisect_right(self._base_offsets, offset) - 1
        return index if index > 0 else 0

    def from_offset(self, offset: int) -> list[LogSegment]:
        """Every segment that may hold ``offset`` or more."""
        return self._segments[self.floor_index(offset) :]

    def base_offset_after(self, segment: LogSegment) -> int | None:
        index = bisect_right(self._base_offsets, segment.base_offset)
        return self._base_offsets[index] if index < len(self._base_offsets) else None

    def append(self, segment: LogSegment) -> None:
        assert not self._base_offsets or segment.base_offset > self._base_offsets[-1]
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)

    def replace(self, old: list[LogSegment], new: list[LogSegment]) -> None:
        """Put ``new`` where ``old``, a run of neighbours, stood."""
        start = self._segments.index(old[0])
        assert self._segments[start : start + len(old)] == old, "only neighbours are replaced together"
        self._segments[start : start + len(old)] = new
        self._base_offsets[start : start + len(old)] = [segment.base_offset for segment in new]

    def drop_first(self, count: int) -> None:
        del self._segments[:count]
        del self._base_offsets[:count]
