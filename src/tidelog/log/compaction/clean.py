"""The second task of a cleaning, once per group: write one segment that holds what is to stay of several.

Makes ``B.log.cleaned``, ``B.index.cleaned``, ``B.timeindex.cleaned`` and, when an aborted transaction still has its marker
and an emptied batch, ``B.txnindex.cleaned``. All are synced, and the directory too, before the task returns. A crash leaves
any part of them; they mean nothing until the swap, and the next start or the next cleaning removes them.

No record of an aborted transaction is left in a cleaned segment, so nothing depends on its transaction index.
"""

from collections.abc import Mapping
from typing import Any

from tidelog.log import names
from tidelog.log.compaction.batch_filter import BatchFilter
from tidelog.log.compaction.key_map import read_key_map
from tidelog.log.compaction.source import INDEX_CACHE_BYTES, checked_batches, open_segment, read_aborted
from tidelog.log.compaction.tasks import CleanArguments, CleanResult, from_json, to_json
from tidelog.log.compaction.transaction_scan import TransactionScan
from tidelog.log.file_handles import FileHandles
from tidelog.log.index_cache import IndexCache
from tidelog.log.segment import LogSegment
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.records.header import CONTROL_MASK, read_header

# Large enough that the calls do not count, small beside the key map.
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
        """Everything is durable under its ``.cleaned`` name when this returns."""
        segment = self.segment
        self._write()
        segment.close_for_appends()
        segment.file().sync()
        for file in segment.index_files():
            file.sync()
        self._disk.sync_directory(self._directory)


def remove_cleaned(disk: Disk, directory: str, base_offset: int) -> None:
    """Remove what an earlier attempt left. Also run on the executor when a cleaning is given up."""
    for suffix in names.SEGMENT_SUFFIXES:
        path = names.segment_path(directory, base_offset, suffix) + names.CLEANED_SUFFIX
        if disk.exists(path):
            disk.remove(path)
