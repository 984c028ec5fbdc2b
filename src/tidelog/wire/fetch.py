"""Fetch, by hand: the response is a scatter list in which records are slices of files that nobody has read.

Versions 4 to 17: sessions from 7 (KIP-227), leader epochs from 9, flexible from 12, topic ids instead of names from 13, leader
hints from 16 (KIP-951).
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tidelog.ports.disk import Buffer
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.primitives import (
    NO_TAGGED_FIELDS,
    UUID_SIZE,
    ZERO_UUID,
    Reader,
    write_bytes_length,
    write_compact_length,
    write_compact_string,
    write_string,
    write_tagged_field,
    write_unsigned_varint,
)
from tidelog.wire.produce import NodeEndpoint, endpoints_tag
from tidelog.wire.protocol import RequestHeader
from tidelog.wire.straight_reading import ELEMENTS_MAX, count_elements, refuse_null, skip_tagged_fields_at, varint_at

VERSIONS = (4, 17)
SESSIONS_SINCE = 7
LEADER_EPOCHS_SINCE = 9
RACKS_SINCE = 11
FLEXIBLE_SINCE = 12
TOPIC_IDS_SINCE = 13
REPLICA_STATE_SINCE = 15
LEADER_HINTS_SINCE = 16
CONSUMER_REPLICA_ID = -1
FINAL_EPOCH = -1
"""Session epoch of a fetch outside of any session."""

_INT32 = struct.Struct(">i")
_unpack_int16 = struct.Struct(">h").unpack_from
_unpack_int32 = struct.Struct(">i").unpack_from
_unpack_replica_limits = struct.Struct(">iiiib").unpack_from
_unpack_session = struct.Struct(">ii").unpack_from
_unpack_limits_session = struct.Struct(">iiibii").unpack_from
_unpack_partition_v4 = struct.Struct(">iqi").unpack_from
_unpack_partition_v5 = struct.Struct(">iqqi").unpack_from
_unpack_partition_v9 = struct.Struct(">iiqqi").unpack_from
_unpack_partition_v12 = struct.Struct(">iiqiqi").unpack_from
_HEAD = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_V4 = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_LEADER = struct.Struct(">ii")
_DIVERGING = struct.Struct(">iq")

REPLICA_STATE_TAG = 1
DIVERGING_EPOCH_TAG = 0
CURRENT_LEADER_TAG = 1


class RecordsPart(Protocol):
    """Records that are sent from where they lie."""

    @property
    def length(self) -> int: ...


class FetchPartition(NamedTuple):
    partition: int
    fetch_offset: int
    bytes_max: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchTopic(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[int]


class FetchRequest(NamedTuple):
    replica_id: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack_id: str


class FetchResult(NamedTuple):
    partition: int
    error: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset); None: not asked for."""
    records: "RecordsPart | None" = None
    current_leader: tuple[int, int] | None = None
    diverging_epoch: tuple[int, int] | None = None
    preferred_read_replica: int = -1


class FetchTopicResult(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[FetchResult]


def decode_fetch_request(header: RequestHeader, frame: memoryview) -> FetchRequest:
    try:
        if header.api_version >= FLEXIBLE_SINCE:
            request, position = _decode_flexible(frame, header.body_position, header.api_version)
        else:
            request, position = _decode_legacy(frame, header.body_position, header.api_version)
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"a Fetch request of {len(frame)} bytes ends before its last field") from error
    except UnicodeDecodeError as error:
        raise MalformedRequest("a name in a Fetch request is not UTF-8") from error
    if position != len(frame):
        raise MalformedRequest(f"the fields of a Fetch request end at byte {position} of {len(frame)}")
    return request


