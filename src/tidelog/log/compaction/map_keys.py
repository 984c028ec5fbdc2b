"""The first task of a cleaning: the key map over the dirty section, and the groups of segments to clean with it.

Only records that count go into the map: not those of aborted transactions, not control records. When the map is full, the
pass ends at the batch before; the next cleaning goes on from there.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from tidelog.log import names
from tidelog.log.compaction.key_map import KeyMap
from tidelog.log.compaction.source import checked_batches, open_segment, read_aborted
from tidelog.log.compaction.tasks import MapKeysArguments, MapKeysResult, from_json, to_json
from tidelog.log.compaction.transaction_scan import TransactionScan
from tidelog.log.segment import DECODED_BATCH_BYTES_MAX, DECODED_BATCH_RECORDS_MAX, RELATIVE_OFFSET_MAX
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.records.batch import iterate_keys
from tidelog.records.header import CONTROL_MASK

# The originals of a group are renamed at once, on the loop: four files each, a few milliseconds for so many. A log of more small
# segments than that becomes smaller with every cleaning.
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
    """(end of the pass, bytes read)."""
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
    """Neighbours that fit into one segment, by their sizes now. An empty segment has no last batch to keep, and stays out."""
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
    """Of the log, the offset index and the time index."""
    return [
        disk.file_size(path) if disk.exists(path := names.segment_path(directory, base_offset, suffix)) else 0
        for suffix in (names.LOG_SUFFIX, names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
    ]
