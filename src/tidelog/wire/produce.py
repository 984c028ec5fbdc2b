"""The codec of Produce, written by hand: it reads a request without copying the records, and a response is a few struct calls.

Versions 3 to 13: log start offsets from 5, errors of single records from 8, flexible from 9, leader hints from 10 (KIP-951),
topic ids instead of names from 13. The client's side, requests out and responses in, is at the end.

Nearly every request has a handful of partitions and is decoded at once. One with more than ``ELEMENTS_AT_ONCE_MAX`` elements is
decoded in slices, and so is its response encoded.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode, MalformedRequest, TooLongForOneTurn, known_error
from tidelog.wire.primitives import (
    ELEMENTS_MAX,
    NO_TAGGED_FIELDS,
    NULL_LENGTH,
    UUID_SIZE,
    ZERO_UUID,
    Reader,
    refuse_null,
    skip_tagged_fields_at,
    unsigned_varint_at,
    write_bytes_length,
    write_compact_length,
    write_compact_nullable_string,
    write_compact_string,
    write_nullable_string,
    write_string,
    write_tagged_field,
    write_unsigned_varint,
)
from tidelog.wire.protocol import ApiKey, RequestHeader

VERSIONS = (3, 13)
LOG_START_OFFSETS_SINCE = 5
RECORD_ERRORS_SINCE = 8
FLEXIBLE_SINCE = ApiKey.PRODUCE.flexible_since
LEADER_HINTS_SINCE = 10
TOPIC_IDS_SINCE = 13

# Each partition of a request comes with a batch, whose header alone has so many bytes. A request of nothing but names would take
# forty times its size in memory, so it may have only a few that come without records.
RECORDS_BYTES_MIN = 61
ELEMENTS_WITHOUT_RECORDS_MAX = 1_000
# To decode, validate and append one partition's records takes some 30 microseconds.
ELEMENTS_AT_ONCE_MAX = 250
# Of a larger request or response, what is decoded or encoded before a pause.
ELEMENTS_PER_STEP = 128

CURRENT_LEADER_TAG = 0
NODE_ENDPOINTS_TAG = 0

_unpack_int16 = struct.Struct(">h").unpack_from
_unpack_int32 = struct.Struct(">i").unpack_from
_unpack_acks_timeout_count = struct.Struct(">hii").unpack_from
_unpack_partition_length = struct.Struct(">ii").unpack_from
_RESULT = struct.Struct(">ihqqq")
_RESULT_V4 = struct.Struct(">ihqq")
_ACKS_TIMEOUT = struct.Struct(">hi")
_unpack_acks_timeout = _ACKS_TIMEOUT.unpack_from
_LEADER = struct.Struct(">ii")
_INT32 = struct.Struct(">i")
# The length of an array of one.
_ONE = write_compact_length(1)
# What follows the fixed fields of a flexible result without an error: no faulty records, no message, no tagged fields.
_NO_FAULTS = write_compact_length(0) + write_compact_nullable_string(None) + NO_TAGGED_FIELDS
# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and every request makes three.
_new_tuple = tuple.__new__


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
    """The outcome for one partition's records."""

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
    """Decode a request. The records are views of ``frame``. Raises TooLongForOneTurn if it has too many elements for that."""
    try:
        if header.api_version >= FLEXIBLE_SINCE:
            request, position = _decode_flexible(frame, header.body_position, header.api_version >= TOPIC_IDS_SINCE)
        else:
            request, position = _decode_legacy(frame, header.body_position)
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"a Produce request of {len(frame)} bytes ends before its last field") from error
    except UnicodeDecodeError as error:
        raise MalformedRequest("a name in a Produce request is not UTF-8") from error
    if position != len(frame):
        raise MalformedRequest(f"the fields of a Produce request end at byte {position} of {len(frame)}")
    return request