def _decode_legacy(view: memoryview, position: int, version: int) -> tuple[FetchRequest, int]:
    replica_id, wait_ms_max, bytes_min, bytes_max, isolation_level = _unpack_replica_limits(view, position)
    position += 17
    session_id, session_epoch = 0, FINAL_EPOCH
    if version >= SESSIONS_SINCE:
        session_id, session_epoch = _unpack_session(view, position)
        position += 8
    (topic_count,) = _unpack_int32(view, position)
    position += 4
    elements_left = count_elements(ELEMENTS_MAX, topic_count)
    topics = []
    for _ in range(topic_count):
        name, position = _legacy_string(view, position)
        (partition_count,) = _unpack_int32(view, position)
        position += 4
        elements_left = count_elements(elements_left, partition_count)
        partitions = []
        for _ in range(partition_count):
            epoch, log_start_offset = -1, -1
            if version >= LEADER_EPOCHS_SINCE:
                partition, epoch, offset, log_start_offset, partition_bytes_max = _unpack_partition_v9(view, position)
                position += 28
            elif version >= 5:
                partition, offset, log_start_offset, partition_bytes_max = _unpack_partition_v5(view, position)
                position += 24
            else:
                partition, offset, partition_bytes_max = _unpack_partition_v4(view, position)
                position += 16
            partitions.append(FetchPartition(partition, offset, partition_bytes_max, epoch, -1, log_start_offset))
        topics.append(FetchTopic(name, None, partitions))
    forgotten = []
    if version >= SESSIONS_SINCE:
        (topic_count,) = _unpack_int32(view, position)
        position += 4
        elements_left = count_elements(elements_left, topic_count)
        for _ in range(topic_count):
            name, position = _legacy_string(view, position)
            (partition_count,) = _unpack_int32(view, position)
            elements_left = count_elements(elements_left, partition_count)
            indexes, position = _partition_indexes(view, position + 4, partition_count)
            forgotten.append(ForgottenTopic(name, None, indexes))
    rack_id = ""
    if version >= RACKS_SINCE:
        rack_id, position = _legacy_string(view, position)
    request = FetchRequest(
        replica_id, wait_ms_max, bytes_min, bytes_max, isolation_level, session_id, session_epoch, topics, forgotten, rack_id
    )
    return request, position


def _legacy_string(view: memoryview, position: int) -> tuple[str, int]:
    (length,) = _unpack_int16(view, position)
    if length < 0:
        refuse_null()
    position += 2
    return str(view[position : position + length], "utf-8"), position + length


def _partition_indexes(view: memoryview, position: int, count: int) -> tuple[list[int], int]:
    return list(struct.unpack_from(f">{count}i", view, position)), position + count * 4


def _decode_flexible(view: memoryview, position: int, version: int) -> tuple[FetchRequest, int]:
    # Lengths and counts are one more than they say; 0 is null.
    replica_id = CONSUMER_REPLICA_ID
    if version < REPLICA_STATE_SINCE:
        (replica_id,) = _unpack_int32(view, position)
        position += 4
    wait_ms_max, bytes_min, bytes_max, isolation_level, session_id, session_epoch = _unpack_limits_session(view, position)
    topic_count, position = varint_at(view, position + 21)
    elements_left = count_elements(ELEMENTS_MAX, topic_count - 1)
    topics = []
    for _ in range(topic_count - 1):
        name, topic_id, position = _topic_identity(view, position, version)
        partition_count, position = varint_at(view, position)
        elements_left = count_elements(elements_left, partition_count - 1)
        partitions = []
        for _ in range(partition_count - 1):
            partition, epoch, offset, fetched_epoch, log_start_offset, size = _unpack_partition_v12(view, position)
            position += 32
            position = position + 1 if not view[position] else skip_tagged_fields_at(view, position)
            partitions.append(FetchPartition(partition, offset, size, epoch, fetched_epoch, log_start_offset))
        position = position + 1 if not view[position] else skip_tagged_fields_at(view, position)
        topics.append(FetchTopic(name, topic_id, partitions))
    topic_count, position = varint_at(view, position)
    elements_left = count_elements(elements_left, topic_count - 1)
    forgotten = []
    for _ in range(topic_count - 1):
        name, topic_id, position = _topic_identity(view, position, version)
        partition_count, position = varint_at(view, position)
        elements_left = count_elements(elements_left, partition_count - 1)
        indexes, position = _partition_indexes(view, position, partition_count - 1)
        position = position + 1 if not view[position] else skip_tagged_fields_at(view, position)
        forgotten.append(ForgottenTopic(name, topic_id, indexes))
    rack_id, position = _compact_string(view, position)
    if view[position]:
        reader = Reader(view, position)
        for tag, value in reader.tagged_fields():
            if tag == REPLICA_STATE_TAG and version >= REPLICA_STATE_SINCE:
                replica_id = Reader(value).int32()
        position = reader.position
    else:
        position += 1
    request = FetchRequest(
        replica_id, wait_ms_max, bytes_min, bytes_max, isolation_level, session_id, session_epoch, topics, forgotten, rack_id
    )
    return request, position


