"""What handlers and clients call: whole frames, golden bytes, and Kafka's oddities."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.kio_messages import api_keys, bytes_with_unknown_tags, chance_message, kio_bytes, message_classes
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import decode_request, decode_response, encode_request, encode_response
from tidelog.wire.primitives import ELEMENTS_MAX
from tidelog.wire.protocol import ApiKey, RequestHeader, parse_request_header, request_header
from tidelog.wire.schema import Direction


class TestRequests:
    # Written by hand from the protocol's definition.
    METADATA_1 = b"\0\x03\0\x01\0\0\0\x05\0\x01c" + b"\0\0\0\x02\0\x01a\0\x01b"
    METADATA_12 = b"\0\x03\0\x0c\0\0\0\x05\0\x01c\0" + b"\x02" + bytes(16) + b"\x02a\0" + b"\x01\0\0"

    def test_before_flexible_versions(self) -> None:
        frame = memoryview(self.METADATA_1)
        request = decode_request(parse_request_header(frame), frame)
        assert [topic.name for topic in request.topics] == ["a", "b"]

    def test_in_flexible_versions(self) -> None:
        frame = memoryview(self.METADATA_12)
        request = decode_request(parse_request_header(frame), frame)
        assert [(topic.topic_id, topic.name) for topic in request.topics] == [(bytes(16), "a")]
        assert request.allow_auto_topic_creation is True

    def test_a_writable_frame(self) -> None:
        frame = memoryview(bytearray(self.METADATA_1))
        assert len(decode_request(parse_request_header(frame), frame).topics) == 2

    def test_encoding(self) -> None:
        body = encode_request(ApiKey.METADATA, 12, {"topics": [{"name": "a"}]})
        assert request_header(ApiKey.METADATA, 12, 5, "c") + body == self.METADATA_12

    def test_trailing_bytes_are_ignored(self) -> None:
        frame = memoryview(self.METADATA_12 + b"more")
        assert len(decode_request(parse_request_header(frame), frame).topics) == 1

    @pytest.mark.parametrize(("api_key", "version"), [(4, 1), (3, 14), (3, -1), (0, 2)])
    def test_a_version_that_has_no_definition(self, api_key: int, version: int) -> None:
        with pytest.raises(MalformedRequest, match=f"api key {api_key} has no version {version}"):
            decode_request(RequestHeader(api_key, version, 1, None, 0), memoryview(bytes(50)))

    def test_a_stranger_may_not_send_so_many_elements(self) -> None:
        body = encode_request(ApiKey.METADATA, 9, {"topics": [{}] * (ELEMENTS_MAX + 1)})
        with pytest.raises(MalformedRequest, match="too many array elements"):
            decode_request(RequestHeader(ApiKey.METADATA, 9, 1, None, 0), memoryview(body))

    def test_unknown_tagged_fields_in_header_and_body(self) -> None:
        header = b"\0\x03\0\x0c\0\0\0\x05\0\x01c" + b"\x01\x07\x02hi"
        body = b"\x02" + bytes(16) + b"\x02a" + b"\x01\x07\x02hi" + b"\x01\0" + b"\x02\x07\x02hi\x08\x00"
        frame = memoryview(header + body)
        assert decode_request(parse_request_header(frame), frame).topics[0].name == "a"


class TestApiVersions:
    def test_the_answer_to_a_version_that_we_lack(self) -> None:
        """KIP-511: a body of version 0, with error 35, that names ApiVersions alone."""
        fields = {
            "error_code": ErrorCode.UNSUPPORTED_VERSION,
            "api_keys": [{"api_key": ApiKey.API_VERSIONS, "min_version": 0, "max_version": 4}],
            "throttle_time_ms": 0,
        }
        assert encode_response(ApiKey.API_VERSIONS, 0, fields) == b"\0\x23" + b"\0\0\0\x01" + b"\0\x12\0\0\0\x04"

    def test_version_3(self) -> None:
        fields = {"api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}], "throttle_time_ms": 1}
        body = encode_response(ApiKey.API_VERSIONS, 3, fields)
        assert body == b"\0\0" + b"\x02" + b"\0\x12\0\0\0\x04\0" + b"\0\0\0\x01" + b"\0"
        response = decode_response(ApiKey.API_VERSIONS, 3, memoryview(body))
        assert [vars(api) for api in response.api_keys] == [{"api_key": 18, "min_version": 0, "max_version": 4}]
        assert response.finalized_features_epoch == -1


class TestResponses:
    def test_at_a_position(self) -> None:
        body = encode_response(ApiKey.HEARTBEAT, 4, {"error_code": ErrorCode.UNKNOWN_MEMBER_ID})
        response = decode_response(ApiKey.HEARTBEAT, 4, memoryview(b"header" + body), 6)
        assert ErrorCode(response.error_code) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_client_may_read_large_ones(self) -> None:
        count = ELEMENTS_MAX + 1
        body = encode_response(ApiKey.METADATA, 12, {"topics": [{"partitions": [{"replica_nodes": range(count)}]}]})
        response = decode_response(ApiKey.METADATA, 12, memoryview(body))
        assert response.topics[0].partitions[0].replica_nodes == tuple(range(count))


@pytest.mark.parametrize("api_key", api_keys())
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_frames_from_strangers(api_key: int, data: st.DataObject) -> None:
    """Header and body as one, of every version: valid, with unknown tags, with bytes changed, cut, inserted."""
    version, message_class = data.draw(st.sampled_from(list(message_classes(api_key, Direction.REQUEST))))
    message = chance_message(message_class, random.Random(data.draw(st.integers(0, 20))))
    body = bytes_with_unknown_tags(message) if message_class.__flexible__ else kio_bytes(message)
    frame = bytearray(request_header(api_key, version, 1, "client") + body)
    decode_request(parse_request_header(memoryview(frame)), memoryview(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(frame)))
        length = data.draw(st.integers(0, 4))
        frame[start : start + length] = data.draw(st.binary(max_size=6) | st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 5]))
    try:
        decode_request(parse_request_header(memoryview(frame)), memoryview(frame))
    except MalformedRequest:
        return
