import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.wire.errors import MalformedRequest
from tidelog.wire.messages import Direction, message_struct, versions
from tidelog.wire.primitives import write_tagged_field
from tidelog.wire.protocol import (
    FLEXIBLE_SINCE,
    NEVER,
    ApiKey,
    RequestHeader,
    is_flexible,
    parse_request_header,
    parse_response_header,
    request_header,
    response_header,
)


def raw_frame(parts: tuple[ApiKey, int, bytes]) -> bytes:
    """Of a known API, so that what follows is looked at."""
    api, version, rest = parts
    return struct.pack(">hhi", api, version, 1) + rest


class TestTable:
    def test_it_has_kios_apis(self) -> None:
        from kio.schema.index import api_key_map

        assert {int(api): api.name.lower() for api in ApiKey} == dict(api_key_map)

    def test_flexible_versions(self) -> None:
        for api in ApiKey:
            for direction in Direction:
                for version in versions(api, direction):
                    assert is_flexible(api, version) == message_struct(api, version, direction)[2], (api, version, direction)

    def test_apis_without_flexible_versions(self) -> None:
        assert [api for api in ApiKey if api.flexible_since == NEVER] == [ApiKey.SASL_HANDSHAKE, ApiKey.OFFSET_DELETE]
        assert FLEXIBLE_SINCE[3] == 9


class TestRequestHeader:
    def test_version_1(self) -> None:
        frame = b"\0\x03\0\x08\0\0\0\x2a\0\x03app" + b"body"
        assert parse_request_header(memoryview(frame)) == RequestHeader(3, 8, 42, "app", 13)

    def test_version_2_and_the_client_id_is_not_compact(self) -> None:
        frame = b"\0\x03\0\x09\0\0\0\x2a\0\x03app\0" + b"body"
        assert parse_request_header(memoryview(frame)) == RequestHeader(3, 9, 42, "app", 14)

    def test_no_client_id(self) -> None:
        assert parse_request_header(memoryview(b"\0\x03\0\x08\0\0\0\x2a\xff\xff")) == RequestHeader(3, 8, 42, None, 10)

    def test_tagged_fields_are_skipped(self) -> None:
        frame = b"\0\x03\0\x09\0\0\0\x2a\0\0" + b"\2" + write_tagged_field(0, b"x") + write_tagged_field(999, b"y" * 200) + b"!"
        header = parse_request_header(memoryview(frame))
        assert frame[header.body_position :] == b"!"

    def test_a_version_that_nobody_has(self) -> None:
        """ApiVersions must be answered whatever version a client asks for."""
        frame = request_header(ApiKey.API_VERSIONS, 99, 1, "new")
        assert parse_request_header(memoryview(frame)) == RequestHeader(18, 99, 1, "new", len(frame))
        assert parse_request_header(memoryview(b"\0\x12\xff\xff\0\0\0\x01\0\0")).api_version == -1

    @pytest.mark.parametrize(
        ("frame", "reason"),
        [
            (b"", "shorter than its header"),
            (b"\0\x03\0\x08\0\0\0\x2a\0", "shorter than its header"),
            (b"\0\x04\0\x01\0\0\0\x2a\0\0", "unknown api key 4"),
            (b"\xff\xff\0\x01\0\0\0\x2a\0\0", "unknown api key -1"),
            (b"\0\x03\0\x08\0\0\0\x2a\0\x03ap", "client id of 3 bytes"),
            (b"\0\x03\0\x08\0\0\0\x2a\xff\xfeapp", "client id of -2 bytes"),
            (b"\0\x03\0\x08\0\0\0\x2a\0\x02\xff\xff", "not UTF-8"),
            (b"\0\x03\0\x09\0\0\0\x2a\0\0", "1 bytes wanted"),
            (b"\0\x03\0\x09\0\0\0\x2a\0\0\xff\xff\xff\xff\x0f", "4294967295 tagged fields at byte 15"),
        ],
    )
    def test_malformed(self, frame: bytes, reason: str) -> None:
        with pytest.raises(MalformedRequest, match=reason):
            parse_request_header(memoryview(frame))

    @given(
        st.sampled_from(ApiKey),
        st.integers(0, 20),
        st.integers(-(2**31), 2**31 - 1),
        st.none() | st.text(max_size=50),
        st.binary(),
    )
    def test_round_trip(self, api: ApiKey, version: int, correlation_id: int, client_id: str | None, body: bytes) -> None:
        frame = request_header(api, version, correlation_id, client_id)
        expected = RequestHeader(api, version, correlation_id, client_id, len(frame))
        assert parse_request_header(memoryview(frame + body)) == expected

    @given(
        st.binary(max_size=100) | st.tuples(st.sampled_from(ApiKey), st.integers(0, 12), st.binary(max_size=100)).map(raw_frame)
    )
    def test_any_bytes(self, frame: bytes) -> None:
        try:
            header = parse_request_header(memoryview(frame))
        except MalformedRequest:
            return
        assert header.body_position <= len(frame)


class TestResponseHeader:
    def test_before_flexible_versions(self) -> None:
        assert response_header(3, 8, 42) == b"\0\0\0\x2a"

    def test_in_flexible_versions(self) -> None:
        assert response_header(3, 9, 42) == b"\0\0\0\x2a\0"

    def test_of_api_versions_it_is_always_version_0(self) -> None:
        for version in range(5):
            assert response_header(18, version, 42) == b"\0\0\0\x2a", version
            assert parse_response_header(18, version, memoryview(b"\0\0\0\x2a\0\0")) == (42, 4), version

    def test_parsing_skips_tagged_fields(self) -> None:
        assert parse_response_header(3, 9, memoryview(b"\0\0\0\x2a\1\5\1x!")) == (42, 8)
        assert parse_response_header(3, 8, memoryview(b"\0\0\0\x2a!")) == (42, 4)
