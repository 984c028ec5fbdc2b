"""The codec of OffsetCommit, written by hand: consumers send it more often than anything but Produce and Fetch.

Versions 2 to 10: a retention time until 4, leader epochs from 6, group instance ids from 7, flexible from 8, topic ids instead of
names from 10. A request is small, so it is copied once and read as bytes, which is faster than views of the frame.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.primitives import (
    ELEMENTS_AT_ONCE_MAX,
    UUID_SIZE,
    ZERO_UUID,
    compact_array_length_at,
    compact_string_at,
    count_elements,
    refuse_null,
    skip_tagged_fields_at,
    string_at,
    write_compact_length,
    write_compact_string,
    write_string,
)
from tidelog.wire.protocol import ApiKey, RequestHeader

VERSIONS = (2, 10)
RETENTION_TIME_UNTIL = 4
LEADER_EPOCHS_SINCE = 6
INSTANCE_IDS_SINCE = 7
FLEXIBLE_SINCE = ApiKey.OFFSET_COMMIT.flexible_since
TOPIC_IDS_SINCE = 10
THROTTLE_TIME_SINCE = 3

# Most responses are about one partition, and the same as the one before. A name longer than any topic can have is encoded each
# time, so that the cache holds less than a megabyte, whatever clients send.
CACHED_RESPONSES_MAX = 1_000
CACHED_NAME_LENGTH_MAX = 249

NO_GENERATION = -1
NO_RETENTION_TIME_MS = -1
NO_LEADER_EPOCH = -1

_NO_ERROR = ErrorCode.NONE
_unpack_int32 = struct.Struct(">i").unpack_from
_unpack_int64 = struct.Struct(">q").unpack_from
_unpack_partition = struct.Struct(">iq").unpack_from
_unpack_partition_with_epoch = struct.Struct(">iqi").unpack_from
_pack_int32 = struct.Struct(">i").pack
_pack_result = struct.Struct(">ih").pack
# The last byte says that there are no tagged fields.
_pack_flexible_result = struct.Struct(">ihx").pack
# This calls tuple's own constructor, because the one that NamedTuple generates is Python code, and every request makes three.
_new_tuple = tuple.__new__


class OffsetCommitPartition(NamedTuple):
    partition: int
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = None


class OffsetCommitTopic(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[OffsetCommitPartition]


class OffsetCommitRequest(NamedTuple):
    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    retention_time_ms: int
    topics: list[OffsetCommitTopic]


class OffsetCommitTopicResult(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: Sequence[tuple[int, ErrorCode]]


def decode_offset_commit_request(header: RequestHeader, frame: memoryview) -> OffsetCommitRequest:
    data = bytes(frame)
    try:
        if header.api_version >= FLEXIBLE_SINCE:
            request, position = _decode_flexible(data, header.body_position, header.api_version >= TOPIC_IDS_SINCE)
        else:
            request, position = _decode_legacy(data, header.body_position, header.api_version)
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"an OffsetCommit request of {len(frame)} bytes ends before its last field") from error
    except UnicodeDecodeError as error:
        raise MalformedRequest("a string in an OffsetCommit request is not UTF-8") from error
    if position != len(data):
        raise MalformedRequest(f"the fields of an OffsetCommit request end at byte {position} of {len(data)}")
    return request


def _decode_legacy(data: bytes, position: int, version: int) -> tuple[OffsetCommitRequest, int]:
    group_id, position = string_at(data, position)
    (generation,) = _unpack_int32(data, position)
    member_id, position = string_at(data, position + 4)
    group_instance_id = None
    if version >= INSTANCE_IDS_SINCE:
        group_instance_id, position = string_at(data, position)
    retention_time_ms = NO_RETENTION_TIME_MS
    if version <= RETENTION_TIME_UNTIL:
        (retention_time_ms,) = _unpack_int64(data, position)
        position += 8
    (topic_count,) = _unpack_int32(data, position)
    position += 4
    elements_left = count_elements(ELEMENTS_AT_ONCE_MAX, topic_count)
    topics = []
    for _ in range(topic_count):
        name, position = string_at(data, position)
        (partition_count,) = _unpack_int32(data, position)
        position += 4
        elements_left = count_elements(elements_left, partition_count)
        partitions = []
        for _ in range(partition_count):
            if version >= LEADER_EPOCHS_SINCE:
                partition, offset, leader_epoch = _unpack_partition_with_epoch(data, position)
                position += 16
            else:
                partition, offset = _unpack_partition(data, position)
                leader_epoch = NO_LEADER_EPOCH
                position += 12
            metadata, position = string_at(data, position)
            partitions.append(_new_tuple(OffsetCommitPartition, (partition, offset, leader_epoch, metadata)))
        if name is None:
            refuse_null()
        topics.append(OffsetCommitTopic(name, None, partitions))
    if group_id is None or member_id is None:
        raise MalformedRequest("the group id or the member id is null")
    return OffsetCommitRequest(group_id, generation, member_id, group_instance_id, retention_time_ms, topics), position


def _decode_flexible(data: bytes, position: int, has_topic_ids: bool) -> tuple[OffsetCommitRequest, int]:
    group_id, position = compact_string_at(data, position)
    (generation,) = _unpack_int32(data, position)
    member_id, position = compact_string_at(data, position + 4)
    group_instance_id, position = compact_string_at(data, position)
    topic_count, position = compact_array_length_at(data, position)
    elements_left = count_elements(ELEMENTS_AT_ONCE_MAX, topic_count)
    topics = []
    for _ in range(topic_count):
        name = topic_id = None
        if has_topic_ids:
            end = position + UUID_SIZE
            topic_id = data[position:end]
            position = end
        else:
            name, position = compact_string_at(data, position)
            if name is None:
                refuse_null()
        partition_count, position = compact_array_length_at(data, position)
        elements_left = count_elements(elements_left, partition_count)
        partitions = []
        for _ in range(partition_count):
            partition, offset, leader_epoch = _unpack_partition_with_epoch(data, position)
            metadata, position = compact_string_at(data, position + 16)
            partitions.append(_new_tuple(OffsetCommitPartition, (partition, offset, leader_epoch, metadata)))
            position = position + 1 if not data[position] else skip_tagged_fields_at(memoryview(data), position)
        position = position + 1 if not data[position] else skip_tagged_fields_at(memoryview(data), position)
        topics.append(_new_tuple(OffsetCommitTopic, (name, topic_id, partitions)))
    position = position + 1 if not data[position] else skip_tagged_fields_at(memoryview(data), position)
    if group_id is None or member_id is None:
        raise MalformedRequest("the group id or the member id is null")
    fields = (group_id, generation, member_id, group_instance_id, NO_RETENTION_TIME_MS, topics)
    return _new_tuple(OffsetCommitRequest, fields), position


def encode_offset_commit_response(version: int, topics: Sequence[OffsetCommitTopicResult], throttle_time_ms: int = 0) -> bytes:
    if len(topics) == 1 and not throttle_time_ms:
        name, topic_id, partitions = topics[0]
        if len(partitions) == 1 and (name is None or len(name) <= CACHED_NAME_LENGTH_MAX):
            partition, error = partitions[0]
            if error is _NO_ERROR:
                return _encode_success(version, name, topic_id, partition)
    return _encode(version, topics, throttle_time_ms)


@lru_cache(CACHED_RESPONSES_MAX)
def _encode_success(version: int, name: str | None, topic_id: bytes | None, partition: int) -> bytes:
    return _encode(version, [OffsetCommitTopicResult(name, topic_id, [(partition, _NO_ERROR)])], 0)


def _encode(version: int, topics: Sequence[OffsetCommitTopicResult], throttle_time_ms: int) -> bytes:
    if version >= FLEXIBLE_SINCE:
        return _encode_flexible(version >= TOPIC_IDS_SINCE, topics, throttle_time_ms)
    parts = [_pack_int32(throttle_time_ms)] if version >= THROTTLE_TIME_SINCE else []
    parts.append(_pack_int32(len(topics)))
    for name, _, partitions in topics:
        parts += (write_string(name or ""), _pack_int32(len(partitions)))
        for partition, error in partitions:
            parts.append(_pack_result(partition, error))
    return b"".join(parts)


def _encode_flexible(has_topic_ids: bool, topics: Sequence[OffsetCommitTopicResult], throttle_time_ms: int) -> bytes:
    parts = [_pack_int32(throttle_time_ms), write_compact_length(len(topics))]
    for name, topic_id, partitions in topics:
        parts.append((topic_id or ZERO_UUID) if has_topic_ids else write_compact_string(name or ""))
        parts.append(write_compact_length(len(partitions)))
        for partition, error in partitions:
            parts.append(_pack_flexible_result(partition, error))
        parts.append(b"\0")
    parts.append(b"\0")
    return b"".join(parts)
