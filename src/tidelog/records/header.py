"""The 61-byte header of a record batch, v2: the only part of a batch that the broker's hot path reads.

Layout, big endian::

    0 base offset i64 | 8 batch length i32 | 12 partition leader epoch i32 | 16 magic i8 | 17 CRC-32C u32 | 21 attributes i16
    23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64 | 43 producer id i64 | 51 producer epoch i16
    53 base sequence i32 | 57 record count i32 | 61 records

The batch length counts what follows it, so a batch takes ``batch_length + 12`` bytes. The CRC covers everything from the
attributes on. Base offset and leader epoch lie before it, so a broker stamps them without touching the checksum; a new
max timestamp (LogAppendTime) needs a new one.

Nothing here copies a batch: headers are read in place, a read-only batch is restamped by a new prefix that is written gathered
with the rest.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from fastcrc.crc32 import iscsi as _crc32c

from tidelog.ports.disk import Buffer
from tidelog.records.compression import CompressionType, compression_type
from tidelog.records.errors import CorruptBatch, UnsupportedMagic

HEADER_SIZE = 61
# Base offset and batch length: what precedes the bytes that the batch length counts.
LOG_OVERHEAD = 12
BATCH_LENGTH_MIN = HEADER_SIZE - LOG_OVERHEAD
# A message of magic 0 without key and value.
OLD_MESSAGE_LENGTH_MIN = 14
MAGIC = 2
# The magic byte is here in every format that Kafka ever had, so an old format can be told from garbage.
MAGIC_POSITION = 16
# Base offset, batch length and leader epoch: all that a restamp changes or must repeat.
PREFIX_SIZE = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
# Sequence numbers run from 0 to 2^31 - 1 and then start again at 0.
SEQUENCE_COUNT = 1 << 31

HEADER = struct.Struct(">qiibIhiqqqhii")
CHECKSUMMED_HEADER = struct.Struct(">hiqqqhii")
_PREFIX = struct.Struct(">qii")
PREFIX_MAGIC_CRC = struct.Struct(">qiibI")

_unpack_header = HEADER.unpack_from
_pack_prefix = _PREFIX.pack
# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and half the cost of reading a header.
_new_tuple = tuple.__new__


class BatchHeader(NamedTuple):
    """The header's fields in wire order, and what follows from them."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record. Compaction may have removed that record, so this follows from the offsets, not
        the count."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_COUNT

    @property
    def compression(self) -> CompressionType:
        """Raises UnsupportedCompression for a code that Kafka has not defined."""
        return compression_type(self.attributes & COMPRESSION_MASK)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_MASK != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_MASK != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_MASK != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop this batch's tombstones and markers; stored in the field of the base timestamp."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``; only its presence is checked."""
    try:
        return _new_tuple(BatchHeader, _unpack_header(buffer, position))
    except struct.error:
        raise CorruptBatch(
            f"a batch header takes {HEADER_SIZE} bytes, but only {max(0, len(buffer) - position)} are left at position {position}"
        ) from None


def check_header(header: BatchHeader, remaining_bytes: int) -> None:
    """Raise unless the header is v2 and its batch fits into ``remaining_bytes``, counted from the batch's first byte."""
    if header.magic != MAGIC or header.batch_length < BATCH_LENGTH_MIN:
        _raise_impossible(header.magic, header.batch_length, "the batch")
    if header.batch_length + LOG_OVERHEAD > remaining_bytes:
        raise CorruptBatch(f"the batch takes {header.batch_length + LOG_OVERHEAD} bytes, but only {remaining_bytes} are left")


def iterate_headers(buffer: Buffer, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch between ``start`` and ``end``, as (position, header).

    Ends before an incomplete batch; the caller sees from the last header whether bytes are left. Raises at a batch that is not v2
    or is shorter than its header. CRCs are not checked.
    """
    length = len(buffer)
    if end is None or end > length:
        end = length
    unpack = _unpack_header
    new_tuple = _new_tuple
    header_class = BatchHeader
    position = start
    last_start = end - HEADER_SIZE
    while position <= last_start:
        header = new_tuple(header_class, unpack(buffer, position))
        batch_length = header[1]
        if header[3] != MAGIC or batch_length < BATCH_LENGTH_MIN:
            _raise_impossible(header[3], batch_length, f"the batch at position {position}")
        next_position = position + batch_length + LOG_OVERHEAD
        if next_position > end:
            return
        yield position, header
        position = next_position
    # Too short for a v2 header, but a message of an older format may be complete here and must not pass for an incomplete batch.
    if end - position > MAGIC_POSITION:
        magic = buffer[position + MAGIC_POSITION]
        batch_length = _PREFIX.unpack_from(buffer, position)[1]
        if magic != MAGIC or batch_length < BATCH_LENGTH_MIN:
            _raise_impossible(magic, batch_length, f"the batch at position {position}")


def _raise_impossible(magic: int, batch_length: int, subject: str) -> NoReturn:
    """A length that no format allows means garbage (mostly zeros), whatever the magic byte is."""
    length_min = OLD_MESSAGE_LENGTH_MIN if magic in (0, 1) else BATCH_LENGTH_MIN
    if batch_length < length_min:
        raise CorruptBatch(f"{subject} has length {batch_length}, but the minimum is {length_min}")
    raise UnsupportedMagic(f"{subject} has magic {magic}, but only magic {MAGIC} is supported")


def batch_crc(buffer: Buffer, position: int, size: int) -> int:
    """The CRC-32C of a batch of ``size`` bytes, computed from its bytes."""
    return _crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : position + size])


def crc_is_valid(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the whole batch is there and its bytes match the CRC in its header."""
    end = position + header[1] + LOG_OVERHEAD
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    return end <= len(view) and _crc32c(view[position + ATTRIBUTES_POSITION : end]) == header[4]


def restamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write the base offset and leader epoch of the batch at ``position`` into the buffer itself."""
    batch_length = _PREFIX.unpack_from(buffer, position)[1]
    _PREFIX.pack_into(buffer, position, base_offset, batch_length, leader_epoch)


def restamped_prefix(header: BatchHeader, base_offset: int, leader_epoch: int) -> bytes:
    """New first 16 bytes for a read-only batch, to be written together with its ``view[16:]``."""
    return _pack_prefix(base_offset, header[1], leader_epoch)


def with_log_append_time(
    view: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int, now_ms: int
) -> list[bytes | memoryview]:
    """The batch that fills ``view``, stamped with its offset, leader epoch and the broker's time: a new header, and the unchanged
    body.

    The base timestamp stays, as in Kafka: the deltas in the body count from it.
    """
    checksummed = CHECKSUMMED_HEADER.pack(
        header.attributes | LOG_APPEND_TIME_MASK,
        header.last_offset_delta,
        header.base_timestamp,
        now_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
    body = view[HEADER_SIZE : header.size]
    crc = _crc32c(body, _crc32c(checksummed))
    prefix = PREFIX_MAGIC_CRC.pack(base_offset, header.batch_length, leader_epoch, header.magic, crc)
    return [prefix + checksummed, body]
