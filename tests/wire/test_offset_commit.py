import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.codec_checks import check_mutations, check_truncations
from tests.wire.kio_oracle import kio_bytes, kio_error, kio_uuid, milliseconds
from tests.wire.message_strategies import duration_ms, errors, int32, int64, nullable_text, text, topic_ids
from tidelog.wire import offset_commit
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import Direction, versions
from tidelog.wire.offset_commit import (
    CACHED_NAME_LENGTH_MAX,
    FLEXIBLE_SINCE,
    INSTANCE_IDS_SINCE,
    LEADER_EPOCHS_SINCE,
    RETENTION_TIME_UNTIL,
    THROTTLE_TIME_SINCE,
    TOPIC_IDS_SINCE,
    VERSIONS,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetCommitTopicResult,
    decode_offset_commit_request,
    encode_offset_commit_response,
)
from tidelog.wire.primitives import ELEMENTS_AT_ONCE_MAX, write_tagged_field
from tidelog.wire.protocol import ApiKey, RequestHeader

ALL_VERSIONS = range(VERSIONS[0], VERSIONS[1] + 1)
every_version = pytest.mark.parametrize("version", ALL_VERSIONS)
# Beyond the longest length of one byte too.
texts = text | st.sampled_from([126, 127, 128, 300]).map(lambda length: "x" * length)


def decode(version: int, body: bytes | memoryview) -> OffsetCommitRequest:
    return decode_offset_commit_request(RequestHeader(8, version, 1, None, 0), memoryview(body))


@st.composite
def requests(draw: st.DrawFn, version: int) -> OffsetCommitRequest:
    """Only what the version can say: the rest has its default."""
    leader_epochs = int32 if version >= LEADER_EPOCHS_SINCE else st.just(-1)
    partitions = st.lists(st.builds(OffsetCommitPartition, int32, int64, leader_epochs, st.none() | texts), max_size=3)
    if version >= TOPIC_IDS_SINCE:
        topics = st.builds(OffsetCommitTopic, st.none(), topic_ids, partitions)
    else:
        topics = st.builds(OffsetCommitTopic, texts, st.none(), partitions)
    instance_ids = nullable_text if version >= INSTANCE_IDS_SINCE else st.none()
    retention_ms = duration_ms if version <= RETENTION_TIME_UNTIL else st.just(-1)
    return draw(st.builds(OffsetCommitRequest, texts, int32, texts, instance_ids, retention_ms, st.lists(topics, max_size=3)))


def request_by_kio(version: int, request: OffsetCommitRequest) -> bytes:
    def partition_fields(partition: OffsetCommitPartition) -> dict[str, Any]:
        return {
            "partition_index": partition.partition,
            "committed_offset": partition.offset,
            "committed_leader_epoch": partition.leader_epoch,
            "committed_metadata": partition.metadata,
        }

    topics = [
        {
            "name": topic.name,
            "topic_id": kio_uuid(topic.topic_id),
            "partitions": [partition_fields(partition) for partition in topic.partitions],
        }
        for topic in request.topics
    ]
    fields = {
        "group_id": request.group_id,
        "generation_id_or_member_epoch": request.generation_id_or_member_epoch,
        "member_id": request.member_id,
        "group_instance_id": request.group_instance_id,
        "retention_time": milliseconds(request.retention_time_ms),
        "topics": topics,
    }
    return kio_bytes("offset_commit", "request", version, fields)


def response_by_kio(version: int, topics: list[OffsetCommitTopicResult], throttle_time_ms: int) -> bytes:
    fields = {
        "throttle_time": milliseconds(throttle_time_ms),
        "topics": [
            {
                "name": topic.name,
                "topic_id": kio_uuid(topic.topic_id),
                "partitions": [
                    {"partition_index": partition, "error_code": kio_error(error)} for partition, error in topic.partitions
                ],
            }
            for topic in topics
        ],
    }
    return kio_bytes("offset_commit", "response", version, fields)


def test_every_version_that_there_is() -> None:
    assert versions(ApiKey.OFFSET_COMMIT, Direction.REQUEST)[-1] == VERSIONS[1]


@every_version
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_requests_as_kio_writes_them(version: int, data: st.DataObject) -> None:
    request = data.draw(requests(version))
    assert decode(version, request_by_kio(version, request)) == request


@every_version
@given(data=st.data(), throttle_time_ms=duration_ms)
@settings(deadline=None, max_examples=40)
def test_responses_as_kio_writes_them(version: int, data: st.DataObject, throttle_time_ms: int) -> None:
    names = st.none() if version >= TOPIC_IDS_SINCE else texts
    ids = topic_ids if version >= TOPIC_IDS_SINCE else st.none()
    results = st.lists(st.tuples(int32, errors), max_size=3)
    topics = data.draw(st.lists(st.builds(OffsetCommitTopicResult, names, ids, results), max_size=3))
    if version < THROTTLE_TIME_SINCE:
        throttle_time_ms = 0
    body = encode_offset_commit_response(version, topics, throttle_time_ms)
    assert body == response_by_kio(version, topics, throttle_time_ms)


