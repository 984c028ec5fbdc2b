import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.codec_checks import check_mutations, check_truncations
from tests.wire.kio_oracle import kio_bytes, kio_error, kio_uuid, milliseconds
from tests.wire.message_strategies import (
    duration_ms,
    errors,
    int32,
    int64,
    leaders,
    node_endpoints,
    record_views,
    text,
    topic_ids,
)
from tidelog.ports.disk import Buffer
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.fetch import (
    CONSUMER_REPLICA_ID,
    FINAL_EPOCH,
    FLEXIBLE_SINCE,
    LEADER_EPOCHS_SINCE,
    LEADER_HINTS_SINCE,
    RACKS_SINCE,
    REPLICA_STATE_SINCE,
    SESSIONS_SINCE,
    TOPIC_IDS_SINCE,
    VERSIONS,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    FetchTopic,
    FetchTopicResult,
    ForgottenTopic,
    RecordsPart,
    decode_fetch_request,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from tidelog.wire.primitives import ELEMENTS_MAX, write_tagged_field
from tidelog.wire.protocol import RequestHeader

every_version = pytest.mark.parametrize("version", range(VERSIONS[0], VERSIONS[1] + 1))


@dataclass(frozen=True)
class Slice:
    """Stands for a slice of a file: the codec may only look at its length."""

    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)


def decode(version: int, body: bytes | memoryview) -> FetchRequest:
    return decode_fetch_request(RequestHeader(1, version, 1, None, 0), memoryview(body))


def identity(version: int) -> tuple[st.SearchStrategy[str | None], st.SearchStrategy[bytes | None]]:
    return (st.none(), topic_ids) if version >= TOPIC_IDS_SINCE else (text, st.none())


@st.composite
def requests(draw: st.DrawFn, version: int) -> FetchRequest:
    """Only what the version can say: the rest has its default."""
    partition = st.builds(
        FetchPartition,
        int32,
        int64,
        int32,
        int32 if version >= LEADER_EPOCHS_SINCE else st.just(-1),
        int32 if version >= FLEXIBLE_SINCE else st.just(-1),
        int64 if version >= 5 else st.just(-1),
    )
    has_sessions = version >= SESSIONS_SINCE
    forgotten = st.lists(st.builds(ForgottenTopic, *identity(version), st.lists(int32, max_size=3)), max_size=2)
    request = st.builds(
        FetchRequest,
        int32,
        duration_ms,
        int32,
        int32,
        st.sampled_from([0, 1]),
        int32 if has_sessions else st.just(0),
        int32 if has_sessions else st.just(FINAL_EPOCH),
        st.lists(st.builds(FetchTopic, *identity(version), st.lists(partition, max_size=3)), max_size=3),
        forgotten if has_sessions else st.builds(list),
        text if version >= RACKS_SINCE else st.just(""),
        int64 if version >= REPLICA_STATE_SINCE else st.just(-1),
    )
    drawn: FetchRequest = draw(request)
    # A consumer has no epoch.
    return drawn if drawn.replica_id != CONSUMER_REPLICA_ID else drawn._replace(replica_epoch=-1)


@st.composite
def responses(draw: st.DrawFn, version: int) -> FetchResponse:
    is_flexible = version >= FLEXIBLE_SINCE
    partition = st.builds(
        FetchedPartition,
        int32,
        errors,
        int64,
        int64,
        int64 if version >= 5 else st.just(-1),
        st.none() | st.lists(st.tuples(int64, int64), max_size=2),
        record_views,
        leaders if is_flexible else st.none(),
        st.none() | st.tuples(st.integers(0, 9), int64) if is_flexible else st.none(),
        int32 if version >= RACKS_SINCE else st.just(-1),
    )
    response = st.builds(
        FetchResponse,
        st.lists(st.builds(FetchedTopic, *identity(version), st.lists(partition, max_size=3)), max_size=3),
        errors if version >= SESSIONS_SINCE else st.just(ErrorCode.NONE),
        int32 if version >= SESSIONS_SINCE else st.just(0),
        duration_ms,
        node_endpoints if version >= LEADER_HINTS_SINCE else st.builds(list),
    )
    return draw(response)


