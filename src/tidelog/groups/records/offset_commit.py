"""Encodes and decodes OffsetCommit records by hand, because a coordinator loads 100,000 of them in a second and writes one for
every commit.

Key: kind (int16, 0 or 1), group, topic, partition. Value: version (int16), then::

    0, 2   offset | metadata | commit timestamp
    1      offset | metadata | commit timestamp | expire timestamp
    3      offset | leader epoch | metadata | commit timestamp
    4      as 3, flexible; tag 0 is the topic id

We write version 4, except for an offset with its own expiry: that is version 1, which loses the leader epoch and the topic id, as
in Kafka.
"""

import struct
from functools import lru_cache

from tidelog.coordinator.errors import UnreadableShard
from tidelog.groups.records.types import NO_LEADER_EPOCH, NO_TIMESTAMP_MS, OffsetCommitRecord, OffsetCommitValue
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import UUID_SIZE, ZERO_UUID, Reader, write_compact_string, write_string

KIND = 1
LEGACY_KIND = 0
VERSION_MAX = 4
VERSION_WITH_EXPIRY = 1

# A group commits the same few partitions over and over. Keys of long group ids are not cached, so the cache holds a few megabytes
# at most, whatever clients send; a topic's name has its own limit.
CACHED_KEYS_MAX = 5_000
CACHED_GROUP_LENGTH_MAX = 100

_unpack_int16 = struct.Struct(">h").unpack_from
_unpack_int32 = struct.Struct(">i").unpack_from
_unpack_kind_length = struct.Struct(">hh").unpack_from
_unpack_flexible_head = struct.Struct(">hqiB").unpack_from
_unpack_timestamp_count = struct.Struct(">qB").unpack_from
_pack_kind_length = struct.Struct(">hh").pack
_pack_int16 = struct.Struct(">h").pack
_pack_int32 = struct.Struct(">i").pack
_pack_flexible_head = struct.Struct(">hqi").pack
_pack_expiring_head = struct.Struct(">hq").pack
_pack_timestamp = struct.Struct(">q").pack
_pack_two_timestamps = struct.Struct(">qq").pack
# This calls tuple's own constructor, because the one that NamedTuple generates is Python code.
_new_tuple = tuple.__new__

_HEAD_SIZE = 15
_EMPTY_COMPACT_STRING = b"\1"
_TOPIC_ID_TAG = b"\0\x10"
_ONE_TOPIC_ID_TAG = b"\1" + _TOPIC_ID_TAG
_TAGGED_SIZE = len(_ONE_TOPIC_ID_TAG) + UUID_SIZE


def encode(record: OffsetCommitRecord) -> tuple[bytes, bytes | None]:
    group, topic, partition, value = record
    write_key = _cached_key if len(group) <= CACHED_GROUP_LENGTH_MAX else _key
    return write_key(group, topic, partition), None if value is None else _encode_value(value)


def _key(group: str, topic: str, partition: int) -> bytes:
    group_bytes = group.encode()
    topic_bytes = topic.encode()
    return b"".join(
        (
            _pack_kind_length(KIND, len(group_bytes)),
            group_bytes,
            _pack_int16(len(topic_bytes)),
            topic_bytes,
            _pack_int32(partition),
        )
    )


_cached_key = lru_cache(CACHED_KEYS_MAX)(_key)


def _encode_value(value: OffsetCommitValue) -> bytes:
    offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id = value
    if expire_timestamp != NO_TIMESTAMP_MS:
        head = _pack_expiring_head(VERSION_WITH_EXPIRY, offset)
        return head + write_string(metadata) + _pack_two_timestamps(commit_timestamp, expire_timestamp)
    text = write_compact_string(metadata) if metadata else _EMPTY_COMPACT_STRING
    head = _pack_flexible_head(VERSION_MAX, offset, leader_epoch) + text + _pack_timestamp(commit_timestamp)
    if topic_id == ZERO_UUID:
        return head + b"\0"
    if len(topic_id) != UUID_SIZE:
        raise ValueError(f"a topic id of {len(topic_id)} bytes, not {UUID_SIZE}")
    return head + _ONE_TOPIC_ID_TAG + topic_id


def decode(key: bytes, value: bytes | None) -> OffsetCommitRecord:
    """Raises UnreadableShard when the key or the value is malformed."""
    try:
        _, length = _unpack_kind_length(key)
        end = 4 + length
        group = key[4:end].decode()
        (topic_length,) = _unpack_int16(key, end)
        position = end + 2
        end = position + topic_length
        topic = key[position:end].decode()
        (partition,) = _unpack_int32(key, end)
        if length < 0 or topic_length < 0 or end + 4 != len(key):
            raise UnreadableShard(f"the key of a committed offset, {len(key)} bytes, is malformed")
        read = None if value is None else _decode_value(value)
    except (struct.error, IndexError, UnicodeDecodeError, MalformedRequest) as error:
        raise UnreadableShard(f"a committed offset cannot be read: {error}") from error
    return _new_tuple(OffsetCommitRecord, (group, topic, partition, read))


def _decode_value(value: bytes) -> OffsetCommitValue:
    """Read the common layout with straight-line code, and any other with the reader that checks every step."""
    if len(value) < _HEAD_SIZE or value[:2] != b"\0\4":
        return _decode_any(value)
    _, offset, leader_epoch, length = _unpack_flexible_head(value)
    if length == 1:
        metadata = ""
        position = _HEAD_SIZE
    elif 1 < length < 0x80:
        position = _HEAD_SIZE + length - 1
        metadata = value[_HEAD_SIZE:position].decode()
    else:
        return _decode_any(value)
    commit_timestamp, tags = _unpack_timestamp_count(value, position)
    position += 8
    rest = len(value) - position
    if not tags and rest == 1:
        topic_id = ZERO_UUID
    elif rest == _TAGGED_SIZE and value[position : position + 3] == _ONE_TOPIC_ID_TAG:
        topic_id = value[position + 3 :]
    else:
        return _decode_any(value)
    return _new_tuple(OffsetCommitValue, (offset, leader_epoch, metadata, commit_timestamp, NO_TIMESTAMP_MS, topic_id))


def _decode_any(value: bytes) -> OffsetCommitValue:
    reader = Reader(memoryview(value))
    version = reader.int16()
    if not 0 <= version <= VERSION_MAX:
        raise UnreadableShard(f"a committed offset has version {version}; this release reads versions 0 to {VERSION_MAX}")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_LEADER_EPOCH
    metadata = reader.compact_string() if version >= 4 else reader.string()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == VERSION_WITH_EXPIRY else NO_TIMESTAMP_MS
    topic_id = ZERO_UUID
    if version >= 4:
        for tag, data in reader.tagged_fields():
            if tag == 0:
                tagged = Reader(data)
                topic_id = tagged.uuid()
                tagged.expect_end()
    reader.expect_end()
    return OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id)
