"""Fetch from the client's side: requests out, responses in. The records of a response are views of its frame.

For ``client/fetch`` and the simulation's clients; versions as in ``fetch``.
"""

import struct
from typing import NamedTuple

from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import (
    CONSUMER_REPLICA_ID,
    CURRENT_LEADER_TAG,
    DIVERGING_EPOCH_TAG,
    FLEXIBLE_SINCE,
    LEADER_EPOCHS_SINCE,
    LEADER_HINTS_SINCE,
    RACKS_SINCE,
    REPLICA_STATE_SINCE,
    REPLICA_STATE_TAG,
    SESSIONS_SINCE,
    TOPIC_IDS_SINCE,
    FetchPartition,
    FetchRequest,
)
from tidelog.wire.primitives import (
    NO_TAGGED_FIELDS,
    ZERO_UUID,
    Reader,
    write_bytes_length,
    write_compact_length,
    write_compact_string,
    write_string,
    write_tagged_field,
    write_unsigned_varint,
)
from tidelog.wire.produce import NodeEndpoint
from tidelog.wire.produce_client import NODE_ENDPOINTS_TAG, decode_leader, decode_node_endpoints, error_of

_INT32 = struct.Struct(">i")
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_REPLICA_STATE = struct.Struct(">iq")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")


class FetchedPartition(NamedTuple):
    """What ``fetch.FetchResult`` is to the broker, with the records themselves."""

    partition: int
    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    """(producer id, first offset)."""
    records: memoryview | None
    current_leader: tuple[int, int] | None
    diverging_epoch: tuple[int, int] | None
    preferred_read_replica: int


class FetchedTopic(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[FetchedPartition]


class FetchResponse(NamedTuple):
    topics: list[FetchedTopic]
    error: ErrorCode
    session_id: int
    throttle_time_ms: int
    node_endpoints: list[NodeEndpoint]


def encode_fetch_request(version: int, request: FetchRequest, replica_epoch: int = -1) -> bytes:
    """The body; its header comes from ``protocol.request_header``."""
    is_flexible = version >= FLEXIBLE_SINCE
    length_of = write_compact_length if is_flexible else write_bytes_length
    parts = [_INT32.pack(request.replica_id)] if version < REPLICA_STATE_SINCE else []
    parts.append(_LIMITS.pack(request.wait_ms_max, request.bytes_min, request.bytes_max, request.isolation_level))
    if version >= SESSIONS_SINCE:
        parts.append(_SESSION.pack(request.session_id, request.session_epoch))
    end = NO_TAGGED_FIELDS if is_flexible else b""
    parts.append(length_of(len(request.topics)))
    for topic in request.topics:
        parts += (_encode_identity(version, topic.name, topic.topic_id), length_of(len(topic.partitions)))
        parts += [_encode_partition(version, partition) + end for partition in topic.partitions]
        parts.append(end)
    if version >= SESSIONS_SINCE:
        parts.append(length_of(len(request.forgotten)))
        for forgotten in request.forgotten:
            parts += (_encode_identity(version, forgotten.name, forgotten.topic_id), length_of(len(forgotten.partitions)))
            parts += [_INT32.pack(partition) for partition in forgotten.partitions]
            parts.append(end)
    if version >= RACKS_SINCE:
        parts.append(write_compact_string(request.rack_id) if is_flexible else write_string(request.rack_id))
    if version >= REPLICA_STATE_SINCE and request.replica_id != CONSUMER_REPLICA_ID:
        state = _REPLICA_STATE.pack(request.replica_id, replica_epoch) + NO_TAGGED_FIELDS
        end = write_unsigned_varint(1) + write_tagged_field(REPLICA_STATE_TAG, state)
    parts.append(end)
    return b"".join(parts)


def _encode_identity(version: int, name: str | None, topic_id: bytes | None) -> bytes:
    if version >= TOPIC_IDS_SINCE:
        return topic_id or ZERO_UUID
    return write_compact_string(name or "") if version >= FLEXIBLE_SINCE else write_string(name or "")


def _encode_partition(version: int, wanted: FetchPartition) -> bytes:
    partition, offset, bytes_max, epoch, fetched_epoch, log_start_offset = wanted
    if version >= FLEXIBLE_SINCE:
        return _PARTITION_V12.pack(partition, epoch, offset, fetched_epoch, log_start_offset, bytes_max)
    if version >= LEADER_EPOCHS_SINCE:
        return _PARTITION_V9.pack(partition, epoch, offset, log_start_offset, bytes_max)
    if version >= 5:
        return _PARTITION_V5.pack(partition, offset, log_start_offset, bytes_max)
    return _PARTITION_V4.pack(partition, offset, bytes_max)


def decode_fetch_response(version: int, frame: memoryview, position: int) -> FetchResponse:
    """The body that begins at ``position``; MalformedRequest when it is not one."""
    reader = Reader(frame, position)
    is_flexible = version >= FLEXIBLE_SINCE
    throttle_time_ms = reader.int32()
    error, session_id = ErrorCode.NONE, 0
    if version >= SESSIONS_SINCE:
        error = error_of(reader.int16())
        session_id = reader.int32()
    topics = []
    for _ in range(reader.compact_array_length(2) if is_flexible else reader.array_length(6)):
        name = topic_id = None
        if version >= TOPIC_IDS_SINCE:
            topic_id = reader.uuid()
        else:
            name = reader.compact_string() if is_flexible else reader.string()
        count = reader.compact_array_length(22) if is_flexible else reader.array_length(22)
        partitions = [_decode_partition(reader, version, is_flexible) for _ in range(count)]
        if is_flexible:
            reader.skip_tagged_fields()
        topics.append(FetchedTopic(name, topic_id, partitions))
    node_endpoints: list[NodeEndpoint] = []
    if is_flexible:
        for tag, value in reader.tagged_fields():
            if tag == NODE_ENDPOINTS_TAG and version >= LEADER_HINTS_SINCE:
                node_endpoints = decode_node_endpoints(value)
    reader.expect_end()
    return FetchResponse(topics, error, session_id, throttle_time_ms, node_endpoints)


def _decode_partition(reader: Reader, version: int, is_flexible: bool) -> FetchedPartition:
    partition, error, high_watermark, last_stable_offset = reader.int32(), reader.int16(), reader.int64(), reader.int64()
    log_start_offset = reader.int64() if version >= 5 else -1
    aborted = _decode_aborted(reader, is_flexible)
    preferred_read_replica = reader.int32() if version >= RACKS_SINCE else -1
    records = reader.compact_nullable_bytes() if is_flexible else reader.nullable_bytes()
    leader = diverging_epoch = None
    if is_flexible:
        for tag, value in reader.tagged_fields():
            if tag == CURRENT_LEADER_TAG:
                leader = decode_leader(value)
            elif tag == DIVERGING_EPOCH_TAG:
                fields = Reader(value)
                diverging_epoch = fields.int32(), fields.int64()
    return FetchedPartition(
        partition,
        error_of(error),
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        records,
        leader,
        diverging_epoch,
        preferred_read_replica,
    )


def _decode_aborted(reader: Reader, is_flexible: bool) -> list[tuple[int, int]] | None:
    count = reader.compact_nullable_array_length(17) if is_flexible else reader.nullable_array_length(16)
    if count is None:
        return None
    aborted = []
    for _ in range(count):
        aborted.append((reader.int64(), reader.int64()))
        if is_flexible:
            reader.skip_tagged_fields()
    return aborted
