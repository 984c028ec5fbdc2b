"""Which files make up a partition, as its next start would see them, found without changing any.

A start finishes compaction's swaps first (swap.py): a ``.log.swap`` that is there replaces every segment that begins inside it.
Files on their way out (``.deleted``, ``.cleaned``, ``.tmp``) do not count. What a repair has put aside ends in ``-damaged``,
which neither Kafka nor a start takes for anything.
"""

from typing import NamedTuple

from tidelog.log import names
from tidelog.log.batch_scan import SCAN_CHUNK_BYTES, scan_headers
from tidelog.log.errors import CorruptLog
from tidelog.ports.disk import Disk

DAMAGED_SUFFIX = "-damaged"


class SegmentFiles(NamedTuple):
    base_offset: int
    stem: str
    """Directory and twenty digits: a suffix per kind makes a path of it."""
    state: str
    """".swap" for compaction's result that a start will put in place, else ""."""

    def path(self, suffix: str) -> str:
        return f"{self.stem}{suffix}{self.state}"

    @property
    def log_path(self) -> str:
        return self.path(names.LOG_SUFFIX)


def find_segments(disk: Disk, directory: str) -> list[SegmentFiles]:
    """The segments in order of their base offsets."""
    in_use: list[int] = []
    swaps: list[int] = []
    for name in disk.list_directory(directory):
        file = names.parse_offset_file_name(name)
        if file is not None and file.kind == names.LOG_SUFFIX:
            if not file.state:
                in_use.append(file.base_offset)
            elif file.state == names.SWAP_SUFFIX:
                swaps.append(file.base_offset)
    segments = []
    for base_offset in swaps:
        segment = SegmentFiles(base_offset, names.segment_path(directory, base_offset, ""), names.SWAP_SUFFIX)
        end_offset = _end_offset(disk, segment)
        in_use = [other for other in in_use if not base_offset <= other < end_offset]
        segments.append(segment)
    segments += [SegmentFiles(base_offset, names.segment_path(directory, base_offset, ""), "") for base_offset in in_use]
    return sorted(segments)


def _end_offset(disk: Disk, segment: SegmentFiles) -> int:
    """As far as the swap file can be read."""
    file = disk.open(segment.log_path, "read")
    end_offset = segment.base_offset + 1
    try:
        for _, header in scan_headers(file, 0, file.size(), SCAN_CHUNK_BYTES):
            end_offset = max(end_offset, header.next_offset)
    except CorruptLog:
        pass
    return end_offset
