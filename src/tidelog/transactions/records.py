"""The records of ``__transaction_state``: key (kind i16 = 0, transactional id), value with Kafka's schema TransactionLogValue.

Version 0 has fixed fields only. Version 1 is flexible and keeps what transactions v2 need in tagged fields: the previous and the
next producer id, and the version that the client speaks. As in Kafka, version 1 is written once the feature
``transaction.version`` is at least 1. The partitions are null in state Empty. A value of None is a tombstone: the id has expired.

Every transaction writes three of them, so the encoder is written by hand. Decoding uses the schema, against which a test checks
the encoder.
"""

import struct
from sys import intern
from typing import Any, NamedTuple

from tidelog.coordinator.errors import UnreadableShard
from tidelog.coordinator.records import RecordSchema
from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.transactions.state import RECORDED_STATES, TransactionState
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import SMALL_UNSIGNED_VARINTS, write_compact_length, write_compact_string, write_string
from tidelog.wire.schema import INT8, INT16, INT32, INT64, STRING, Field, Struct

NO_TIMESTAMP_MS = -1

# Version, producer id, epoch, time-out, state.
_pack_head = struct.Struct(">hqhib").pack
_pack_timestamps = struct.Struct(">qq").pack
_pack_int16 = struct.Struct(">h").pack
_pack_int32 = struct.Struct(">i").pack
_pack_int64 = struct.Struct(">q").pack
# Tag and length of each tagged field.
_PREVIOUS_PRODUCER_ID_TAG = b"\0\10"
_NEXT_PRODUCER_ID_TAG = b"\1\10"
_CLIENT_VERSION_TAG = b"\2\2"
_NEXT_PRODUCER_EPOCH_TAG = b"\3\2"


class TransactionTopic(NamedTuple):
    topic: str
    partitions: tuple[int, ...]


class TransactionValue(NamedTuple):
    """Everything that is kept about a transactional id, in the schema's order."""

    producer_id: int
    previous_producer_id: int
    """The producer id of the last record. It identifies a retry of the request that used up that id's epochs."""
    next_producer_id: int
    """The producer id that follows when the markers are written, because the epochs of this one are used up."""
    producer_epoch: int
    next_producer_epoch: int
    """Kafka uses it for two-phase commit; we keep it without using it."""
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TransactionTopic, ...]
    last_update_timestamp_ms: int
    start_timestamp_ms: int
    client_transaction_version: int


class TransactionRecord(NamedTuple):
    transactional_id: str
    value: TransactionValue | None
    version: int = 1
    """The version in which the value is written."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch that this producer had before, so that it may repeat a request to raise it. As in Kafka it is not in the log: a
    producer that repeats the request after a restart of the coordinator is told that it was fenced."""


def _make_partitions(values: list[Any]) -> TransactionTopic:
    topic, partitions = values
    # Many transactions write to few topics.
    return TransactionTopic(intern(topic), partitions)


def _make_value(values: list[Any]) -> TransactionValue:
    value = TransactionValue(*values)
    if value.state not in RECORDED_STATES:
        raise UnreadableShard(f"a transaction has state {value.state}, which is never written")
    return value._replace(state=TransactionState(value.state), partitions=value.partitions or ())


_PARTITIONS = Struct("TransactionTopic", (Field("topic", STRING), Field("partitions", INT32, is_array=True)), _make_partitions)
VALUE = Struct(
    "TransactionValue",
    (
        Field("producer_id", INT64),
        Field("previous_producer_id", INT64, tag=0, default=NO_PRODUCER_ID),
        Field("next_producer_id", INT64, tag=1, default=NO_PRODUCER_ID),
        Field("producer_epoch", INT16),
        Field("next_producer_epoch", INT16, tag=3, default=NO_PRODUCER_EPOCH),
        Field("timeout_ms", INT32),
        Field("state", INT8),
        Field("partitions", _PARTITIONS, is_array=True, is_nullable=True),
        Field("last_update_timestamp_ms", INT64),
        Field("start_timestamp_ms", INT64),
        Field("client_transaction_version", INT16, tag=2, default=0),
    ),
    _make_value,
)
_KIND = b"\0\0"
_SCHEMA = RecordSchema(0, TransactionRecord, VALUE, version_max=1, flexible_since=1)
_EMPTY = TransactionState.EMPTY


class TransactionRecordCodec:
    __slots__ = ()

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        transactional_id, value, version, _ = record
        key = _KIND + write_string(transactional_id)
        if value is None:
            return key, None
        return key, _encode_version_1(value) if version else _encode_version_0(value)

    def decode(self, key: bytes, value: bytes | None) -> TransactionRecord | None:
        if len(key) < len(_KIND):
            raise UnreadableShard(f"a key of {len(key)} bytes has no kind")
        if not key.startswith(_KIND):
            return None
        try:
            record: TransactionRecord = _SCHEMA.decode(key, value)
        except MalformedRequest as error:
            raise UnreadableShard(f"a transaction's record cannot be read: {error}") from error
        return record


def _encode_version_0(value: TransactionValue) -> bytes:
    producer_id, _, _, producer_epoch, _, timeout_ms, state, partitions, updated_ms, started_ms, _ = value
    parts = [_pack_head(0, producer_id, producer_epoch, timeout_ms, state)]
    if state is _EMPTY:
        parts.append(_pack_int32(-1))
    else:
        parts.append(_pack_int32(len(partitions)))
        for topic, indexes in partitions:
            parts += (write_string(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *indexes))
    parts.append(_pack_timestamps(updated_ms, started_ms))
    return b"".join(parts)


def _encode_version_1(value: TransactionValue) -> bytes:
    producer_id, previous_id, next_id, producer_epoch, next_epoch, timeout_ms, state, partitions, *times, client_version = value
    parts = [_pack_head(1, producer_id, producer_epoch, timeout_ms, state)]
    if state is _EMPTY:
        parts.append(b"\0")
    else:
        parts.append(write_compact_length(len(partitions)))
        for topic, indexes in partitions:
            count = len(indexes)
            numbers = _pack_int32(indexes[0]) if count == 1 else struct.pack(f">{count}i", *indexes)
            parts += (write_compact_string(topic), write_compact_length(count), numbers, b"\0")
    parts.append(_pack_timestamps(*times))
    # Tags are written in ascending order, and a field is left out when it has its default.
    tagged = []
    if previous_id != NO_PRODUCER_ID:
        tagged.append(_PREVIOUS_PRODUCER_ID_TAG + _pack_int64(previous_id))
    if next_id != NO_PRODUCER_ID:
        tagged.append(_NEXT_PRODUCER_ID_TAG + _pack_int64(next_id))
    if client_version:
        tagged.append(_CLIENT_VERSION_TAG + _pack_int16(client_version))
    if next_epoch != NO_PRODUCER_EPOCH:
        tagged.append(_NEXT_PRODUCER_EPOCH_TAG + _pack_int16(next_epoch))
    return b"".join((*parts, SMALL_UNSIGNED_VARINTS[len(tagged)], *tagged))


RECORD_CODEC = TransactionRecordCodec()
