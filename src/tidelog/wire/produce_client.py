"""Produce from the client's side: requests out, responses in. For the simulation's clients; versions as in ``produce``."""

import struct
from typing import NamedTuple

from tidelog.wire.errors import ErrorCode
from tidelog.wire.primitives import (
    NO_TAGGED_FIELDS,
    NULL_LENGTH,
    ZERO_UUID,
    Reader,
    write_bytes_length,
    write_compact_length,
    write_compact_nullable_string,
    write_compact_string,
    write_nullable_string,
    write_string,
)
from tidelog.wire.produce import (
    FLEXIBLE_SINCE,
    LEADER_HINTS_SINCE,
    TOPIC_IDS_SINCE,
    NodeEndpoint,
    ProduceRequest,
    ProduceResult,
    ProduceTopicResult,
)

_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_RESULT = struct.Struct(">ihqqq")
_RESULT_V4 = struct.Struct(">ihqq")
_ERRORS: dict[int, ErrorCode] = {int(error): error for error in ErrorCode}
CURRENT_LEADER_TAG = 0
NODE_ENDPOINTS_TAG = 0


class ProduceResponse(NamedTuple):
    topics: list[ProduceTopicResult]
    throttle_time_ms: int
    node_endpoints: list[NodeEndpoint]


def encode_produce_request(version: int, request: ProduceRequest) -> bytes:
    """The body; its header comes from ``protocol.request_header``."""
    if version >= FLEXIBLE_SINCE:
        return _encode_flexible(version, request)
    parts: list[bytes | memoryview] = [
        write_nullable_string(request.transactional_id),
        _ACKS_TIMEOUT.pack(request.acks, request.timeout_ms),
        write_bytes_length(len(request.topics)),
    ]
    for topic in request.topics:
        parts += (write_string(topic.name or ""), write_bytes_length(len(topic.partitions)))
        for partition, records in topic.partitions:
            parts.append(_INT32.pack(partition))
            if records is None:
                parts.append(NULL_LENGTH)
            else:
                parts += (write_bytes_length(len(records)), records)
    return b"".join(parts)


def _encode_flexible(version: int, request: ProduceRequest) -> bytes:
    parts: list[bytes | memoryview] = [
        write_compact_nullable_string(request.transactional_id),
        _ACKS_TIMEOUT.pack(request.acks, request.timeout_ms),
        write_compact_length(len(request.topics)),
    ]
    for topic in request.topics:
        parts.append((topic.topic_id or ZERO_UUID) if version >= TOPIC_IDS_SINCE else write_compact_string(topic.name or ""))
        parts.append(write_compact_length(len(topic.partitions)))
        for partition, records in topic.partitions:
            parts.append(_INT32.pack(partition))
            if records is None:
                parts.append(write_compact_length(-1))
            else:
                parts += (write_compact_length(len(records)), records)
            parts.append(NO_TAGGED_FIELDS)
        parts.append(NO_TAGGED_FIELDS)
    parts.append(NO_TAGGED_FIELDS)
    return b"".join(parts)


def decode_produce_response(version: int, frame: memoryview, position: int) -> ProduceResponse:
    """The body that begins at ``position``; MalformedRequest when it is not one."""
    reader = Reader(frame, position)
    is_flexible = version >= FLEXIBLE_SINCE
    topics = []
    for _ in range(reader.compact_array_length(2) if is_flexible else reader.array_length(6)):
        name = topic_id = None
        if version >= TOPIC_IDS_SINCE:
            topic_id = reader.uuid()
        else:
            name = reader.compact_string() if is_flexible else reader.string()
        count = reader.compact_array_length(22) if is_flexible else reader.array_length(22)
        results = [_decode_result(reader, version, is_flexible) for _ in range(count)]
        if is_flexible:
            reader.skip_tagged_fields()
        topics.append(ProduceTopicResult(name, topic_id, results))
    throttle_time_ms = reader.int32()
    node_endpoints: list[NodeEndpoint] = []
    if is_flexible:
        for tag, value in reader.tagged_fields():
            if tag == NODE_ENDPOINTS_TAG and version >= LEADER_HINTS_SINCE:
                node_endpoints = decode_node_endpoints(value)
    reader.expect_end()
    return ProduceResponse(topics, throttle_time_ms, node_endpoints)


def _decode_result(reader: Reader, version: int, is_flexible: bool) -> ProduceResult:
    log_start_offset = -1
    if version >= 5:
        fixed = _RESULT.unpack_from(reader.view, reader.take(_RESULT.size))
        partition, error, base_offset, append_time_ms, log_start_offset = fixed
    else:
        partition, error, base_offset, append_time_ms = _RESULT_V4.unpack_from(reader.view, reader.take(_RESULT_V4.size))
    record_errors: list[tuple[int, str | None]] = []
    message = leader = None
    if version >= 8:
        for _ in range(reader.compact_array_length(6) if is_flexible else reader.array_length(6)):
            index = reader.int32()
            record_errors.append((index, reader.compact_nullable_string() if is_flexible else reader.nullable_string()))
            if is_flexible:
                reader.skip_tagged_fields()
        message = reader.compact_nullable_string() if is_flexible else reader.nullable_string()
    if is_flexible:
        for tag, value in reader.tagged_fields():
            if tag == CURRENT_LEADER_TAG and version >= LEADER_HINTS_SINCE:
                leader = decode_leader(value)
    return ProduceResult(
        partition, error_of(error), base_offset, append_time_ms, log_start_offset, message, record_errors, leader
    )


def error_of(code: int) -> ErrorCode:
    """A newer broker may send a code that we do not know."""
    return _ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def decode_leader(value: memoryview) -> tuple[int, int]:
    reader = Reader(value)
    leader = reader.int32(), reader.int32()
    reader.skip_tagged_fields()
    return leader


def decode_node_endpoints(value: memoryview) -> list[NodeEndpoint]:
    reader = Reader(value)
    nodes = []
    for _ in range(reader.compact_array_length(11)):
        nodes.append(NodeEndpoint(reader.int32(), reader.compact_string(), reader.int32(), reader.compact_nullable_string()))
        reader.skip_tagged_fields()
    return nodes
