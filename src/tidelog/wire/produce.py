"""Produce, by hand: the request is read without copying its records, the response is a few struct calls.

Versions 3 to 13: flexible from 9, leader hints from 10 (KIP-951), topic ids instead of names from 13.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.primitives import (
    NO_TAGGED_FIELDS,
    ZERO_UUID,
    Reader,
    write_bytes_length,
    write_compact_length,
    write_compact_nullable_string,
    write_compact_string,
    write_nullable_string,
    write_string,
    write_tagged_field,
    write_unsigned_varint,
)
from tidelog.wire.protocol import RequestHeader

VERSIONS = (3, 13)
FLEXIBLE_SINCE = 9
LEADER_HINTS_SINCE = 10
TOPIC_IDS_SINCE = 13

_ACKS_TIMEOUT = struct.Struct(">hi")
_RESULT = struct.Struct(">ihqqq")
_RESULT_V4 = struct.Struct(">ihqq")
_LEADER = struct.Struct(">ii")
_INT32 = struct.Struct(">i")


class ProducePartition(NamedTuple):
    partition: int
    records: memoryview | None


class ProduceTopic(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class ProduceResult(NamedTuple):
    """What became of one partition's records."""

    partition: int
    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()
    current_leader: tuple[int, int] | None = None
    """(leader id, leader epoch), for a client that asked the wrong broker."""


class ProduceTopicResult(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[ProduceResult]


def decode_produce_request(header: RequestHeader, frame: memoryview) -> ProduceRequest:
    version = header.api_version
    reader = Reader(frame, header.body_position)
    if version >= FLEXIBLE_SINCE:
        request = _decode_flexible(reader, version)
    else:
        transactional_id = reader.nullable_string()
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, reader.take(6))
        topics = []
        for _ in range(reader.array_length(6)):
            name = reader.string()
            count = reader.array_length(8)
            topics.append(ProduceTopic(name, None, [_partition(reader) for _ in range(count)]))
        request = ProduceRequest(transactional_id, acks, timeout_ms, topics)
    reader.expect_end()
    return request


def _partition(reader: Reader) -> ProducePartition:
    return ProducePartition(reader.int32(), reader.nullable_bytes())


def _decode_flexible(reader: Reader, version: int) -> ProduceRequest:
    transactional_id = reader.compact_nullable_string()
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(reader.view, reader.take(6))
    topics = []
    for _ in range(reader.compact_array_length(3)):
        name, topic_id = (None, reader.uuid()) if version >= TOPIC_IDS_SINCE else (reader.compact_string(), None)
        partitions = []
        for _ in range(reader.compact_array_length(6)):
            partition = reader.int32()
            records = reader.compact_nullable_bytes()
            reader.skip_tagged_fields()
            partitions.append(ProducePartition(partition, records))
        reader.skip_tagged_fields()
        topics.append(ProduceTopic(name, topic_id, partitions))
    reader.skip_tagged_fields()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_produce_response(
    version: int,
    topics: Sequence[ProduceTopicResult],
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    if version >= FLEXIBLE_SINCE:
        return _encode_flexible(version, topics, throttle_time_ms, node_endpoints)
    parts = [write_bytes_length(len(topics))]
    for topic in topics:
        if topic.name is None:
            raise MalformedRequest(f"Produce version {version} names its topics")
        parts += (write_string(topic.name), write_bytes_length(len(topic.partitions)))
        for result in topic.partitions:
            parts.append(_fixed_fields(version, result))
            if version >= 8:
                parts.append(write_bytes_length(len(result.record_errors)))
                for batch_index, message in result.record_errors:
                    parts += (_INT32.pack(batch_index), write_nullable_string(message))
                parts.append(write_nullable_string(result.error_message))
    parts.append(_INT32.pack(throttle_time_ms))
    return b"".join(parts)


def _fixed_fields(version: int, result: ProduceResult) -> bytes:
    partition, error, base_offset, append_time_ms, log_start_offset = result[:5]
    if version >= 5:
        return _RESULT.pack(partition, error, base_offset, append_time_ms, log_start_offset)
    return _RESULT_V4.pack(partition, error, base_offset, append_time_ms)


def _encode_flexible(
    version: int, topics: Sequence[ProduceTopicResult], throttle_time_ms: int, node_endpoints: Sequence[NodeEndpoint]
) -> bytes:
    parts = [write_compact_length(len(topics))]
    for topic in topics:
        if version >= TOPIC_IDS_SINCE:
            parts.append(topic.topic_id or ZERO_UUID)
        else:
            parts.append(write_compact_string(topic.name or ""))
        parts.append(write_compact_length(len(topic.partitions)))
        for result in topic.partitions:
            partition, error, base_offset, append_time_ms, log_start_offset, message, record_errors, leader = result
            parts.append(_RESULT.pack(partition, error, base_offset, append_time_ms, log_start_offset))
            parts.append(write_compact_length(len(record_errors)))
            for batch_index, batch_message in record_errors:
                parts += (_INT32.pack(batch_index), write_compact_nullable_string(batch_message), NO_TAGGED_FIELDS)
            parts.append(write_compact_nullable_string(message))
            parts.append(leader_tag(0, leader) if leader is not None and version >= LEADER_HINTS_SINCE else NO_TAGGED_FIELDS)
        parts.append(NO_TAGGED_FIELDS)
    parts.append(_INT32.pack(throttle_time_ms))
    parts.append(endpoints_tag(node_endpoints) if node_endpoints and version >= LEADER_HINTS_SINCE else NO_TAGGED_FIELDS)
    return b"".join(parts)


def leader_tag(tag: int, leader: tuple[int, int]) -> bytes:
    """A tagged section that holds just the current leader (KIP-951)."""
    return write_unsigned_varint(1) + write_tagged_field(tag, _LEADER.pack(*leader) + NO_TAGGED_FIELDS)


def endpoints_tag(node_endpoints: Sequence[NodeEndpoint]) -> bytes:
    """A tagged section that says where the leaders named in this response are."""
    parts = [write_compact_length(len(node_endpoints))]
    for node in node_endpoints:
        parts += (_INT32.pack(node.node_id), write_compact_string(node.host), _INT32.pack(node.port))
        parts += (write_compact_nullable_string(node.rack), NO_TAGGED_FIELDS)
    return write_unsigned_varint(1) + write_tagged_field(0, b"".join(parts))