def request_by_kio(version: int, request: FetchRequest) -> bytes:
    def topic_fields(topic: FetchTopic | ForgottenTopic, partitions: list[Any]) -> dict[str, Any]:
        return {"topic": topic.name, "topic_id": kio_uuid(topic.topic_id), "partitions": partitions}

    fields = {
        "replica_id": request.replica_id,
        "replica_state": {"replica_id": request.replica_id, "replica_epoch": request.replica_epoch},
        "max_wait": milliseconds(request.wait_ms_max),
        "min_bytes": request.bytes_min,
        "max_bytes": request.bytes_max,
        "isolation_level": request.isolation_level,
        "session_id": request.session_id,
        "session_epoch": request.session_epoch,
        "topics": [topic_fields(topic, [partition_fields(p) for p in topic.partitions]) for topic in request.topics],
        "forgotten_topics_data": [topic_fields(topic, list(topic.partitions)) for topic in request.forgotten],
        "rack_id": request.rack_id,
    }
    return kio_bytes("fetch", "request", version, fields)


def partition_fields(partition: FetchPartition) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "current_leader_epoch": partition.current_leader_epoch,
        "fetch_offset": partition.fetch_offset,
        "last_fetched_epoch": partition.last_fetched_epoch,
        "log_start_offset": partition.log_start_offset,
        "partition_max_bytes": partition.bytes_max,
    }


def response_by_kio(version: int, response: FetchResponse) -> bytes:
    topics = [
        {
            "topic": topic.name,
            "topic_id": kio_uuid(topic.topic_id),
            "partitions": [fetched_fields(partition) for partition in topic.partitions],
        }
        for topic in response.topics
    ]
    fields = {
        "throttle_time": milliseconds(response.throttle_time_ms),
        "error_code": kio_error(response.error),
        "session_id": response.session_id,
        "responses": topics,
        "node_endpoints": [node._asdict() for node in response.node_endpoints],
    }
    return kio_bytes("fetch", "response", version, fields)


def fetched_fields(partition: FetchedPartition) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "partition_index": partition.partition,
        "error_code": kio_error(partition.error),
        "high_watermark": partition.high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        "log_start_offset": partition.log_start_offset,
        "aborted_transactions": None,
        "preferred_read_replica": partition.preferred_read_replica,
        "records": bytes(partition.records or b""),
    }
    if partition.aborted is not None:
        fields["aborted_transactions"] = [{"producer_id": p, "first_offset": o} for p, o in partition.aborted]
    if partition.current_leader is not None:
        fields["current_leader"] = {"leader_id": partition.current_leader[0], "leader_epoch": partition.current_leader[1]}
    if partition.diverging_epoch is not None:
        fields["diverging_epoch"] = {"epoch": partition.diverging_epoch[0], "end_offset": partition.diverging_epoch[1]}
    return fields


def encode(version: int, response: FetchResponse) -> list[Buffer | RecordsPart]:
    topics = [
        FetchTopicResult(
            topic.name,
            topic.topic_id,
            [
                FetchResult(**{**partition._asdict(), "records": Slice(bytes(partition.records or b""))})
                for partition in topic.partitions
            ],
        )
        for topic in response.topics
    ]
    return encode_fetch_response(
        version,
        topics,
        error=response.error,
        session_id=response.session_id,
        throttle_time_ms=response.throttle_time_ms,
        node_endpoints=response.node_endpoints,
    )


def joined(parts: list[Buffer | RecordsPart]) -> bytes:
    return b"".join(part.data if isinstance(part, Slice) else part for part in parts if isinstance(part, Slice | bytes))


@every_version
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_requests_as_kio_writes_them(version: int, data: st.DataObject) -> None:
    request = data.draw(requests(version))
    body = request_by_kio(version, request)
    assert decode(version, body) == request
    assert encode_fetch_request(version, request) == body


@every_version
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_responses_as_kio_writes_them(version: int, data: st.DataObject) -> None:
    response = data.draw(responses(version))
    body = joined(encode(version, response))
    assert body == response_by_kio(version, response)
    assert decode_fetch_response(version, memoryview(body), 0) == response


@every_version
@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=8)
def test_broken_requests_are_refused(version: int, data: st.DataObject, seed: int) -> None:
    body = encode_fetch_request(version, data.draw(requests(version)))
    check_truncations(lambda frame: decode(version, frame), body)
    check_mutations(lambda frame: decode(version, frame), body, seed)


@every_version
@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=8)
def test_broken_responses_are_refused(version: int, data: st.DataObject, seed: int) -> None:
    body = joined(encode(version, data.draw(responses(version))))
    if len(body) < 1000:
        check_truncations(lambda frame: decode_fetch_response(version, frame, 0), body)
    check_mutations(lambda frame: decode_fetch_response(version, frame, 0), body, seed)


@every_version
@given(body=st.binary(max_size=200))
@settings(deadline=None, max_examples=40)
def test_garbage_is_refused(version: int, body: bytes) -> None:
    for decoder in (decode, lambda version, frame: decode_fetch_response(version, memoryview(frame), 0)):
        with suppress(MalformedRequest):
            decoder(version, body)


