import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.codec_checks import check_mutations, check_truncations
from tests.wire.kio_oracle import instant, kio_bytes, kio_error, kio_uuid, milliseconds
from tests.wire.message_strategies import (
    duration_ms,
    errors,
    int32,
    int64,
    leaders,
    node_endpoints,
    nullable_text,
    record_views,
    text,
    topic_ids,
)
from tidelog.ports.steps import run_to_end
from tidelog.wire.errors import ErrorCode, MalformedRequest, TooLongForOneTurn
from tidelog.wire.primitives import ELEMENTS_MAX, write_tagged_field
from tidelog.wire.produce import (
    ELEMENTS_AT_ONCE_MAX,
    ELEMENTS_WITHOUT_RECORDS_MAX,
    FLEXIBLE_SINCE,
    LEADER_HINTS_SINCE,
    TOPIC_IDS_SINCE,
    VERSIONS,
    NodeEndpoint,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    ProduceTopic,
    ProduceTopicResult,
    decode_produce_in_slices,
    decode_produce_request,
    decode_produce_response,
    elements_max,
    encode_produce_request,
    encode_produce_response,
    encode_produce_response_in_slices,
)
from tidelog.wire.protocol import RequestHeader

ALL_VERSIONS = range(VERSIONS[0], VERSIONS[1] + 1)
every_version = pytest.mark.parametrize("version", ALL_VERSIONS)
FLEXIBLE_VERSIONS = range(FLEXIBLE_SINCE, VERSIONS[1] + 1)


def decode(version: int, body: bytes | memoryview) -> ProduceRequest:
    """As the broker does: at once, or in slices if that would take long."""
    header = RequestHeader(0, version, 1, None, 0)
    try:
        decoded = decode_produce_request(header, memoryview(body))
    except TooLongForOneTurn:
        return decode_in_slices(version, body)
    assert decode_in_slices(version, body) == decoded
    return decoded


def decode_in_slices(version: int, body: bytes | memoryview) -> ProduceRequest:
    return run_to_end(decode_produce_in_slices(RequestHeader(0, version, 1, None, 0), memoryview(body)))


@st.composite
def requests(draw: st.DrawFn, version: int) -> ProduceRequest:
    partitions = st.lists(st.builds(ProducePartition, int32, st.none() | record_views), max_size=3)
    if version >= TOPIC_IDS_SINCE:
        topics = st.builds(ProduceTopic, st.none(), topic_ids, partitions)
    else:
        topics = st.builds(ProduceTopic, text, st.none(), partitions)
    acks = st.sampled_from([-1, 0, 1, 7])
    return draw(st.builds(ProduceRequest, nullable_text, acks, duration_ms, st.lists(topics, max_size=3)))


@st.composite
def responses(draw: st.DrawFn, version: int) -> ProduceResponse:
    """Only what the version can say: the rest has its default."""
    result = st.builds(
        ProduceResult,
        int32,
        errors,
        int64,
        st.just(-1) | st.integers(0, 2**42),
        int64 if version >= 5 else st.just(-1),
        nullable_text if version >= 8 else st.none(),
        st.lists(st.tuples(int32, nullable_text), max_size=2) if version >= 8 else st.builds(list),
        leaders if version >= LEADER_HINTS_SINCE else st.none(),
    )
    results = st.lists(result, max_size=3)
    if version >= TOPIC_IDS_SINCE:
        topics = st.builds(ProduceTopicResult, st.none(), topic_ids, results)
    else:
        topics = st.builds(ProduceTopicResult, text, st.none(), results)
    nodes = node_endpoints if version >= LEADER_HINTS_SINCE else st.builds(list)
    return draw(st.builds(ProduceResponse, st.lists(topics, max_size=3), duration_ms, nodes))


