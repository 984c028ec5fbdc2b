"""Write a batch anew with some of its records, or none, under the same offsets, sequence numbers, producer, epoch and codec.

Records that stay are copied as bytes: their deltas count from the base offset and the base timestamp, and neither changes.
Only a new delete horizon, which takes the base timestamp's place, makes it necessary to decode and encode them.
"""

from collections.abc import Collection

from fastcrc.crc32 import iscsi as _crc32c

from tidelog.log.segment import DECODED_BATCH_BYTES_MAX, DECODED_BATCH_RECORDS_MAX
from tidelog.log.settings import LONG_MAX
from tidelog.records.batch import build_batch, read_records
from tidelog.records.compression import CompressionType, compress, decompress
from tidelog.records.header import (
    BATCH_LENGTH_MIN,
    CHECKSUMMED_HEADER,
    HEADER_SIZE,
    NO_TIMESTAMP,
    PREFIX_MAGIC_CRC,
    BatchHeader,
)
from tidelog.records.record import Record
from tidelog.records.varint import VARINT_BITS, VARLONG_BITS, read_zigzag


def keep_records(header: BatchHeader, batch: memoryview, kept: Collection[int]) -> bytes:
    """The batch with only the records at these places, one at least. Its records have been read before, so their lengths hold."""
    data = decompress(header.compression, batch[HEADER_SIZE:], DECODED_BATCH_BYTES_MAX)
    body, max_timestamp_delta = _cut_out(data, header.record_count, kept)
    if header.compression is not CompressionType.NONE:
        body = compress(header.compression, body)
    max_timestamp = header.max_timestamp if header.is_log_append_time else _bounded(header.base_timestamp + max_timestamp_delta)
    checksummed = CHECKSUMMED_HEADER.pack(
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        len(kept),
    )
    crc = _crc32c(body, _crc32c(checksummed))
    prefix = PREFIX_MAGIC_CRC.pack(header.base_offset, BATCH_LENGTH_MIN + len(body), header.leader_epoch, header.magic, crc)
    return b"".join((prefix, checksummed, body))


def _cut_out(data: bytes, count: int, kept: Collection[int]) -> tuple[bytes, int]:
    """The bytes of the records at these places, and the largest of their timestamp deltas."""
    parts: list[bytes] = []
    deltas: list[int] = []
    position = 0
    for index in range(count):
        length = data[position]
        if length < 0x80:
            start = position + 1
        elif (second := data[position + 1]) < 0x80:
            length += (second << 7) - 0x80
            start = position + 2
        else:
            length, start = read_zigzag(data, position, VARINT_BITS)
        end = start + (length >> 1)
        if index in kept:
            parts.append(data[position:end])
            zigzag = data[start + 1]
            if zigzag >= 0x80:
                zigzag = read_zigzag(data, start + 1, VARLONG_BITS)[0]
            deltas.append(zigzag >> 1 ^ -(zigzag & 1))
        position = end
    return b"".join(parts), max(deltas)


def with_horizon(header: BatchHeader, batch: memoryview, kept: Collection[int], horizon_ms: int) -> bytes:
    """The batch with only the records at these places, and this delete horizon."""
    records = read_records(batch, 0, header, size_max=DECODED_BATCH_BYTES_MAX, count_max=DECODED_BATCH_RECORDS_MAX)
    kept_records = [
        record._replace(timestamp=_bounded(record.timestamp)) for index, record in enumerate(records) if index in kept
    ]
    return _build(header, kept_records, horizon_ms)


def _bounded(timestamp: int) -> int:
    """Nobody has checked the deltas that clients send: what they add up to must not stop the log's compaction for good."""
    return max(NO_TIMESTAMP, min(timestamp, LONG_MAX))


def emptied(header: BatchHeader) -> bytes:
    """The batch without records; its newest timestamp stays, for its producer is as young as that."""
    return _build(header, [], None)


def _build(header: BatchHeader, records: list[Record], horizon_ms: int | None) -> bytes:
    return build_batch(
        records,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        compression=header.compression,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
        delete_horizon_ms=horizon_ms,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=None if records else header.max_timestamp,
    )
