"""Whole batches: built from records, and opened again into records or keys.

Reading is bounded on both sides: ``size_max`` caps the decompressed bytes, ``count_max`` the records, and each is checked before
the memory is taken. The CRC is not checked here; whoever took the bytes in has done it.

A batch may hold fewer records than its offsets span, or none at all: compaction removes records and keeps the batch's ends, so
that a producer's last sequence survives.
"""

import struct
from collections.abc import Iterator, Sequence

from fastcrc.crc32 import iscsi as _crc32c

from tidelog.ports.disk import Buffer
from tidelog.records.compression import CompressionType, compress, decompress
from tidelog.records.errors import InvalidBatch
from tidelog.records.header import (
    BATCH_LENGTH_MIN,
    CHECKSUMMED_HEADER,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_MASK,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PREFIX_MAGIC_CRC,
    TRANSACTIONAL_MASK,
    BatchHeader,
    check_header,
)
from tidelog.records.record import Record, decode_keys, decode_records, encode_pairs, encode_records


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    compression: CompressionType = CompressionType.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    last_offset_delta: int | None = None,
    max_timestamp: int | None = None,
    compression_level: int | None = None,
) -> bytes:
    """A batch of ``records``, whose offsets ascend from ``base_offset`` on and may have gaps.

    ``last_offset_delta`` is for a batch whose last records are gone, and is required when all are. ``max_timestamp`` overrides
    the one that follows from the records. A batch without records is written uncompressed and without a base timestamp, as in
    Kafka.
    """
    attributes = (TRANSACTIONAL_MASK if transactional else 0) | (CONTROL_MASK if control else 0)
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_MASK
        base_timestamp = delete_horizon_ms
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME_MASK
        max_timestamp = log_append_time_ms
    elif max_timestamp is None:
        max_timestamp = max([record.timestamp for record in records], default=NO_TIMESTAMP)
    last_record_delta = records[-1].offset - base_offset if records else -1
    if last_offset_delta is None:
        last_offset_delta = last_record_delta
    if last_offset_delta < max(0, last_record_delta):
        raise InvalidBatch(f"last offset delta {last_offset_delta} in a batch whose last record has delta {last_record_delta}")
    body = encode_records(records, base_offset, base_timestamp)
    if records and compression is not CompressionType.NONE:
        attributes |= compression
        body = compress(compression, body, compression_level)
    return _joined(
        base_offset,
        leader_epoch,
        body,
        (
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        ),
    )


def build_batch_of_pairs(
    pairs: Sequence[tuple[bytes, bytes | None]], timestamp: int, producer_id: int, producer_epoch: int
) -> bytes:
    """The batch that a coordinator writes: keys and values with one timestamp, in a producer's transaction unless ``producer_id``
    is -1."""
    attributes = 0 if producer_id == NO_PRODUCER_ID else TRANSACTIONAL_MASK
    return assemble_batch(
        encode_pairs(pairs), len(pairs), attributes, timestamp, producer_id=producer_id, producer_epoch=producer_epoch
    )


def assemble_batch(
    body: bytes,
    count: int,
    attributes: int,
    timestamp: int,
    *,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """A batch of ``count`` encoded records with one timestamp, without gaps and without sequence numbers."""
    fields = (attributes, count - 1, timestamp, timestamp, producer_id, producer_epoch, NO_SEQUENCE, count)
    return _joined(base_offset, leader_epoch, body, fields)


def rebuild_batch(header: BatchHeader, body: Buffer) -> bytes:
    """A batch with the fields of ``header`` and the records of ``body``, whose length and CRC need not be those of the header."""
    return _joined(header.base_offset, header.leader_epoch, body, header[5:])


def _joined(base_offset: int, leader_epoch: int, body: Buffer, fields: tuple[int, ...]) -> bytes:
    """``fields`` are the header fields that the CRC covers."""
    try:
        checksummed = CHECKSUMMED_HEADER.pack(*fields)
        crc = _crc32c(body, _crc32c(checksummed))
        prefix = PREFIX_MAGIC_CRC.pack(base_offset, BATCH_LENGTH_MIN + len(body), leader_epoch, MAGIC, crc)
    except struct.error as error:
        raise InvalidBatch(f"a number does not fit into its field of the batch header: {error}") from None
    return b"".join((prefix, checksummed, body))


def read_records(buffer: Buffer, position: int, header: BatchHeader, *, size_max: int, count_max: int) -> Iterator[Record]:
    """The records of the batch at ``position``.

    A batch that is too large or broken as a whole raises at once, a broken record when the iterator reaches it.
    """
    data = _record_bytes(buffer, position, header, size_max, count_max)
    append_timestamp = header.max_timestamp if header.is_log_append_time else None
    return decode_records(
        data, header.record_count, header.base_offset, header.last_offset_delta, header.base_timestamp, append_timestamp
    )


def iterate_keys(
    buffer: Buffer, position: int, header: BatchHeader, *, size_max: int, count_max: int
) -> Iterator[tuple[int, bytes | None, bool]]:
    """(offset delta, key, value is null) of each record, for compaction and key checks; several times as fast as decoding
    records."""
    data = _record_bytes(buffer, position, header, size_max, count_max)
    return decode_keys(data, header.record_count, header.last_offset_delta)


def _record_bytes(buffer: Buffer, position: int, header: BatchHeader, size_max: int, count_max: int) -> bytes:
    check_header(header, len(buffer) - position)
    if not 0 <= header.record_count <= count_max:
        raise InvalidBatch(f"the batch has {header.record_count} records, but only 0 to {count_max} are allowed")
    body = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    # An empty batch keeps its codec's bits but has no stream to open.
    if not body:
        return b""
    return decompress(header.compression, body, size_max)
