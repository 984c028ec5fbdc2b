"""The records of ``__transaction_state``: key (kind i16 = 0, transactional id), value with Kafka's schema TransactionLogValue.

Version 0 has fixed fields only. Version 1 is flexible and keeps what transactions v2 need in tagged fields: the producer ids
before and after this one, and which version the client speaks. As in Kafka version 1 is written once the feature
``transaction.version`` is at least 1. The partitions are null in state Empty. A value of None is a tombstone: the id has expired.
"""

from sys import intern
from typing import Any, NamedTuple

from tidelog.coordinator.errors import UnreadableShard
from tidelog.coordinator.record_fields import (
    INTEGER_16,
    INTEGER_32,
    INTEGER_64,
    STRING,
    Encoding,
    Field,
    FieldType,
    RecordTable,
    array_of,
    nullable_array_of,
    structure,
)
from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.transactions.state import RECORDED_STATES, TransactionState
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import INT8, Reader

NO_TIMESTAMP_MS = -1


class TopicPartitions(NamedTuple):
    topic: str
    partitions: tuple[int, ...]


class TransactionValue(NamedTuple):
    """All that is kept of a transactional id. The order is the schema's."""

    producer_id: int
    previous_producer_id: int
    """Which the last record had: tells a retry of what made the id overflow into the next one."""
    next_producer_id: int
    """The epochs of this id are used up: this one follows when the markers are written."""
    producer_epoch: int
    next_producer_epoch: int
    """Kafka's, for two-phase commit: kept, not used."""
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartitions, ...]
    last_update_timestamp_ms: int
    start_timestamp_ms: int
    client_transaction_version: int


class TransactionRecord(NamedTuple):
    transactional_id: str
    value: TransactionValue | None
    version: int = 1
    """In which the value is written."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """Not in the log, as in Kafka: which epoch this producer had before, so that it may repeat a request to raise it. A producer
    that repeats it over a restart of the coordinator is told that it was fenced."""


def _read_state(reader: Reader, _: Encoding) -> TransactionState:
    code = reader.int8()
    if code not in RECORDED_STATES:
        raise UnreadableShard(f"a transaction in state {code}, which is never written")
    return TransactionState(code)


# Many transactions are about few topics.
_TOPIC = FieldType(lambda reader, encoding: intern(STRING.read(reader, encoding)), STRING.write)
_NULLABLE_PARTITIONS = nullable_array_of(
    structure(TopicPartitions, Field("topic", _TOPIC), Field("partitions", array_of(INTEGER_32)))
)
_PARTITIONS = FieldType(
    lambda reader, encoding: _NULLABLE_PARTITIONS.read(reader, encoding) or (),
    _NULLABLE_PARTITIONS.write,
)
_STATE = FieldType(_read_state, lambda state, _: INT8.pack(state))
_VALUE = structure(
    TransactionValue,
    Field("producer_id", INTEGER_64),
    Field("previous_producer_id", INTEGER_64, tag=0, default=NO_PRODUCER_ID),
    Field("next_producer_id", INTEGER_64, tag=1, default=NO_PRODUCER_ID),
    Field("producer_epoch", INTEGER_16),
    Field("next_producer_epoch", INTEGER_16, tag=3, default=NO_PRODUCER_EPOCH),
    Field("timeout_ms", INTEGER_32),
    Field("state", _STATE),
    Field("partitions", _PARTITIONS),
    Field("last_update_timestamp_ms", INTEGER_64),
    Field("start_timestamp_ms", INTEGER_64),
    Field("client_transaction_version", INTEGER_16, tag=2, default=0),
)
_KIND = 0
_TABLES = [
    RecordTable(_KIND, TransactionRecord, 1, _VALUE, version_max=1, version_written=version, flexible_since=1)
    for version in (0, 1)
]


class TransactionRecordCodec:
    __slots__ = ()

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        value: Any = record.value
        if value is not None and value.state is TransactionState.EMPTY:
            value = value._replace(partitions=None)
        return _TABLES[record.version].encode((record.transactional_id, value))

    def decode(self, key: bytes, value: bytes | None) -> TransactionRecord | None:
        if len(key) < 2:
            raise UnreadableShard(f"a key of {len(key)} bytes has no kind")
        if key[0] << 8 | key[1] != _KIND:
            return None
        try:
            record: TransactionRecord = _TABLES[1].decode(key, value)
        except MalformedRequest as error:
            raise UnreadableShard(f"a transaction's record cannot be read: {error}") from error
        return record


RECORD_CODEC = TransactionRecordCodec()