def elements_max(frame_bytes: int) -> int:
    """Return how many array elements a frame of this size may have."""
    return min(ELEMENTS_MAX, ELEMENTS_WITHOUT_RECORDS_MAX + frame_bytes // RECORDS_BYTES_MIN)


def decode_produce_in_slices(header: RequestHeader, frame: memoryview) -> Steps[ProduceRequest]:
    """Decode a request of any length, whose frame must stay as it is until then."""
    version = header.api_version
    is_flexible = version >= FLEXIBLE_SINCE
    reader = Reader(frame, header.body_position, elements_max(len(frame)))
    transactional_id = reader.compact_nullable_string() if is_flexible else reader.nullable_string()
    acks, timeout_ms = reader.int16(), reader.int32()
    topics: list[ProduceTopic] = []
    count = 0
    for _ in range(reader.compact_array_length(2) if is_flexible else reader.array_length(6)):
        name = topic_id = None
        if version >= TOPIC_IDS_SINCE:
            topic_id = reader.uuid()
        else:
            name = reader.compact_string() if is_flexible else reader.string()
        partitions: list[ProducePartition] = []
        topics.append(ProduceTopic(name, topic_id, partitions))
        for _ in range(reader.compact_array_length(6) if is_flexible else reader.array_length(8)):
            index = reader.int32()
            partitions.append(
                ProducePartition(index, reader.compact_nullable_bytes() if is_flexible else reader.nullable_bytes())
            )
            if is_flexible:
                reader.skip_tagged_fields()
            count += 1
            if not count % ELEMENTS_PER_STEP:
                yield
        if is_flexible:
            reader.skip_tagged_fields()
        count += 1
        if not count % ELEMENTS_PER_STEP:
            yield
    if is_flexible:
        reader.skip_tagged_fields()
    reader.expect_end()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _count_at_once(elements_left: int, count: int) -> int:
    if count > elements_left:
        raise TooLongForOneTurn
    if count < 0:
        refuse_null()
    return elements_left - count


def _decode_legacy(view: memoryview, position: int) -> tuple[ProduceRequest, int]:
    transactional_id = None
    (length,) = _unpack_int16(view, position)
    position += 2
    if length >= 0:
        transactional_id = str(view[position : position + length], "utf-8")
        position += length
    elif length != -1:
        raise MalformedRequest(f"a transactional id of {length} bytes")
    acks, timeout_ms, topic_count = _unpack_acks_timeout_count(view, position)
    position += 10
    elements_left = _count_at_once(ELEMENTS_AT_ONCE_MAX, topic_count)
    topics = []
    for _ in range(topic_count):
        (length,) = _unpack_int16(view, position)
        if length < 0:
            refuse_null()
        position += 2
        name = str(view[position : position + length], "utf-8")
        position += length
        (partition_count,) = _unpack_int32(view, position)
        position += 4
        elements_left = _count_at_once(elements_left, partition_count)
        partitions = []
        for _ in range(partition_count):
            partition, length = _unpack_partition_length(view, position)
            position += 8
            records = None
            if length >= 0:
                records = view[position : position + length]
                position += length
            elif length != -1:
                raise MalformedRequest(f"records of {length} bytes")
            partitions.append(_new_tuple(ProducePartition, (partition, records)))
        topics.append(ProduceTopic(name, None, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), position


def _decode_flexible(view: memoryview, position: int, has_topic_ids: bool) -> tuple[ProduceRequest, int]:
    # A length or count is written plus one; 0 is null. Those that nearly always fit into one byte are read inline.
    transactional_id = None
    if view[position]:
        length, position = unsigned_varint_at(view, position)
        end = position + length - 1
        transactional_id = str(view[position:end], "utf-8")
        position = end
    else:
        position += 1
    acks, timeout_ms = _unpack_acks_timeout(view, position)
    topic_count = view[position + 6]
    position += 7
    if topic_count >= 0x80:
        topic_count, position = unsigned_varint_at(view, position - 1)
    elements_left = ELEMENTS_AT_ONCE_MAX - 1 if topic_count == 2 else _count_at_once(ELEMENTS_AT_ONCE_MAX, topic_count - 1)
    topics = []
    for _ in range(topic_count - 1):
        name = topic_id = None
        if has_topic_ids:
            topic_id = bytes(view[position : position + UUID_SIZE])
            position += UUID_SIZE
        else:
            length = view[position]
            position += 1
            if length >= 0x80:
                length, position = unsigned_varint_at(view, position - 1)
            elif not length:
                refuse_null()
            end = position + length - 1
            name = str(view[position:end], "utf-8")
            position = end
        partition_count = view[position]
        position += 1
        if partition_count >= 0x80:
            partition_count, position = unsigned_varint_at(view, position - 1)
        if partition_count != 2 or not elements_left:
            elements_left = _count_at_once(elements_left, partition_count - 1)
        else:
            elements_left -= 1
        partitions = []
        for _ in range(partition_count - 1):
            (partition,) = _unpack_int32(view, position)
            length = view[position + 4]
            if length < 0x80:
                position += 5
            elif view[position + 5] < 0x80:
                length += (view[position + 5] << 7) - 0x80
                position += 6
            else:
                length, position = unsigned_varint_at(view, position + 4)
            records = None
            if length:
                end = position + length - 1
                records = view[position:end]
                position = end
            position = position + 1 if not view[position] else skip_tagged_fields_at(view, position)
            partitions.append(_new_tuple(ProducePartition, (partition, records)))
        position = position + 1 if not view[position] else skip_tagged_fields_at(view, position)
        topics.append(_new_tuple(ProduceTopic, (name, topic_id, partitions)))
    position = position + 1 if not view[position] else skip_tagged_fields_at(view, position)
    return _new_tuple(ProduceRequest, (transactional_id, acks, timeout_ms, topics)), position


def encode_produce_response(
    version: int,
    topics: Sequence[ProduceTopicResult],
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    is_flexible = version >= FLEXIBLE_SINCE
    if is_flexible and len(topics) == 1 and not node_endpoints:
        encoded = _encode_single(version, topics[0], throttle_time_ms)
        if encoded is not None:
            return encoded
    add_results = _add_flexible_results if is_flexible else _add_legacy_results
    parts = [_array_length(version, len(topics))]
    for topic in topics:
        _add_topic_start(parts, version, topic)
        add_results(parts, version, topic.partitions)
        if is_flexible:
            parts.append(NO_TAGGED_FIELDS)
    parts.append(_end(version, throttle_time_ms, node_endpoints))
    return b"".join(parts)


def _encode_single(version: int, topic: ProduceTopicResult, throttle_time_ms: int) -> bytes | None:
    """Encode the result of a single partition without an error, as nearly all responses have; None if it is another one."""
    name, topic_id, results = topic
    if len(results) != 1:
        return None
    partition, error, base_offset, append_time_ms, log_start_offset, message, record_errors, leader = results[0]
    if error or message is not None or record_errors or leader is not None:
        return None
    identity = (topic_id or ZERO_UUID) if version >= TOPIC_IDS_SINCE else write_compact_string(name or "")
    result = _RESULT.pack(partition, error, base_offset, append_time_ms, log_start_offset)
    # The tagged fields of the topic, the throttle time, and the tagged fields of the response.
    return b"".join((_ONE, identity, _ONE, result, _NO_FAULTS, NO_TAGGED_FIELDS, _INT32.pack(throttle_time_ms), NO_TAGGED_FIELDS))


def encode_produce_response_in_slices(
    version: int, topics: Sequence[ProduceTopicResult], throttle_time_ms: int, node_endpoints: Sequence[NodeEndpoint]
) -> Steps[list[bytes]]:
    """Encode a response of any length. The generator returns the same bytes in pieces."""
    is_flexible = version >= FLEXIBLE_SINCE
    add_results = _add_flexible_results if is_flexible else _add_legacy_results
    pieces: list[bytes] = []
    parts = [_array_length(version, len(topics))]
    for topic in topics:
        _add_topic_start(parts, version, topic)
        for start in range(0, len(topic.partitions), ELEMENTS_PER_STEP):
            add_results(parts, version, topic.partitions[start : start + ELEMENTS_PER_STEP])
            if len(parts) >= ELEMENTS_PER_STEP:
                pieces.append(b"".join(parts))
                parts = []
                yield
        if is_flexible:
            parts.append(NO_TAGGED_FIELDS)
    parts.append(_end(version, throttle_time_ms, node_endpoints))
    pieces.append(b"".join(parts))
    return pieces


def _array_length(version: int, count: int) -> bytes:
    return write_compact_length(count) if version >= FLEXIBLE_SINCE else write_bytes_length(count)


def _add_topic_start(parts: list[bytes], version: int, topic: ProduceTopicResult) -> None:
    """Add what precedes the results of a topic: its name or its id, and their number."""
    name, topic_id, results = topic
    if version >= TOPIC_IDS_SINCE:
        parts.append(topic_id or ZERO_UUID)
    elif version >= FLEXIBLE_SINCE:
        parts.append(write_compact_string(name or ""))
    elif name is None:
        raise MalformedRequest(f"Produce version {version} names its topics")
    else:
        parts.append(write_string(name))
    parts.append(_array_length(version, len(results)))


def _end(version: int, throttle_time_ms: int, node_endpoints: Sequence[NodeEndpoint]) -> bytes:
    if version < FLEXIBLE_SINCE:
        return _INT32.pack(throttle_time_ms)
    tagged = endpoints_tag(node_endpoints) if node_endpoints and version >= LEADER_HINTS_SINCE else NO_TAGGED_FIELDS
    return _INT32.pack(throttle_time_ms) + tagged


def _add_legacy_results(parts: list[bytes], version: int, results: Sequence[ProduceResult]) -> None:
    for result in results:
        parts.append(_fixed_fields(version, result))
        if version >= RECORD_ERRORS_SINCE:
            parts.append(write_bytes_length(len(result.record_errors)))
            for batch_index, message in result.record_errors:
                parts += (_INT32.pack(batch_index), write_nullable_string(message))
            parts.append(write_nullable_string(result.error_message))


def _fixed_fields(version: int, result: ProduceResult) -> bytes:
    partition, error, base_offset, append_time_ms, log_start_offset = result[:5]
    if version >= LOG_START_OFFSETS_SINCE:
        return _RESULT.pack(partition, error, base_offset, append_time_ms, log_start_offset)
    return _RESULT_V4.pack(partition, error, base_offset, append_time_ms)


def _add_flexible_results(parts: list[bytes], version: int, results: Sequence[ProduceResult]) -> None:
    for result in results:
        partition, error, base_offset, append_time_ms, log_start_offset, message, record_errors, leader = result
        parts.append(_RESULT.pack(partition, error, base_offset, append_time_ms, log_start_offset))
        if not error and message is None and not record_errors and leader is None:
            parts.append(_NO_FAULTS)
            continue
        parts.append(write_compact_length(len(record_errors)))
        for batch_index, batch_message in record_errors:
            parts += (_INT32.pack(batch_index), write_compact_nullable_string(batch_message), NO_TAGGED_FIELDS)
        parts.append(write_compact_nullable_string(message))
        parts.append(_leader_tag(leader) if leader is not None and version >= LEADER_HINTS_SINCE else NO_TAGGED_FIELDS)


def _leader_tag(leader: tuple[int, int]) -> bytes:
    """Encode tagged fields that hold just the current leader (KIP-951)."""
    return write_unsigned_varint(1) + write_tagged_field(CURRENT_LEADER_TAG, _LEADER.pack(*leader) + NO_TAGGED_FIELDS)


def endpoints_tag(node_endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Encode tagged fields with the addresses of the leaders named in this response."""
    parts = [write_compact_length(len(node_endpoints))]
    for node in node_endpoints:
        parts += (_INT32.pack(node.node_id), write_compact_string(node.host), _INT32.pack(node.port))
        parts += (write_compact_nullable_string(node.rack), NO_TAGGED_FIELDS)
    return write_unsigned_varint(1) + write_tagged_field(NODE_ENDPOINTS_TAG, b"".join(parts))


# The client's side.


class ProduceResponse(NamedTuple):
    topics: list[ProduceTopicResult]
    throttle_time_ms: int
    node_endpoints: list[NodeEndpoint]


def encode_produce_request(version: int, request: ProduceRequest) -> bytes:
    """Encode the body; ``protocol.request_header`` makes its header."""
    if version >= FLEXIBLE_SINCE:
        return _encode_flexible_request(version, request)
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


def _encode_flexible_request(version: int, request: ProduceRequest) -> bytes:
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
    """Decode the body at ``position``. Raises MalformedRequest when it is malformed."""
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
    if version >= LOG_START_OFFSETS_SINCE:
        fixed = _RESULT.unpack_from(reader.view, reader.take(_RESULT.size))
        partition, error, base_offset, append_time_ms, log_start_offset = fixed
    else:
        partition, error, base_offset, append_time_ms = _RESULT_V4.unpack_from(reader.view, reader.take(_RESULT_V4.size))
    record_errors: list[tuple[int, str | None]] = []
    message = leader = None
    if version >= RECORD_ERRORS_SINCE:
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
        partition, known_error(error), base_offset, append_time_ms, log_start_offset, message, record_errors, leader
    )


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