def request_by_kio(version: int, request: ProduceRequest) -> bytes:
    topics = [
        {
            "name": topic.name,
            "topic_id": kio_uuid(topic.topic_id),
            "partition_data": [
                {"index": partition, "records": None if data is None else bytes(data)} for partition, data in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    fields = {
        "transactional_id": request.transactional_id,
        "acks": request.acks,
        "timeout": milliseconds(request.timeout_ms),
        "topic_data": topics,
    }
    return kio_bytes("produce", "request", version, fields)


def result_fields(result: ProduceResult) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "index": result.partition,
        "error_code": kio_error(result.error),
        "base_offset": result.base_offset,
        "log_append_time": instant(result.log_append_time_ms),
        "log_start_offset": result.log_start_offset,
        "record_errors": [{"batch_index": i, "batch_index_error_message": m} for i, m in result.record_errors],
        "error_message": result.error_message,
    }
    if result.current_leader is not None:
        fields["current_leader"] = {"leader_id": result.current_leader[0], "leader_epoch": result.current_leader[1]}
    return fields


def response_by_kio(version: int, response: ProduceResponse) -> bytes:
    topics = [
        {
            "name": topic.name,
            "topic_id": kio_uuid(topic.topic_id),
            "partition_responses": [result_fields(result) for result in topic.partitions],
        }
        for topic in response.topics
    ]
    fields = {
        "responses": topics,
        "throttle_time": milliseconds(response.throttle_time_ms),
        "node_endpoints": [node._asdict() for node in response.node_endpoints],
    }
    return kio_bytes("produce", "response", version, fields)


@every_version
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_requests_as_kio_writes_them(version: int, data: st.DataObject) -> None:
    request = data.draw(requests(version))
    body = request_by_kio(version, request)
    assert decode(version, body) == request
    assert encode_produce_request(version, request) == body


@every_version
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_responses_as_kio_writes_them(version: int, data: st.DataObject) -> None:
    response = data.draw(responses(version))
    body = encode_produce_response(version, response.topics, response.throttle_time_ms, response.node_endpoints)
    assert body == response_by_kio(version, response)
    assert decode_produce_response(version, memoryview(body), 0) == response


@every_version
@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=10)
def test_broken_requests_are_refused(version: int, data: st.DataObject, seed: int) -> None:
    body = encode_produce_request(version, data.draw(requests(version)))
    if len(body) < 1000:
        check_truncations(lambda frame: decode(version, frame), body)
    check_mutations(lambda frame: decode(version, frame), body, seed)


@every_version
@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=10)
def test_broken_responses_are_refused(version: int, data: st.DataObject, seed: int) -> None:
    body = response_by_kio(version, data.draw(responses(version)))
    check_truncations(lambda frame: decode_produce_response(version, frame, 0), body)
    check_mutations(lambda frame: decode_produce_response(version, frame, 0), body, seed)


@every_version
@given(body=st.binary(max_size=200))
@settings(deadline=None, max_examples=50)
def test_garbage_is_refused(version: int, body: bytes) -> None:
    for decoder in (decode, lambda version, frame: decode_produce_response(version, memoryview(frame), 0)):
        with suppress(MalformedRequest):
            decoder(version, body)


@every_version
def test_records_are_views_of_the_frame(version: int) -> None:
    topic_id = bytes(range(16))
    request = ProduceRequest(None, -1, 1, [ProduceTopic("t", topic_id, [ProducePartition(0, memoryview(b"records"))])])
    frame = bytearray(b"header" + encode_produce_request(version, request))
    decoded = decode_produce_request(RequestHeader(0, version, 1, None, 6), memoryview(frame))
    view = decoded.topics[0].partitions[0].records
    assert view is not None
    assert view.obj is frame
    frame[frame.index(b"records")] = ord("R")
    assert bytes(view) == b"Records"


@pytest.mark.parametrize("version", FLEXIBLE_VERSIONS)
def test_unknown_tagged_fields_are_ignored(version: int) -> None:
    request = ProduceRequest("id", 1, 5, [ProduceTopic("name", None, [ProducePartition(2, memoryview(b"x"))])])
    if version >= TOPIC_IDS_SINCE:
        request = request._replace(topics=[request.topics[0]._replace(name=None, topic_id=bytes(range(16)))])
    plain = encode_produce_request(version, request)
    # The last three bytes are the empty sections of the partition, the topic and the request.
    assert plain.endswith(b"x\0\0\0")
    section = b"\x02" + write_tagged_field(77, b"abc") + write_tagged_field(5000, bytes(300))
    assert decode(version, plain[:-3] + section * 3) == request


@pytest.mark.parametrize("version", range(LEADER_HINTS_SINCE, VERSIONS[1] + 1))
def test_unknown_tagged_fields_of_a_response_are_ignored(version: int) -> None:
    body = encode_produce_response(version, [], 9, [NodeEndpoint(1, "host", 2)])
    assert body[5] == 1  # one tagged field, which comes before the unknown one
    body = body[:5] + b"\x02" + body[6:] + write_tagged_field(9, b"later")
    assert decode_produce_response(version, memoryview(body), 0) == ProduceResponse([], 9, [NodeEndpoint(1, "host", 2)])


