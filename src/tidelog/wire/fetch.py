"""The codec of Fetch, written by hand: a response is a scatter list in which records are slices of files that nobody has read.

Versions 4 to 18: log start offsets from 5, sessions from 7 (KIP-227), leader epochs from 9, racks from 11, flexible from 12,
topic ids instead of names from 13, the replica's state among the tagged fields from 15, leader hints from 16 (KIP-951).
What 17 and 18 add is for replicas of the metadata quorum; it is skipped here.

A request may name a hundred thousand partitions, and so does its response. The generators ``decode_fetch_in_slices`` and
``encode_fetch_in_slices`` pause after every few hundred of them; the plain functions run them to their end.

The client's side, requests out and responses in, is at the end: ``client/fetch`` and the simulation use it. The records of a
decoded response are views of its frame.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tidelog.ports.disk import Buffer
from tidelog.ports.steps import Steps, run_to_end
from tidelog.wire.errors import ErrorCode, MalformedRequest, known_error
from tidelog.wire.primitives import (
    ELEMENTS_MAX,
    NO_TAGGED_FIELDS,
    UUID_SIZE,
    ZERO_UUID,
    Reader,
    count_elements,
    refuse_null,
    skip_tagged_fields_at,
    unsigned_varint_at,
    write_bytes_length,
    write_compact_length,
    write_compact_string,
    write_string,
    write_tagged_field,
    write_unsigned_varint,
)
from tidelog.wire.produce import NODE_ENDPOINTS_TAG, NodeEndpoint, decode_leader, decode_node_endpoints, endpoints_tag
from tidelog.wire.protocol import ApiKey, RequestHeader

VERSIONS = (4, 18)
LOG_START_OFFSETS_SINCE = 5
SESSIONS_SINCE = 7
LEADER_EPOCHS_SINCE = 9
RACKS_SINCE = 11
FLEXIBLE_SINCE = ApiKey.FETCH.flexible_since
TOPIC_IDS_SINCE = 13
REPLICA_STATE_SINCE = 15
LEADER_HINTS_SINCE = 16
CONSUMER_REPLICA_ID = -1
# A tool that compares the copies of a partition. Unlike a consumer it may read from any replica.
DEBUGGING_REPLICA_ID = -2
FINAL_EPOCH = -1
"""The session epoch of a fetch outside of any session."""

_INT32 = struct.Struct(">i")
_unpack_int16 = struct.Struct(">h").unpack_from
_unpack_int32 = struct.Struct(">i").unpack_from
_unpack_replica_limits = struct.Struct(">iiiib").unpack_from
_SESSION = struct.Struct(">ii")
_unpack_session = _SESSION.unpack_from
_unpack_limits_session = struct.Struct(">iiibii").unpack_from
_WANTED_V4 = struct.Struct(">iqi")
_unpack_partition_v4 = _WANTED_V4.unpack_from
_WANTED_V5 = struct.Struct(">iqqi")
_unpack_partition_v5 = _WANTED_V5.unpack_from
_WANTED_V9 = struct.Struct(">iiqqi")
_unpack_partition_v9 = _WANTED_V9.unpack_from
_WANTED_V12 = struct.Struct(">iiqiqi")
_unpack_partition_v12 = _WANTED_V12.unpack_from
_LIMITS = struct.Struct(">iiib")
_REPLICA_STATE = struct.Struct(">iq")
_HEAD = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_V4 = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
# With no tagged fields.
_FLEXIBLE_ABORTED = struct.Struct(">qqx")
_LEADER = struct.Struct(">ii")
_DIVERGING = struct.Struct(">iq")

# The generators pause after this many bytes of a request, and partitions of a response.
STEP_BYTES = 4096
PARTITIONS_PER_STEP = 256

REPLICA_STATE_TAG = 1
DIVERGING_EPOCH_TAG = 0
CURRENT_LEADER_TAG = 1


class RecordsPart(Protocol):
    """Records that are sent straight from their file."""

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
    replica_epoch: int = -1
    """The broker epoch of the replica that fetches (KIP-903)."""


class FetchResult(NamedTuple):
    partition: int
    error: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) pairs; None if the reader did not ask for them."""
    records: "RecordsPart | None" = None
    current_leader: tuple[int, int] | None = None
    diverging_epoch: tuple[int, int] | None = None
    preferred_read_replica: int = -1


class FetchTopicResult(NamedTuple):
    name: str | None
    topic_id: bytes | None
    partitions: list[FetchResult]


def decode_fetch_request(header: RequestHeader, frame: memoryview) -> FetchRequest:
    return run_to_end(decode_fetch_in_slices(header, frame))


def decode_fetch_in_slices(header: RequestHeader, frame: memoryview) -> Steps[FetchRequest]:
    decode = _decode_flexible if header.api_version >= FLEXIBLE_SINCE else _decode_legacy
    try:
        request, position = yield from decode(frame, header.body_position, header.api_version)
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"a Fetch request of {len(frame)} bytes ends before its last field") from error
    except UnicodeDecodeError as error:
        raise MalformedRequest("a name in a Fetch request is not UTF-8") from error
    if position != len(frame):
        raise MalformedRequest(f"the fields of a Fetch request end at byte {position} of {len(frame)}")
    return request


