"""Checks a batch before it is appended.

Headers are checked for every batch; records are decoded only on a compacted topic, where each must have a key, and when somebody
asks which of them were refused. A batch that is refused leaves nothing behind: all checks come before the first byte is written.
"""

from enum import Enum
from functools import partial

from tidelog.log.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    MissingKey,
    RecordTooLarge,
    UnsupportedRecordFormat,
)
from tidelog.log.settings import LogSettings
from tidelog.records.batch import iterate_keys, read_records
from tidelog.records.compression import CompressionType
from tidelog.records.errors import RecordError
from tidelog.records.header import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_MASK,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    TRANSACTIONAL_MASK,
    BatchHeader,
    crc_is_valid,
    read_header,
)

COMPRESSION_CODE_MAX = int(max(CompressionType))
# Length, attributes, two deltas, two lengths and the number of headers: a byte each.
RECORD_BYTES_MIN = 7
# Compressed records grow by decoding; a key check on a compacted topic must not let a few kilobytes become gigabytes.
DECODED_BYTES_PER_MESSAGE_BYTE_MAX = 64
# A refused batch is decoded only up to this average record size to name its records: a small request must not cause much work.
NAMED_RECORD_BYTES = 1024


class AppendOrigin(Enum):
    """The writer of the batch. A client may not write control batches, and sequence numbers are checked only for clients."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


# Looking up an enumeration member takes longer than the comparison that needs it.
_CLIENT = AppendOrigin.CLIENT
_REPLICATION = AppendOrigin.REPLICATION


def checked_batches(view: memoryview, settings: LogSettings, origin: AppendOrigin, now_ms: int) -> list[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch in ``view``. Raises a typed error that says what is wrong unless all of them are
    valid."""
    end = len(view)
    position = 0
    batches = []
    while position < end:
        header = _checked_header(view, position, end)
        if origin is not _REPLICATION:
            _check_batch(view, position, header, settings, origin is _CLIENT, now_ms)
        batches.append((position, header))
        position += header[1] + LOG_OVERHEAD
    if not batches:
        raise InvalidRecord("no record batch to append")
    if origin is _CLIENT and len(batches) > 1 and any(header.producer_id >= 0 for _, header in batches):
        raise InvalidRecord("an idempotent producer sends one batch per partition and request")
    return batches


def _checked_header(view: memoryview, position: int, end: int) -> BatchHeader:
    """The header of a batch, after checking that the batch is complete and its CRC is right."""
    remaining = end - position
    if remaining < HEADER_SIZE:
        if remaining > MAGIC_POSITION and view[position + MAGIC_POSITION] != MAGIC:
            raise _unsupported(view[position + MAGIC_POSITION])
        raise CorruptRecord(f"{remaining} bytes at position {position} are too few for a record batch")
    header = read_header(view, position)
    size = header[1] + LOG_OVERHEAD
    if header[3] != MAGIC:
        raise _unsupported(header.magic)
    if not HEADER_SIZE <= size <= remaining:
        raise CorruptRecord(f"the header says that the batch has {size} bytes, but only {remaining} were sent")
    if not crc_is_valid(view, position, header):
        raise CorruptRecord(f"the CRC of the batch at position {position} does not match its {size} bytes")
    return header


def _unsupported(magic: int) -> UnsupportedRecordFormat:
    return UnsupportedRecordFormat(
        f"record format {magic} is not supported: send record batches of version 2 (Kafka 0.11 or newer)"
    )


