"""Read closed segments in the child: batches with their CRC checked, and the aborted transactions that concern them.

Compaction makes new bytes with new checksums, so damage that it did not notice would be sealed for good: every batch is
checked before it is used.
"""

from collections.abc import Iterable, Iterator

from tidelog.log import names
from tidelog.log.batch_scan import scan_batches
from tidelog.log.errors import CorruptLog
from tidelog.log.index_cache import IndexCache
from tidelog.log.transaction_index import AbortedTransaction, TransactionIndex
from tidelog.ports.disk import Disk, DiskFile
from tidelog.records.header import BatchHeader, crc_is_valid

# Room for a few transaction indexes; each is read once.
INDEX_CACHE_BYTES = 1 << 20


def open_segment(disk: Disk, directory: str, base_offset: int) -> DiskFile:
    return disk.open(names.segment_path(directory, base_offset, names.LOG_SUFFIX), "read")


def checked_batches(file: DiskFile) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of every batch; CorruptLog at the first damaged one."""
    for position, header, batch in scan_batches(file, 0, file.size()):
        if not crc_is_valid(batch, 0, header):
            raise CorruptLog(file.path, position, header.base_offset, "a batch's CRC does not match its bytes")
        yield position, header, batch


def read_aborted(
    disk: Disk, directory: str, from_offset: int, upper_offset: int, later: Iterable[Iterable[int]]
) -> list[AbortedTransaction]:
    """Those whose marker is at or above ``from_offset``: by the index files below ``upper_offset``, which no longer change, and
    ``later``, what the loop knows from there on."""
    found: list[AbortedTransaction] = []
    base_offsets = names.base_offsets_of(disk.list_directory(directory), names.TRANSACTION_INDEX_SUFFIX)
    for base_offset in base_offsets:
        if from_offset <= base_offset < upper_offset:
            path = names.segment_path(directory, base_offset, names.TRANSACTION_INDEX_SUFFIX)
            index = TransactionIndex(disk, IndexCache(INDEX_CACHE_BYTES), path, base_offset)
            index.load()
            index.check()
            found += index.entries()
    found += [AbortedTransaction(*fields) for fields in later]
    return found