def _compact_string(view: memoryview, position: int) -> tuple[str, int]:
    length, position = varint_at(view, position)
    if not length:
        refuse_null()
    end = position + length - 1
    return str(view[position:end], "utf-8"), end


def _topic_identity(view: memoryview, position: int, version: int) -> tuple[str | None, bytes | None, int]:
    if version >= TOPIC_IDS_SINCE:
        end = position + UUID_SIZE
        return None, bytes(view[position:end]), end
    name, position = _compact_string(view, position)
    return name, None, position


def encode_fetch_response(
    version: int,
    topics: Sequence[FetchTopicResult],
    *,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = 0,
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> "list[Buffer | RecordsPart]":
    """Bytes and records in the order in which they are sent; neighbouring bytes are joined."""
    is_flexible = version >= FLEXIBLE_SINCE
    length_of = write_compact_length if is_flexible else write_bytes_length
    out: list[Buffer | RecordsPart] = []
    head = _HEAD.pack(throttle_time_ms, error, session_id) if version >= SESSIONS_SINCE else _INT32.pack(throttle_time_ms)
    pending: list[Buffer] = [head, length_of(len(topics))]
    for topic in topics:
        pending.append(_encode_identity(version, topic))
        pending.append(length_of(len(topic.partitions)))
        for result in topic.partitions:
            pending += _partition_head(version, result, is_flexible)
            records = result.records
            if records is None or not records.length:
                pending.append(length_of(0))
            else:
                pending.append(length_of(records.length))
                out.append(b"".join(pending))
                out.append(records)
                pending = []
            if is_flexible:
                pending.append(_partition_tags(result))
        if is_flexible:
            pending.append(NO_TAGGED_FIELDS)
    if is_flexible:
        has_hints = node_endpoints and version >= LEADER_HINTS_SINCE
        pending.append(endpoints_tag(node_endpoints) if has_hints else NO_TAGGED_FIELDS)
    if pending:
        out.append(b"".join(pending))
    return out


def _encode_identity(version: int, topic: FetchTopicResult) -> bytes:
    if version >= TOPIC_IDS_SINCE:
        return topic.topic_id or ZERO_UUID
    return write_compact_string(topic.name or "") if version >= FLEXIBLE_SINCE else write_string(topic.name or "")


def _partition_head(version: int, result: FetchResult, is_flexible: bool) -> list[Buffer]:
    """All that comes before the length of the records."""
    partition, error, high_watermark, last_stable_offset, log_start_offset, aborted = result[:6]
    if version >= 5:
        parts: list[Buffer] = [_PARTITION.pack(partition, error, high_watermark, last_stable_offset, log_start_offset)]
    else:
        parts = [_PARTITION_V4.pack(partition, error, high_watermark, last_stable_offset)]
    if aborted is None:
        parts.append(b"\0" if is_flexible else b"\xff\xff\xff\xff")
    else:
        parts.append(write_compact_length(len(aborted)) if is_flexible else write_bytes_length(len(aborted)))
        for producer_id, first_offset in aborted:
            parts.append(_ABORTED.pack(producer_id, first_offset))
            if is_flexible:
                parts.append(NO_TAGGED_FIELDS)
    if version >= RACKS_SINCE:
        parts.append(_INT32.pack(result.preferred_read_replica))
    return parts


def _partition_tags(result: FetchResult) -> bytes:
    if result.current_leader is None and result.diverging_epoch is None:
        return NO_TAGGED_FIELDS
    fields = []
    if result.diverging_epoch is not None:
        fields.append(write_tagged_field(DIVERGING_EPOCH_TAG, _DIVERGING.pack(*result.diverging_epoch) + NO_TAGGED_FIELDS))
    if result.current_leader is not None:
        fields.append(write_tagged_field(CURRENT_LEADER_TAG, _LEADER.pack(*result.current_leader) + NO_TAGGED_FIELDS))
    return write_unsigned_varint(len(fields)) + b"".join(fields)