def _decode_legacy(view: memoryview, position: int, version: int) -> Steps[tuple[FetchRequest, int]]:
    pause_at = position + STEP_BYTES
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
            elif version >= LOG_START_OFFSETS_SINCE:
                partition, offset, log_start_offset, partition_bytes_max = _unpack_partition_v5(view, position)
                position += 24
            else:
                partition, offset, partition_bytes_max = _unpack_partition_v4(view, position)
                position += 16
            partitions.append(FetchPartition(partition, offset, partition_bytes_max, epoch, -1, log_start_offset))
            if position > pause_at:
                pause_at = position + STEP_BYTES
                yield
        topics.append(FetchTopic(name, None, partitions))
        if position > pause_at:
            pause_at = position + STEP_BYTES
            yield
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
            if position > pause_at:
                pause_at = position + STEP_BYTES
                yield
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


def _decode_flexible(view: memoryview, position: int, version: int) -> Steps[tuple[FetchRequest, int]]:
    pause_at = position + STEP_BYTES
    # A length or count is written plus one; 0 is null.
    replica_id, replica_epoch = CONSUMER_REPLICA_ID, -1
    if version < REPLICA_STATE_SINCE:
        (replica_id,) = _unpack_int32(view, position)
        position += 4
    wait_ms_max, bytes_min, bytes_max, isolation_level, session_id, session_epoch = _unpack_limits_session(view, position)
    topic_count, position = unsigned_varint_at(view, position + 21)
    elements_left = count_elements(ELEMENTS_MAX, topic_count - 1)
    topics = []
    for _ in range(topic_count - 1):
        name, topic_id, position = _topic_identity(view, position, version)
        partition_count, position = unsigned_varint_at(view, position)
        elements_left = count_elements(elements_left, partition_count - 1)
        partitions = []
        for _ in range(partition_count - 1):
            partition, epoch, offset, fetched_epoch, log_start_offset, size = _unpack_partition_v12(view, position)
            position += 32
            position = position + 1 if not view[position] else skip_tagged_fields_at(view, position)
            partitions.append(FetchPartition(partition, offset, size, epoch, fetched_epoch, log_start_offset))
            if position > pause_at:
                pause_at = position + STEP_BYTES
                yield
        position = position + 1 if not view[position] else skip_tagged_fields_at(view, position)
        topics.append(FetchTopic(name, topic_id, partitions))
        if position > pause_at:
            pause_at = position + STEP_BYTES
            yield
    topic_count, position = unsigned_varint_at(view, position)
    elements_left = count_elements(elements_left, topic_count - 1)
    forgotten = []
    for _ in range(topic_count - 1):
        name, topic_id, position = _topic_identity(view, position, version)
        partition_count, position = unsigned_varint_at(view, position)
        elements_left = count_elements(elements_left, partition_count - 1)
        indexes, position = _partition_indexes(view, position, partition_count - 1)
        position = position + 1 if not view[position] else skip_tagged_fields_at(view, position)
        forgotten.append(ForgottenTopic(name, topic_id, indexes))
        if position > pause_at:
            pause_at = position + STEP_BYTES
            yield
    rack_id, position = _compact_string(view, position)
    if view[position]:
        reader = Reader(view, position)
        for tag, value in reader.tagged_fields():
            if tag == REPLICA_STATE_TAG and version >= REPLICA_STATE_SINCE:
                state = Reader(value)
                replica_id, replica_epoch = state.int32(), state.int64()
        position = reader.position
    else:
        position += 1
    request = FetchRequest(
        replica_id,
        wait_ms_max,
        bytes_min,
        bytes_max,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        replica_epoch,
    )
    return request, position


def _compact_string(view: memoryview, position: int) -> tuple[str, int]:
    length, position = unsigned_varint_at(view, position)
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
    """Return bytes and records in the order in which they are sent; adjacent bytes are joined."""
    is_flexible = version >= FLEXIBLE_SINCE
    out: list[Buffer | RecordsPart] = []
    pending = _response_head(version, throttle_time_ms, error, session_id, len(topics))
    for topic in topics:
        pending += _topic_head(version, topic)
        pending = _add_partitions(version, topic.partitions, pending, out)
        if is_flexible:
            pending.append(NO_TAGGED_FIELDS)
    return _finish_response(version, node_endpoints, pending, out)