@pytest.mark.parametrize("version", [3, 8])
@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">hhii", -2, 1, 0, 0),
        struct.pack(">hhii", -1, 1, 0, -1),
        struct.pack(">hhiih", -1, 1, 0, 1, -1) + bytes(4),
        struct.pack(">hhiihi", -1, 1, 0, 1, 0, -1),
        struct.pack(">hhiihiii", -1, 1, 0, 1, 0, 1, 0, -2),
        struct.pack(">hhiihi", -1, 1, 0, 1, 1, 0).replace(b"\0\1\0\0\0\0", b"\0\1\xff\0\0\0\0"),
    ],
    ids=["transactional id", "topics", "name", "partitions", "records", "not UTF-8"],
)
def test_negative_lengths_are_refused(version: int, body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode(version, body)


@pytest.mark.parametrize(
    "body",
    [b"\0\0\1\0\0\0\0\0\0", b"\0\0\1\0\0\0\0\2\0\1\0\0", b"\0\0\1\0\0\0\0\2\2t\0\0\0"],
    ids=["topics", "name", "partitions"],
)
def test_null_where_it_is_not_allowed(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode(9, body)


def test_the_elements_of_a_frame_are_bounded() -> None:
    count = ELEMENTS_WITHOUT_RECORDS_MAX + 200
    partitions = struct.pack(">ii", 0, -1) * count
    with pytest.raises(MalformedRequest, match="array elements"):
        decode(3, struct.pack(">hhiihi", -1, 1, 0, 1, 0, count) + partitions)


@every_version
def test_the_elements_decoded_at_once_are_bounded(version: int) -> None:
    for count, is_at_once in ((ELEMENTS_AT_ONCE_MAX - 1, True), (ELEMENTS_AT_ONCE_MAX, False)):
        topic_id = bytes(16) if version >= TOPIC_IDS_SINCE else None
        topic = ProduceTopic(None if topic_id else "t", topic_id, [ProducePartition(index, None) for index in range(count)])
        body = memoryview(encode_produce_request(version, ProduceRequest(None, 1, 5, [topic])))
        header = RequestHeader(0, version, 1, None, 0)
        if is_at_once:
            assert decode_produce_request(header, body).topics == [topic]
        else:
            with pytest.raises(TooLongForOneTurn):
                decode_produce_request(header, body)
        assert decode_in_slices(version, body).topics == [topic]


def test_a_frame_of_any_size_has_a_limit_of_elements() -> None:
    assert elements_max(6_100) == ELEMENTS_WITHOUT_RECORDS_MAX + 100
    assert elements_max(100 << 20) == ELEMENTS_MAX


@every_version
def test_a_response_in_slices_is_the_same(version: int) -> None:
    results = [ProduceResult(index, ErrorCode.NONE, index) for index in range(300)]
    failed = ProduceResult(7, ErrorCode.INVALID_RECORD, error_message="no")
    name, topic_id = (None, b"0123456789abcdef") if version >= TOPIC_IDS_SINCE else ("t", None)
    topics = [ProduceTopicResult(name, topic_id, part) for part in (results, [], [failed], results[:1])]
    pieces = run_to_end(encode_produce_response_in_slices(version, topics, 3, ()))
    assert len(pieces) > 1
    assert b"".join(pieces) == encode_produce_response(version, topics, 3)


def test_counts_and_lengths_of_more_than_one_byte() -> None:
    partitions = [ProducePartition(index, memoryview(b"x" * index)) for index in range(300)]
    request = ProduceRequest("t" * 200, 1, 5, [ProduceTopic("n" * 249, None, partitions)] * 150)
    assert decode(9, encode_produce_request(9, request)) == request


def test_an_unknown_error_code_is_an_unknown_error() -> None:
    body = bytearray(encode_produce_response(3, [ProduceTopicResult("t", None, [ProduceResult(0, ErrorCode.NONE)])]))
    position = 4 + 3 + 4 + 4
    assert body[position : position + 2] == b"\0\0"
    body[position : position + 2] = b"\x7f\xff"
    assert decode_produce_response(3, memoryview(body), 0).topics[0].partitions[0].error is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("version", range(VERSIONS[0], VERSIONS[1] + 1))
@pytest.mark.parametrize("message", [None, "refused"])
def test_a_single_result_is_encoded_like_any_other(version: int, message: str | None) -> None:
    topic = ProduceTopicResult("orders", bytes(range(16)), [ProduceResult(7, ErrorCode.NONE, 5, 6, 4, message)])
    pieces = run_to_end(encode_produce_response_in_slices(version, [topic], 9, ()))
    assert encode_produce_response(version, [topic], 9) == b"".join(pieces)
