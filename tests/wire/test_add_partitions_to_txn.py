import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.codec_checks import check_mutations, check_truncations
from tests.wire.kio_oracle import kio_bytes, kio_error, milliseconds
from tests.wire.message_strategies import duration_ms, errors, int16, int32, int64, text
from tidelog.wire.add_partitions_to_txn import (
    CLIENT_VERSIONS,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    TopicResult,
    decode_add_partitions_to_txn_request,
    encode_add_partitions_to_txn_response,
)
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.primitives import ELEMENTS_MAX, write_tagged_field
from tidelog.wire.protocol import ApiKey, RequestHeader

every_version = pytest.mark.parametrize("version", range(CLIENT_VERSIONS[0], CLIENT_VERSIONS[1] + 1))
# Beyond the longest length of one byte too.
texts = text | st.sampled_from([126, 127, 128, 300]).map(lambda length: "x" * length)
topics = st.builds(AddPartitionsToTxnTopic, texts, st.lists(int32, max_size=4).map(tuple))
requests = st.builds(AddPartitionsToTxnRequest, texts, int64, int16, st.lists(topics, max_size=3))


def decode(version: int, body: bytes | memoryview) -> AddPartitionsToTxnRequest:
    header = RequestHeader(ApiKey.ADD_PARTITIONS_TO_TXN, version, 1, None, 0)
    return decode_add_partitions_to_txn_request(header, memoryview(body))


def request_by_kio(version: int, request: AddPartitionsToTxnRequest) -> bytes:
    fields: dict[str, Any] = {
        "v3_and_below_transactional_id": request.transactional_id,
        "v3_and_below_producer_id": request.producer_id,
        "v3_and_below_producer_epoch": request.producer_epoch,
        "v3_and_below_topics": [{"name": topic.name, "partitions": list(topic.partitions)} for topic in request.topics],
    }
    return kio_bytes("add_partitions_to_txn", "request", version, fields)


def response_by_kio(version: int, results: list[TopicResult], throttle_time_ms: int = 0) -> bytes:
    fields = {
        "throttle_time": milliseconds(throttle_time_ms),
        "results_by_topic_v3_and_below": [
            {
                "name": name,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": kio_error(code)} for index, code in partitions
                ],
            }
            for name, partitions in results
        ],
    }
    return kio_bytes("add_partitions_to_txn", "response", version, fields)


@every_version
@given(request=requests)
@settings(deadline=None, max_examples=40)
def test_requests_as_kio_writes_them(version: int, request: AddPartitionsToTxnRequest) -> None:
    assert decode(version, request_by_kio(version, request)) == request


@every_version
@given(
    results=st.lists(st.tuples(texts, st.lists(st.tuples(int32, errors), max_size=3)), max_size=3),
    throttle_time_ms=duration_ms,
)
@settings(deadline=None, max_examples=40)
def test_responses_as_kio_writes_them(version: int, results: list[TopicResult], throttle_time_ms: int) -> None:
    body = encode_add_partitions_to_txn_response(version, results, throttle_time_ms)
    assert body == response_by_kio(version, results, throttle_time_ms)


@every_version
@given(request=requests, seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=10)
def test_broken_requests_are_refused(version: int, request: AddPartitionsToTxnRequest, seed: int) -> None:
    body = request_by_kio(version, request)
    check_truncations(lambda frame: decode(version, frame), body)
    check_mutations(lambda frame: decode(version, frame), body, seed)


@every_version
@given(body=st.binary(max_size=200))
@settings(deadline=None, max_examples=50)
def test_garbage_is_refused(version: int, body: bytes) -> None:
    with suppress(MalformedRequest):
        decode(version, body)


def test_the_body_starts_where_the_header_says() -> None:
    request = AddPartitionsToTxnRequest("id", 4000, 3, [AddPartitionsToTxnTopic("t", (0, 7))])
    header = RequestHeader(ApiKey.ADD_PARTITIONS_TO_TXN, 3, 1, None, 6)
    frame = memoryview(b"header" + request_by_kio(3, request))
    assert decode_add_partitions_to_txn_request(header, frame) == request


def test_unknown_tagged_fields_are_ignored() -> None:
    request = AddPartitionsToTxnRequest("id", 4000, 3, [AddPartitionsToTxnTopic("t", (1,))])
    plain = request_by_kio(3, request)
    # The last two bytes are the empty sections of the topic and the request.
    assert plain.endswith(b"\1\0\0")
    section = b"\x02" + write_tagged_field(77, b"abc") + write_tagged_field(5000, bytes(300))
    assert decode(3, plain[:-2] + section * 2) == request


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (0, struct.pack(">hqhi", -1, 1, 0, 0)),
        (0, struct.pack(">hqhi", 0, 1, 0, -1)),
        (0, struct.pack(">hqhihi", 0, 1, 0, 1, -1, 0)),
        (0, struct.pack(">hqhihi", 0, 1, 0, 1, 0, -1)),
        (3, b"\0" + bytes(10) + b"\1\0"),
        (3, b"\1" + bytes(10) + b"\0\0"),
        (3, b"\1" + bytes(10) + b"\2\0\1\0\0"),
        (3, b"\1" + bytes(10) + b"\2\1\0\0\0"),
    ],
)
def test_null_where_it_is_not_allowed(version: int, body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode(version, body)


def test_the_elements_of_a_frame_are_bounded() -> None:
    count = ELEMENTS_MAX + 1
    with pytest.raises(MalformedRequest, match="array elements"):
        decode(0, struct.pack(">hqhihi", 0, 1, 0, 1, 0, count) + bytes(4 * count))


def test_counts_of_more_than_one_byte() -> None:
    topics = [AddPartitionsToTxnTopic("t", tuple(range(300)))] * 30 + [AddPartitionsToTxnTopic("u", ())] * 120
    request = AddPartitionsToTxnRequest("id", 1, 0, topics)
    assert decode(3, request_by_kio(3, request)) == request
    results: list[TopicResult] = [("t", [(index, ErrorCode.NONE) for index in range(300)])] * 150
    assert encode_add_partitions_to_txn_response(3, results) == response_by_kio(3, results)