def encode_fetch_in_slices(
    version: int,
    topics: Sequence[FetchTopicResult],
    *,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> "Steps[list[Buffer | RecordsPart]]":
    """The same for a response with many partitions."""
    out: list[Buffer | RecordsPart] = []
    pending = _response_head(version, 0, ErrorCode.NONE, session_id, len(topics))
    encoded = 0
    for topic in topics:
        pending += _topic_head(version, topic)
        for start in range(0, len(topic.partitions), PARTITIONS_PER_STEP):
            partitions = topic.partitions[start : start + PARTITIONS_PER_STEP]
            pending = _add_partitions(version, partitions, pending, out)
            encoded += len(partitions)
            if encoded >= PARTITIONS_PER_STEP:
                encoded = 0
                # Joining the bytes of a hundred thousand partitions would take as long as a slice.
                out.append(b"".join(pending))
                pending = []
                yield
        if version >= FLEXIBLE_SINCE:
            pending.append(NO_TAGGED_FIELDS)
    return _finish_response(version, node_endpoints, pending, out)


def _response_head(version: int, throttle_time_ms: int, error: ErrorCode, session_id: int, topic_count: int) -> list[Buffer]:
    head = _HEAD.pack(throttle_time_ms, error, session_id) if version >= SESSIONS_SINCE else _INT32.pack(throttle_time_ms)
    return [head, write_compact_length(topic_count) if version >= FLEXIBLE_SINCE else write_bytes_length(topic_count)]


def _topic_head(version: int, topic: FetchTopicResult) -> tuple[bytes, bytes]:
    length_of = write_compact_length if version >= FLEXIBLE_SINCE else write_bytes_length
    return _encode_identity(version, topic.name, topic.topic_id), length_of(len(topic.partitions))


def _add_partitions(
    version: int, partitions: Sequence[FetchResult], pending: list[Buffer], out: "list[Buffer | RecordsPart]"
) -> list[Buffer]:
    """Append to ``out`` what ends with records, and return the bytes that are still pending."""
    is_flexible = version >= FLEXIBLE_SINCE
    length_of = write_compact_length if is_flexible else write_bytes_length
    for result in partitions:
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
    return pending


def _finish_response(
    version: int, node_endpoints: Sequence[NodeEndpoint], pending: list[Buffer], out: "list[Buffer | RecordsPart]"
) -> "list[Buffer | RecordsPart]":
    if version >= FLEXIBLE_SINCE:
        has_hints = node_endpoints and version >= LEADER_HINTS_SINCE
        pending.append(endpoints_tag(node_endpoints) if has_hints else NO_TAGGED_FIELDS)
    if pending:
        out.append(b"".join(pending))
    return out


def _encode_identity(version: int, name: str | None, topic_id: bytes | None) -> bytes:
    if version >= TOPIC_IDS_SINCE:
        return topic_id or ZERO_UUID
    return write_compact_string(name or "") if version >= FLEXIBLE_SINCE else write_string(name or "")


def _partition_head(version: int, result: FetchResult, is_flexible: bool) -> list[Buffer]:
    """Encode everything before the length of the records."""
    partition, error, high_watermark, last_stable_offset, log_start_offset, aborted = result[:6]
    if version >= LOG_START_OFFSETS_SINCE:
        parts: list[Buffer] = [_PARTITION.pack(partition, error, high_watermark, last_stable_offset, log_start_offset)]
    else:
        parts = [_PARTITION_V4.pack(partition, error, high_watermark, last_stable_offset)]
    if aborted is None:
        parts.append(b"\0" if is_flexible else b"\xff\xff\xff\xff")
    else:
        parts.append(write_compact_length(len(aborted)) if is_flexible else write_bytes_length(len(aborted)))
        # There may be many thousands.
        pack = _FLEXIBLE_ABORTED.pack if is_flexible else _ABORTED.pack
        parts.append(b"".join([pack(*transaction) for transaction in aborted]))
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


# The client's side.


class FetchedPartition(NamedTuple):
    """A ``FetchResult`` as the client sees it, with the records themselves."""

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


def encode_fetch_request(version: int, request: FetchRequest) -> bytes:
    """Encode the body; ``protocol.request_header`` makes its header."""
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
        state = _REPLICA_STATE.pack(request.replica_id, request.replica_epoch) + NO_TAGGED_FIELDS
        end = write_unsigned_varint(1) + write_tagged_field(REPLICA_STATE_TAG, state)
    parts.append(end)
    return b"".join(parts)


def _encode_partition(version: int, wanted: FetchPartition) -> bytes:
    partition, offset, bytes_max, epoch, fetched_epoch, log_start_offset = wanted
    if version >= FLEXIBLE_SINCE:
        return _WANTED_V12.pack(partition, epoch, offset, fetched_epoch, log_start_offset, bytes_max)
    if version >= LEADER_EPOCHS_SINCE:
        return _WANTED_V9.pack(partition, epoch, offset, log_start_offset, bytes_max)
    if version >= LOG_START_OFFSETS_SINCE:
        return _WANTED_V5.pack(partition, offset, log_start_offset, bytes_max)
    return _WANTED_V4.pack(partition, offset, bytes_max)


def decode_fetch_response(version: int, frame: memoryview, position: int) -> FetchResponse:
    """Decode the body at ``position``. Raises MalformedRequest when it is malformed."""
    reader = Reader(frame, position)
    is_flexible = version >= FLEXIBLE_SINCE
    throttle_time_ms = reader.int32()
    error, session_id = ErrorCode.NONE, 0
    if version >= SESSIONS_SINCE:
        error = known_error(reader.int16())
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
    log_start_offset = reader.int64() if version >= LOG_START_OFFSETS_SINCE else -1
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
        known_error(error),
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