@every_version
@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=10)
def test_broken_requests_are_refused(version: int, data: st.DataObject, seed: int) -> None:
    body = request_by_kio(version, data.draw(requests(version)))
    check_truncations(lambda frame: decode(version, frame), body)
    check_mutations(lambda frame: decode(version, frame), body, seed)


@every_version
@given(body=st.binary(max_size=200))
@settings(deadline=None, max_examples=50)
def test_garbage_is_refused(version: int, body: bytes) -> None:
    with suppress(MalformedRequest):
        decode(version, body)


def test_the_body_starts_where_the_header_says() -> None:
    request = OffsetCommitRequest("g", 1, "m", None, -1, [])
    frame = memoryview(b"header" + request_by_kio(8, request))
    assert decode_offset_commit_request(RequestHeader(8, 8, 1, None, 6), frame) == request


@pytest.mark.parametrize("version", range(FLEXIBLE_SINCE, VERSIONS[1] + 1))
def test_unknown_tagged_fields_are_ignored(version: int) -> None:
    topic = OffsetCommitTopic("t", None, [OffsetCommitPartition(1, 2, 3, "x")])
    if version >= TOPIC_IDS_SINCE:
        topic = topic._replace(name=None, topic_id=bytes(range(16)))
    request = OffsetCommitRequest("g", 1, "m", None, -1, [topic])
    plain = request_by_kio(version, request)
    # The last three bytes are the empty sections of the partition, the topic and the request.
    assert plain.endswith(b"x\0\0\0")
    section = b"\x02" + write_tagged_field(77, b"abc") + write_tagged_field(5000, bytes(300))
    assert decode(version, plain[:-3] + section * 3) == request


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">hihhi", -1, 1, 0, -1, 0),
        struct.pack(">hihhi", 0, 1, -1, -1, 0),
        struct.pack(">hihhi", 0, 1, 0, -2, 0),
        struct.pack(">hihhi", 0, 1, 0, -1, -1),
        struct.pack(">hihhihi", 0, 1, 0, -1, 1, -1, 0),
        struct.pack(">hihhihi", 0, 1, 0, -1, 1, 0, -1),
        struct.pack(">hihhihiiqih", 0, 1, 0, -1, 1, 0, 1, 0, 0, 0, -2),
    ],
    ids=["group id", "member id", "instance id", "topics", "name", "partitions", "metadata"],
)
def test_negative_lengths_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode(7, body)


@pytest.mark.parametrize(
    "body",
    [
        b"\0\0\0\0\1\1\0\1\0",
        b"\1\0\0\0\1\0\0\1\0",
        b"\1\0\0\0\1\1\0\0\0",
        b"\1\0\0\0\1\1\0\2\0\1\0\0",
        b"\1\0\0\0\1\1\0\2\1\0\0\0",
    ],
    ids=["group id", "member id", "topics", "name", "partitions"],
)
def test_null_where_it_is_not_allowed(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode(8, body)


def test_the_elements_of_a_frame_are_bounded() -> None:
    count = ELEMENTS_AT_ONCE_MAX + 1
    head = struct.pack(">hihhihi", 0, 1, 0, -1, 1, 0, count)
    with pytest.raises(MalformedRequest, match="array elements"):
        decode(7, head + struct.pack(">iqih", 0, 0, 0, -1) * count)


def test_counts_of_more_than_one_byte() -> None:
    partitions = [OffsetCommitPartition(index, index, 0, "") for index in range(300)]
    request = OffsetCommitRequest(
        "g", 1, "m", None, -1, [OffsetCommitTopic("t", None, partitions)] * 30 + [OffsetCommitTopic("u", None, [])] * 120
    )
    assert decode(8, request_by_kio(8, request)) == request
    results = [OffsetCommitTopicResult("t", None, [(index, ErrorCode.NONE) for index in range(300)])] * 150
    assert encode_offset_commit_response(8, results) == response_by_kio(8, results, 0)


@every_version
def test_the_answer_to_one_commit_is_kept_for_the_next(version: int) -> None:
    by_name: list[tuple[str | None, bytes | None]] = [("t", None), ("other", None)]
    by_id: list[tuple[str | None, bytes | None]] = [(None, bytes(range(16))), (None, bytes(range(1, 17)))]
    for _ in range(2):
        for topic in by_id if version >= TOPIC_IDS_SINCE else by_name:
            for partition, error, throttle_time_ms in (
                (1, ErrorCode.NONE, 0),
                (2, ErrorCode.NONE, 0),
                (1, ErrorCode.STALE_MEMBER_EPOCH, 0),
                (1, ErrorCode.NONE, 7 if version >= THROTTLE_TIME_SINCE else 0),
            ):
                results = [OffsetCommitTopicResult(*topic, [(partition, error)])]
                expected = response_by_kio(version, results, throttle_time_ms)
                assert encode_offset_commit_response(version, results, throttle_time_ms) == expected


def test_answers_about_names_that_no_topic_has_are_not_kept() -> None:
    kept = offset_commit._encode_success.cache_info().currsize
    name = "x" * (CACHED_NAME_LENGTH_MAX + 1)
    results = [OffsetCommitTopicResult(name, None, [(0, ErrorCode.NONE)])]
    assert encode_offset_commit_response(9, results) == response_by_kio(9, results, 0)
    assert offset_commit._encode_success.cache_info().currsize == kept
