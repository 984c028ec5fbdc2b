"""Fetch, by hand: the response is a scatter list in which records are slices of files that nobody has read.

Versions 4 to 17: sessions from 7 (KIP-227), leader epochs from 9, flexible from 12, topic ids instead of names from 13, leader
hints from 16 (KIP-951).
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tidelog.ports.disk import Buffer
from tidelog.wire.errors import ErrorCode
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
from tidelog.wire.produce import NodeEndpoint, endpoints_tag
from tidelog.wire.protocol import RequestHeader

VERSIONS = (4, 17)
SESSIONS_SINCE = 7
FLEXIBLE_SINCE = 12
TOPIC_IDS_SINCE = 13
LEADER_HINTS_SINCE = 16
CONSUMER_REPLICA_ID = -1
FINAL_EPOCH = -1
"""Session epoch of a fetch outside of any session."""

_INT32 = struct.Struct(">i")
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
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
    version = header.api_version
    reader = Reader(frame, header.body_position)
    is_flexible = version >= FLEXIBLE_SINCE
    replica_id = reader.int32() if version < 15 else CONSUMER_REPLICA_ID
    wait_ms_max, bytes_min, bytes_max, isolation_level = _LIMITS.unpack_from(frame, reader.take(_LIMITS.size))
    session_id, session_epoch = 0, FINAL_EPOCH
    if version >= SESSIONS_SINCE:
        session_id, session_epoch = _SESSION.unpack_from(frame, reader.take(_SESSION.size))
    count = reader.compact_array_length(3) if is_flexible else reader.array_length(6)
    topics = [_topic(reader, version, is_flexible) for _ in range(count)]
    forgotten = []
    if version >= SESSIONS_SINCE:
        count = reader.compact_array_length(3) if is_flexible else reader.array_length(6)
        forgotten = [_forgotten(reader, version, is_flexible) for _ in range(count)]
    rack_id = ""
    if version >= 11:
        rack_id = reader.compact_string() if is_flexible else reader.string()
    if is_flexible:
        for tag, value in reader.tagged_fields():
            if tag == REPLICA_STATE_TAG and version >= 15:
                replica_id = Reader(value).int32()
    reader.expect_end()
    return FetchRequest(
        replica_id, wait_ms_max, bytes_min, bytes_max, isolation_level, session_id, session_epoch, topics, forgotten, rack_id
    )


def _topic_identity(reader: Reader, version: int, is_flexible: bool) -> tuple[str | None, bytes | None]:
    if version >= TOPIC_IDS_SINCE:
        return None, reader.uuid()
    return (reader.compact_string() if is_flexible else reader.string()), None


def _topic(reader: Reader, version: int, is_flexible: bool) -> FetchTopic:
    name, topic_id = _topic_identity(reader, version, is_flexible)
    count = reader.compact_array_length(16) if is_flexible else reader.array_length(16)
    partitions = []
    for _ in range(count):
        partition = reader.int32()
        current_leader_epoch = reader.int32() if version >= 9 else -1
        fetch_offset = reader.int64()
        last_fetched_epoch = reader.int32() if version >= 12 else -1
        log_start_offset = reader.int64() if version >= 5 else -1
        bytes_max = reader.int32()
        if is_flexible:
            reader.skip_tagged_fields()
        partitions.append(
            FetchPartition(partition, fetch_offset, bytes_max, current_leader_epoch, last_fetched_epoch, log_start_offset)
        )
    if is_flexible:
        reader.skip_tagged_fields()
    return FetchTopic(name, topic_id, partitions)


def _forgotten(reader: Reader, version: int, is_flexible: bool) -> ForgottenTopic:
    name, topic_id = _topic_identity(reader, version, is_flexible)
    count = reader.compact_array_length(4) if is_flexible else reader.array_length(4)
    partitions = [reader.int32() for _ in range(count)]
    if is_flexible:
        reader.skip_tagged_fields()
    return ForgottenTopic(name, topic_id, partitions)


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
    if version >= 11:
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
