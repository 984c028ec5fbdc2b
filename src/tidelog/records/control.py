"""Control batches, which brokers write between the records for their own use. Consumers skip them.

A control batch holds records whose key is (version i16, type i16) and whose value depends on the type. A partition's log has the
end-of-transaction markers, alone in their batch: value (version i16, coordinator epoch i32). The other types live in the
metadata log. Later versions only add fields at the end, so a reader takes the part that it knows.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from tidelog.ports.disk import Buffer
from tidelog.records.batch import assemble_batch, read_records
from tidelog.records.errors import InvalidBatch
from tidelog.records.header import BATCH_LENGTH_MIN, CONTROL_MASK, HEADER_SIZE, TRANSACTIONAL_MASK, BatchHeader
from tidelog.records.record import Record

_KEY = struct.Struct(">hh")
_END_TRANSACTION_VALUE = struct.Struct(">hi")
_CONTROL_VERSION = 0

# A marker's record, which every transaction writes to each of its partitions: length, attributes and deltas, key length; the key;
# value length; the value; no headers.
_MARKER = struct.Struct(">5shhchic")
_MARKER_BEGIN = b"\x20\x00\x00\x00\x08"
_MARKER_VALUE_LENGTH = b"\x0c"
_MARKER_END = b"\x00"
_MARKER_ATTRIBUTES = TRANSACTIONAL_MASK | CONTROL_MASK

# A control batch is a few dozen bytes; the metadata log's voter records are the largest, with some hundred bytes a voter.
CONTROL_SIZE_MAX = 1024 * 1024
CONTROL_COUNT_MAX = 1024


class ControlType(IntEnum):
    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(NamedTuple):
    control_type: ControlType
    coordinator_epoch: int


_MARKER_TYPES = {int(each): each for each in (ControlType.ABORT, ControlType.COMMIT)}


def control_key(control_type: ControlType) -> bytes:
    return _KEY.pack(_CONTROL_VERSION, control_type)


def parse_control_key(key: bytes | None) -> ControlType:
    """Return UNKNOWN for a type of a later Kafka, which must be skipped, not refused."""
    if key is None or len(key) < _KEY.size:
        raise InvalidBatch(f"a control record needs a key of {_KEY.size} bytes, and has {'none' if key is None else len(key)}")
    version, code = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidBatch(f"a control record's key has version {version}")
    return ControlType(code) if 0 <= code <= ControlType.KRAFT_VOTERS else ControlType.UNKNOWN


def build_end_transaction_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The batch that ends a producer's transaction in one partition."""
    control_type, coordinator_epoch = marker
    if control_type not in _MARKER_TYPES:
        raise ValueError(f"{control_type.name} does not end a transaction")
    record = _MARKER.pack(
        _MARKER_BEGIN, _CONTROL_VERSION, control_type, _MARKER_VALUE_LENGTH, _CONTROL_VERSION, coordinator_epoch, _MARKER_END
    )
    return assemble_batch(
        record,
        1,
        _MARKER_ATTRIBUTES,
        timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def read_control_type(buffer: Buffer, position: int, header: BatchHeader) -> ControlType:
    """The type of a control batch's first record."""
    return parse_control_key(_first_record(buffer, position, header).key)


def read_end_transaction_marker(buffer: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker:
    """Raises InvalidBatch when the batch is not a control batch, or has another type."""
    if (
        header.batch_length == BATCH_LENGTH_MIN + _MARKER.size
        and header.attributes == _MARKER_ATTRIBUTES
        and header.record_count == 1
    ):
        begin, key_version, code, length, version, coordinator_epoch, end = _MARKER.unpack_from(buffer, position + HEADER_SIZE)
        is_ours = begin == _MARKER_BEGIN and length == _MARKER_VALUE_LENGTH and end == _MARKER_END
        if is_ours and key_version == version == _CONTROL_VERSION and code in _MARKER_TYPES:
            return EndTransactionMarker(_MARKER_TYPES[code], coordinator_epoch)
    record = _first_record(buffer, position, header)
    control_type = parse_control_key(record.key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise InvalidBatch(f"a control record of type {control_type.name}, where the end of a transaction is expected")
    value = record.value
    if value is None or len(value) < _END_TRANSACTION_VALUE.size:
        raise InvalidBatch(f"a marker's value has {'no' if value is None else len(value)} bytes of {_END_TRANSACTION_VALUE.size}")
    version, coordinator_epoch = _END_TRANSACTION_VALUE.unpack_from(value)
    if version < 0:
        raise InvalidBatch(f"a marker's value has version {version}")
    return EndTransactionMarker(control_type, coordinator_epoch)


def _first_record(buffer: Buffer, position: int, header: BatchHeader) -> Record:
    if not header.is_control:
        raise InvalidBatch("not a control batch")
    for record in read_records(buffer, position, header, size_max=CONTROL_SIZE_MAX, count_max=CONTROL_COUNT_MAX):
        return record
    raise InvalidBatch("a control batch without a record")
