"""Walk the batch headers of a segment file without reading more than is needed.

Headers are read in chunks: one read yields many small batches, and the body of a batch larger than the chunk is skipped. Callers
that need the bodies (recovery, compaction) use ``scan_batches`` instead.

The loops read and check headers in place: with batches of one record, recovery's time is the calls it makes for each.
"""

from collections.abc import Iterator
from typing import NoReturn

from tidelog.log.errors import CorruptLog
from tidelog.ports.disk import DiskFile
from tidelog.records.errors import RecordError
from tidelog.records.header import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader, check_header, read_header

# One read covers the distance between two index entries by default.
LOOKUP_CHUNK_BYTES = 4096
# Long walks cost calls rather than memory.
SCAN_CHUNK_BYTES = 1 << 20


_unpack_header = HEADER.unpack_from
_new_tuple = tuple.__new__


def scan_headers(file: DiskFile, position: int, end: int, chunk_bytes: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) from ``position``, a batch boundary, up to ``end``. Raises CorruptLog at the first damaged
    byte."""
    chunk = b""
    chunk_size = 0
    chunk_start = position
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > chunk_size:
            chunk = file.read(position, min(chunk_bytes, end - position))
            chunk_size = len(chunk)
            chunk_start = position
            at = 0
            if chunk_size < HEADER_SIZE:
                _raise_damage(file, chunk, at, position, end)
        header = _new_tuple(BatchHeader, _unpack_header(chunk, at))
        size = header[1] + LOG_OVERHEAD
        if header[3] != MAGIC or not HEADER_SIZE <= size <= end - position:
            _raise_damage(file, chunk, at, position, end)
        yield position, header
        position += size


def scan_batches(file: DiskFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, bytes of the whole batch). Raises CorruptLog where the structure breaks; the caller checks
    CRCs."""
    chunk = memoryview(b"")
    chunk_size = 0
    chunk_start = position
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > chunk_size:
            chunk = memoryview(file.read(position, min(SCAN_CHUNK_BYTES, end - position)))
            chunk_size = len(chunk)
            chunk_start = position
            at = 0
            if chunk_size < HEADER_SIZE:
                _raise_damage(file, chunk, at, position, end)
        header = _new_tuple(BatchHeader, _unpack_header(chunk, at))
        size = header[1] + LOG_OVERHEAD
        if header[3] != MAGIC or not HEADER_SIZE <= size <= end - position:
            _raise_damage(file, chunk, at, position, end)
        if at + size > chunk_size:
            chunk = memoryview(file.read(position, min(max(SCAN_CHUNK_BYTES, size), end - position)))
            chunk_size = len(chunk)
            chunk_start = position
            at = 0
        yield position, header, chunk[at : at + size]
        position += size


def _raise_damage(file: DiskFile, chunk: bytes | memoryview, at: int, position: int, end: int) -> NoReturn:
    """The header at ``at`` is incomplete or impossible: let check_header say why."""
    try:
        check_header(read_header(chunk, at), end - position)
    except RecordError as error:
        raise CorruptLog(file.path, position, None, str(error)) from error
    raise AssertionError(f"{file.path}, byte {position}: the scan and check_header do not agree on a header")