def _check_batch(
    view: memoryview, position: int, header: BatchHeader, settings: LogSettings, is_of_client: bool, now_ms: int
) -> None:
    # Unpacked once: a field of the named tuple costs more than a local, and its properties are calls.
    _, batch_length, _, _, _, attributes, last_offset_delta, _, _, producer_id, _, base_sequence, count = header
    size = batch_length + LOG_OVERHEAD
    if is_of_client and size > settings.message_bytes_max:
        raise RecordTooLarge(f"a batch of {size} bytes is larger than max.message.bytes={settings.message_bytes_max}")
    if count <= 0 or last_offset_delta != count - 1:
        raise InvalidRecord(f"a batch with {count} records has a last offset delta of {last_offset_delta}")
    is_control = attributes & CONTROL_MASK
    if is_control:
        if is_of_client:
            raise InvalidRecord("clients may not write control batches")
    elif attributes & COMPRESSION_MASK > COMPRESSION_CODE_MAX:
        raise UnsupportedRecordFormat(f"compression type {attributes & COMPRESSION_MASK} is not known")
    elif not attributes & COMPRESSION_MASK and count * RECORD_BYTES_MIN > size - HEADER_SIZE:
        # Otherwise a few bytes could use up billions of offsets, and consumers would get a batch that none of them can read.
        raise InvalidRecord(f"a batch claims {count} records in {size - HEADER_SIZE} bytes")
    if producer_id < 0:
        if attributes & TRANSACTIONAL_MASK:
            raise InvalidRecord("a transactional batch has no producer id")
    elif base_sequence < 0 and is_of_client:
        # The offsets that a coordinator writes as part of a producer's transaction have no sequence number.
        raise InvalidRecord(f"producer {producer_id} sent a batch without a sequence number")
    if is_control:
        return
    if not settings.log_append_time:
        _check_timestamp(view, position, header, settings, now_ms)
    if settings.compact and is_of_client:
        # A coordinator's records always have keys.
        _check_keys(view, position, header, settings)


def _check_timestamp(view: memoryview, position: int, header: BatchHeader, settings: LogSettings, now_ms: int) -> None:
    newest = header.max_timestamp
    if header.attributes & LOG_APPEND_TIME_MASK:
        raise InvalidTimestamp("the batch says LogAppendTime, but the topic keeps the producer's time (CreateTime)")
    if newest == NO_TIMESTAMP:
        return
    earliest, latest = now_ms - settings.timestamp_before_max_ms, now_ms + settings.timestamp_after_max_ms
    if newest > latest:
        raise InvalidTimestamp(
            f"timestamp {newest} is {newest - now_ms} ms after the broker's clock; "
            f"message.timestamp.after.max.ms={settings.timestamp_after_max_ms}",
            partial(_timestamp_errors, view, position, header, earliest, latest),
        )
    oldest = header.base_timestamp
    if oldest < earliest:
        raise InvalidTimestamp(
            f"timestamp {oldest} is {now_ms - oldest} ms before the broker's clock; "
            f"message.timestamp.before.max.ms={settings.timestamp_before_max_ms}",
            partial(_timestamp_errors, view, position, header, earliest, latest),
        )


def _timestamp_errors(
    view: memoryview, position: int, header: BatchHeader, earliest: int, latest: int, records_max: int
) -> list[tuple[int, str]]:
    """The records whose timestamp is out of bounds; empty when the batch cannot be decoded."""
    errors: list[tuple[int, str]] = []
    try:
        records = read_records(view, position, header, size_max=records_max * NAMED_RECORD_BYTES, count_max=records_max)
        for index, record in enumerate(records):
            if not earliest <= record.timestamp <= latest:
                errors.append((index, f"timestamp {record.timestamp} is not between {earliest} and {latest}"))
    except RecordError:
        return []
    return errors


def _check_keys(view: memoryview, position: int, header: BatchHeader, settings: LogSettings) -> None:
    size_max = settings.message_bytes_max * DECODED_BYTES_PER_MESSAGE_BYTE_MAX
    try:
        for offset_delta, key, _ in iterate_keys(view, position, header, size_max=size_max, count_max=header.record_count):
            if key is None:
                raise MissingKey(
                    f"record {offset_delta} of the batch has no key, and the topic is compacted",
                    partial(_key_errors, view, position, header),
                )
    except RecordError as error:
        raise InvalidRecord(f"the records of the batch cannot be read: {error}") from error


def _key_errors(view: memoryview, position: int, header: BatchHeader, records_max: int) -> list[tuple[int, str]]:
    """The records without a key; empty when the batch cannot be decoded."""
    try:
        keys = iterate_keys(view, position, header, size_max=records_max * NAMED_RECORD_BYTES, count_max=records_max)
        return [(index, "a record without a key in a compacted topic") for index, key, _ in keys if key is None]
    except RecordError:
        return []


def whole_batches_bytes(view: memoryview) -> int:
    """The number of leading bytes of ``view`` that are complete batches: a fetch may return an incomplete last batch."""
    end = len(view)
    position = 0
    while position + 12 <= end:
        size = int.from_bytes(view[position + 8 : position + 12], "big", signed=True) + 12
        if size < 12 or position + size > end:
            break
        position += size
    return position
