"""Walk a segment file batch by batch with its CRCs, in bounded memory.

Recovery trusts a batch's length as far as the file reaches and reads it whole. A tool that is pointed at a damaged file must
not: a flipped bit in a length would make it read a gigabyte. So bytes of a batch are handed out only up to
``WALK_CHUNK_BYTES``, and the CRC of a larger one is computed piece by piece.
"""

from collections.abc import Iterator
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

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
    """From ``position``, a batch boundary, up to ``end``. CorruptLog where the structure breaks."""
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
        raise CorruptLog(file.path, position, None, f"a batch header takes {HEADER_SIZE} bytes, and {left} are left")
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