@every_version
def test_records_pass_through_untouched(version: int) -> None:
    first, second, nothing = Slice(bytes(300)), Slice(b"second"), Slice(b"")
    results = [FetchResult(index, ErrorCode.NONE, records=part) for index, part in enumerate([first, nothing, None, second])]
    parts = encode_fetch_response(version, [FetchTopicResult("t", bytes(16), results)])
    kinds = [part if isinstance(part, Slice) else type(part) for part in parts]
    assert [kind for kind in kinds if kind is not bytes] == [first, second]
    # Bytes between two slices are one buffer; behind the last slice only flexible versions have any.
    assert kinds[:4] == [bytes, first, bytes, second]
    assert len(kinds) == (5 if version >= FLEXIBLE_SINCE else 4)
    fetched = decode_fetch_response(version, memoryview(joined(parts)), 0).topics[0].partitions
    assert [bytes(partition.records or b"") for partition in fetched] == [first.data, b"", b"", second.data]


@pytest.mark.parametrize("version", range(FLEXIBLE_SINCE, VERSIONS[1] + 1))
def test_unknown_tagged_fields_are_ignored(version: int) -> None:
    name, topic_id = (None, bytes(range(16))) if version >= TOPIC_IDS_SINCE else ("name", None)
    topics = [FetchTopic(name, topic_id, [FetchPartition(1, 2, 3333, 4, 5, 6)])]
    request = FetchRequest(CONSUMER_REPLICA_ID, 1, 2, 3, 0, 4, 5, topics, [ForgottenTopic(name, topic_id, [7])], "rack")
    plain = encode_fetch_request(version, request)
    section = b"\x02" + write_tagged_field(77, b"abc") + write_tagged_field(5000, bytes(300))
    # Partition and topic end with an empty section each before the forgotten topics, whose one ends before the rack.
    before = struct.pack(">i", 3333)
    assert plain.count(before + b"\0\0") == 1
    assert plain.endswith(b"\0\0\0\x07\0\x05rack\0")
    tagged = plain.replace(before + b"\0\0", before + section * 2)
    tagged = tagged.replace(b"\x07\0\x05rack\0", b"\x07" + section + b"\x05rack" + section)
    assert decode(version, tagged) == request


@pytest.mark.parametrize("version", range(REPLICA_STATE_SINCE, VERSIONS[1] + 1))
def test_a_replica_says_so_in_a_tagged_field(version: int) -> None:
    request = FetchRequest(5, 0, 0, 0, 0, 0, -1, [], [], "")
    decoded = decode(version, encode_fetch_request(version, request._replace(replica_epoch=9)))
    assert (decoded.replica_id, decoded.replica_epoch) == (5, 9 if version >= 15 else -1)
    cut = encode_fetch_request(version, request._replace(replica_id=-1))[:-1] + b"\1" + write_tagged_field(1, b"\0\0\5")
    with pytest.raises(MalformedRequest):
        decode(version, cut)


def test_the_replica_state_of_a_version_that_has_none_is_unknown_and_ignored() -> None:
    plain = encode_fetch_request(14, FetchRequest(-1, 0, 0, 0, 0, 0, -1, [], [], ""))
    tagged = plain[:-1] + b"\1" + write_tagged_field(1, struct.pack(">iqb", 5, 1, 0))
    assert decode(14, tagged).replica_id == -1


@pytest.mark.parametrize("offset_from_end", [2 + 4 + 4, 2 + 4, 2])
def test_null_where_it_is_not_allowed(offset_from_end: int) -> None:
    body = encode_fetch_request(11, FetchRequest(-1, 0, 0, 0, 0, 0, -1, [], [], ""))
    position = len(body) - offset_from_end
    size = 2 if offset_from_end == 2 else 4
    with pytest.raises(MalformedRequest):
        decode(11, body[:position] + b"\xff" * size + body[position + size :])


@pytest.mark.parametrize("position", [25, 26, 27])
def test_compact_null_where_it_is_not_allowed(position: int) -> None:
    body = bytearray(encode_fetch_request(12, FetchRequest(-1, 0, 0, 0, 0, 0, -1, [], [], "")))
    assert body[25:] == b"\1\1\1\0"
    body[position] = 0
    with pytest.raises(MalformedRequest):
        decode(12, bytes(body))


def test_the_elements_of_a_frame_are_bounded() -> None:
    count = ELEMENTS_MAX
    head = struct.pack(">iiiibiiih", -1, 0, 0, 0, 0, 0, -1, 0, 0)[:-2]
    with pytest.raises(MalformedRequest, match="array elements"):
        decode(7, head + struct.pack(">ihi", 1, 0, count) + bytes(4 * count))
