"""Read a segment's files entry by entry in bounded memory: its batches with their CRCs, and its indexes.

Recovery trusts a batch's length as far as the file reaches and reads the batch whole. A tool that is pointed at a damaged file
must not: a flipped bit in a length would make it read a gigabyte. So the bytes of a batch are handed out only up to
``WALK_CHUNK_BYTES``, and the CRC of a larger batch is computed piece by piece.

Kafka preallocates an index with zeros and trims them when it closes the segment: zeros up to the end are padding (indexes.py
explains why no entry is lost by that). Zeros with an entry after them are a hole that no writer leaves, unless they are the
first entry.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from tidelog.log import names
from tidelog.log.errors import CorruptLog
from tidelog.ports.disk import DiskFile
from tidelog.records.errors import RecordError
from tidelog.records.header import ATTRIBUTES_POSITION, HEADER_SIZE, BatchHeader, check_header, crc_is_valid, read_header

WALK_CHUNK_BYTES = 4 << 20


class WalkedBatch(NamedTuple):
    position: int
    header: BatchHeader
    data: memoryview | None
    """The batch's bytes; None when there are more than ``WALK_CHUNK_BYTES``."""
    crc_is_valid: bool


def walk_batches(file: DiskFile, position: int, end: int) -> Iterator[WalkedBatch]:
    """Walk from ``position``, a batch boundary, up to ``end``. Raises CorruptLog where the structure breaks."""
    chunk = memoryview(b"")
    chunk_start = position
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = _read(file, position, end), position, 0
        header = _checked_header(file, chunk, at, position, end)
        size = header.size
        if size > WALK_CHUNK_BYTES:
            yield WalkedBatch(position, header, None, _crc_in_pieces(file, position, size) == header.crc)
        else:
            if at + size > len(chunk):
                chunk, chunk_start, at = _read(file, position, end), position, 0
            data = chunk[at : at + size]
            yield WalkedBatch(position, header, data, crc_is_valid(data, 0, header))
        position += size


def _read(file: DiskFile, position: int, end: int) -> memoryview:
    return memoryview(file.read(position, min(WALK_CHUNK_BYTES, end - position)))


def _checked_header(file: DiskFile, chunk: memoryview, at: int, position: int, end: int) -> BatchHeader:
    left = len(chunk) - at
    if left < HEADER_SIZE:
        raise CorruptLog(file.path, position, None, f"a batch header takes {HEADER_SIZE} bytes, but only {left} are left")
    header = read_header(chunk, at)
    try:
        check_header(header, end - position)
    except RecordError as error:
        raise CorruptLog(file.path, position, None, str(error)) from error
    return header


def _crc_in_pieces(file: DiskFile, position: int, size: int) -> int:
    at, end = position + ATTRIBUTES_POSITION, position + size
    crc = crc32c(b"")
    while at < end:
        piece = file.read(at, min(WALK_CHUNK_BYTES, end - at))
        if not piece:
            break
        crc = crc32c(piece, crc)
        at += len(piece)
    return crc


OFFSET_ENTRY = Struct(">II")
TIME_ENTRY = Struct(">qI")
TRANSACTION_ENTRY = Struct(">hqqqq")
ENTRY_BY_KIND = {
    names.INDEX_SUFFIX: OFFSET_ENTRY,
    names.TIME_INDEX_SUFFIX: TIME_ENTRY,
    names.TRANSACTION_INDEX_SUFFIX: TRANSACTION_ENTRY,
}
_ENTRIES_PER_READ = 4096


class Fault(NamedTuple):
    """The first thing that is wrong with a file."""

    position: int
    offset: int | None
    reason: str


class IndexEntry(NamedTuple):
    number: int
    position: int
    fields: tuple[int, ...]


def read_entries(file: DiskFile, entry: Struct) -> Iterator[IndexEntry | Fault]:
    """Yields every entry before the padding, and a Fault where something is wrong, which ends it."""
    size = file.size()
    entry_bytes = entry.size
    zeros_from: int | None = None
    for chunk_start in range(0, size - size % entry_bytes, entry_bytes * _ENTRIES_PER_READ):
        chunk = file.read(chunk_start, entry_bytes * _ENTRIES_PER_READ)
        chunk = chunk[: len(chunk) - len(chunk) % entry_bytes]
        for at, fields in zip(range(0, len(chunk), entry_bytes), entry.iter_unpack(chunk), strict=True):
            position = chunk_start + at
            number = position // entry_bytes
            if not any(chunk[at : at + entry_bytes]):
                zeros_from = position if zeros_from is None else zeros_from
                continue
            if zeros_from is not None:
                if zeros_from or number > 1:
                    yield Fault(zeros_from, None, f"{position - zeros_from} zero bytes with an entry after them")
                    return
                yield IndexEntry(0, 0, (0,) * len(fields))
                zeros_from = None
            yield IndexEntry(number, position, fields)
    if size % entry_bytes:
        yield Fault(size - size % entry_bytes, None, f"{size} bytes are not a whole number of entries of {entry_bytes} bytes")
