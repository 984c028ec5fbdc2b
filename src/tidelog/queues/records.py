"""The records of ``__share_group_state``, with Kafka's names and schemas: key and value in one, the key first.

A *snapshot* has the whole state of one group in one partition, and makes every earlier record of the same key redundant. An
*update* has only what changed. A snapshot without a value is a tombstone: the state was deleted. A key is its kind (int16), the
group, the topic id and the partition; a value is its version (int16) and flexible fields.
"""

from typing import Any, NamedTuple

from tidelog.coordinator.errors import UnreadableShard
from tidelog.queues.states import StateBatch
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import INT16, Reader
from tidelog.wire.schema import INT8, INT32, INT64, STRING, UUID, Field, Struct, struct_reader, struct_writer, tuple_struct
from tidelog.wire.schema import INT16 as INT16_FIELD

UNKNOWN_COUNT = -1
"""Kafka before 4.2 wrote no count of final offsets."""
UNCHANGED_OFFSET = -1
VERSION = 0


class SharePartitionKey(NamedTuple):
    """One group in one partition."""

    group_id: str
    topic_id: bytes
    partition: int


class ShareSnapshotValue(NamedTuple):
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    create_timestamp: int
    write_timestamp: int
    state_batches: tuple[StateBatch, ...]
    delivery_complete_count: int = UNKNOWN_COUNT


class ShareSnapshotRecord(NamedTuple):
    key: SharePartitionKey
    value: ShareSnapshotValue | None


class ShareUpdateValue(NamedTuple):
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    """-1 if it is unchanged."""
    state_batches: tuple[StateBatch, ...]
    delivery_complete_count: int = UNKNOWN_COUNT


class ShareUpdateRecord(NamedTuple):
    key: SharePartitionKey
    value: ShareUpdateValue


_KEY = tuple_struct(SharePartitionKey, Field("group_id", STRING), Field("topic_id", UUID), Field("partition", INT32))
_STATE_BATCH = tuple_struct(
    StateBatch,
    Field("first_offset", INT64),
    Field("last_offset", INT64),
    Field("delivery_state", INT8),
    Field("delivery_count", INT16_FIELD),
)
_SNAPSHOT = tuple_struct(
    ShareSnapshotValue,
    Field("snapshot_epoch", INT32),
    Field("state_epoch", INT32),
    Field("leader_epoch", INT32),
    Field("start_offset", INT64),
    Field("create_timestamp", INT64),
    Field("write_timestamp", INT64),
    Field("state_batches", _STATE_BATCH, is_array=True),
    Field("delivery_complete_count", INT32, tag=0),
)
_UPDATE = tuple_struct(
    ShareUpdateValue,
    Field("snapshot_epoch", INT32),
    Field("leader_epoch", INT32),
    Field("start_offset", INT64),
    Field("state_batches", _STATE_BATCH, is_array=True),
    Field("delivery_complete_count", INT32, tag=0),
)

_read_key = struct_reader(_KEY, VERSION, False)
_write_key = struct_writer(_KEY, VERSION, False)


class _Kind:
    __slots__ = ("_read", "_write", "number", "record_type")

    def __init__(self, number: int, record_type: type[Any], value: Struct) -> None:
        self.number = number
        self.record_type = record_type
        self._read = struct_reader(value, VERSION, True)
        self._write = struct_writer(value, VERSION, True)

    def encode_value(self, value: Any) -> bytes:
        out = bytearray(INT16.pack(VERSION))
        self._write(out, value)
        return bytes(out)

    def decode_value(self, data: bytes) -> Any:
        # A coordinator wrote the record, not a client, so its size alone bounds the number of its elements.
        reader = Reader(memoryview(data), elements_max=len(data))
        version = reader.int16()
        if version != VERSION:
            raise UnreadableShard(f"{self.record_type.__name__} has version {version}; this release reads version {VERSION}")
        value = self._read(reader)
        reader.expect_end()
        return value


_SNAPSHOT_KIND = _Kind(0, ShareSnapshotRecord, _SNAPSHOT)
_UPDATE_KIND = _Kind(1, ShareUpdateRecord, _UPDATE)
_BY_NUMBER = {kind.number: kind for kind in (_SNAPSHOT_KIND, _UPDATE_KIND)}
_BY_TYPE = {kind.record_type: kind for kind in (_SNAPSHOT_KIND, _UPDATE_KIND)}


class ShareRecordCodec:
    __slots__ = ()

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        kind = _BY_TYPE[type(record)]
        key = bytearray(INT16.pack(kind.number))
        _write_key(key, record.key)
        return bytes(key), None if record.value is None else kind.encode_value(record.value)

    def decode(self, key: bytes, value: bytes | None) -> Any | None:
        try:
            reader = Reader(memoryview(key))
            kind = _BY_NUMBER.get(reader.int16())
            if kind is None or (value is None and kind is not _SNAPSHOT_KIND):
                return None
            decoded_key = _read_key(reader)
            reader.expect_end()
            return kind.record_type(decoded_key, None if value is None else kind.decode_value(value))
        except MalformedRequest as error:
            raise UnreadableShard(f"a record of the share coordinator cannot be read: {error}") from error


RECORD_CODEC = ShareRecordCodec()
