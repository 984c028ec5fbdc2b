"""Walk the batch headers of a segment file without reading more than is needed.

Headers are read out of chunks: many small batches come out of one read, and a batch larger than the chunk is stepped over without
reading its body. Whoever needs the bodies (recovery, verification) asks for whole batches instead.
"""

from collections.abc import Iterator

from tidelog.log.errors import CorruptLog
from tidelog.ports.disk import DiskFile
from tidelog.records.errors import RecordError
from tidelog.records.header import HEADER_SIZE, BatchHeader, check_header, read_header

# One read covers what lies between two index entries at their default distance.
LOOKUP_CHUNK_BYTES = 4096
# Long walks are bounded by calls, not by memory.
SCAN_CHUNK_BYTES = 1 << 20


def scan_headers(file: DiskFile, position: int, end: int, chunk_bytes: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) from ``position``, a batch boundary, up to ``end``. CorruptLog names the first damaged byte."""
    chunk = b""
    chunk_start = position
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk = file.read(position, min(chunk_bytes, end - position))
            chunk_start = position
            at = 0
        header = _checked_header(file, chunk, at, position, end)
        yield position, header
        position += header.batch_length + 12


def scan_batches(file: DiskFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, the whole batch's bytes). CorruptLog where the structure breaks; the caller checks CRCs."""
    chunk = memoryview(b"")
    chunk_start = position
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk = memoryview(file.read(position, min(SCAN_CHUNK_BYTES, end - position)))
            chunk_start = position
            at = 0
        header = _checked_header(file, chunk, at, position, end)
        size = header.batch_length + 12
        if at + size > len(chunk):
            chunk = memoryview(file.read(position, min(max(SCAN_CHUNK_BYTES, size), end - position)))
            chunk_start = position
            at = 0
        yield position, header, chunk[at : at + size]
        position += size


def _checked_header(file: DiskFile, chunk: bytes | memoryview, at: int, position: int, end: int) -> BatchHeader:
    try:
        header = read_header(chunk, at)
        check_header(header, end - position)
    except RecordError as error:
        raise CorruptLog(file.path, position, None, str(error)) from error
    return header
