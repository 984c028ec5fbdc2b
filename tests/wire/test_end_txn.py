from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.codec_checks import check_mutations, check_truncations
from tests.wire.kio_oracle import kio_bytes, kio_error, milliseconds
from tests.wire.message_strategies import duration_ms, errors, int16, int64, text
from tidelog.wire.end_txn import (
    FLEXIBLE_SINCE,
    PRODUCERS_SINCE,
    VERSIONS,
    EndTxnRequest,
    decode_end_txn_request,
    encode_end_txn_response,
)
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import Direction, versions
from tidelog.wire.primitives import write_tagged_field
from tidelog.wire.protocol import ApiKey, RequestHeader

every_version = pytest.mark.parametrize("version", range(VERSIONS[0], VERSIONS[1] + 1))
requests = st.builds(EndTxnRequest, text, int64, int16, st.booleans())


def decode(version: int, body: bytes | memoryview) -> EndTxnRequest:
    return decode_end_txn_request(RequestHeader(ApiKey.END_TXN, version, 1, None, 0), memoryview(body))


def request_by_kio(version: int, request: EndTxnRequest) -> bytes:
    return kio_bytes("end_txn", "request", version, request._asdict())


def test_every_version_that_there_is() -> None:
    assert versions(ApiKey.END_TXN, Direction.REQUEST)[-1] == VERSIONS[1]


@every_version
@given(request=requests)
@settings(deadline=None, max_examples=40)
def test_requests_as_kio_writes_them(version: int, request: EndTxnRequest) -> None:
    assert decode(version, request_by_kio(version, request)) == request


@every_version
@given(error=errors, producer_id=int64, producer_epoch=int16, throttle_time_ms=duration_ms)
@settings(deadline=None, max_examples=40)
def test_responses_as_kio_writes_them(
    version: int, error: ErrorCode, producer_id: int, producer_epoch: int, throttle_time_ms: int
) -> None:
    fields = {
        "throttle_time": milliseconds(throttle_time_ms),
        "error_code": kio_error(error),
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
    }
    body = encode_end_txn_response(version, error, producer_id, producer_epoch, throttle_time_ms)
    assert body == kio_bytes("end_txn", "response", version, fields)


def test_only_the_last_version_says_who_the_producer_is_from_now_on() -> None:
    sizes = [len(encode_end_txn_response(version, ErrorCode.NONE, 1, 2)) for version in range(VERSIONS[1] + 1)]
    assert sizes == [6, 6, 6, 7, 7, 17]
    assert PRODUCERS_SINCE == 5


@every_version
@given(request=requests, seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=10)
def test_broken_requests_are_refused(version: int, request: EndTxnRequest, seed: int) -> None:
    body = request_by_kio(version, request)
    check_truncations(lambda frame: decode(version, frame), body)
    check_mutations(lambda frame: decode(version, frame), body, seed)


@every_version
@given(body=st.binary(max_size=100))
@settings(deadline=None, max_examples=50)
def test_garbage_is_refused(version: int, body: bytes) -> None:
    with suppress(MalformedRequest):
        decode(version, body)


def test_the_body_starts_where_the_header_says() -> None:
    request = EndTxnRequest("id", 4000, 3, True)
    frame = memoryview(b"header" + request_by_kio(5, request))
    assert decode_end_txn_request(RequestHeader(ApiKey.END_TXN, 5, 1, None, 6), frame) == request


@pytest.mark.parametrize("version", range(FLEXIBLE_SINCE, VERSIONS[1] + 1))
def test_unknown_tagged_fields_are_ignored(version: int) -> None:
    request = EndTxnRequest("id", 4000, 3, False)
    plain = request_by_kio(version, request)
    assert plain.endswith(b"\0")
    section = b"\x02" + write_tagged_field(77, b"abc") + write_tagged_field(5000, bytes(300))
    assert decode(version, plain[:-1] + section) == request


@pytest.mark.parametrize(("version", "null"), [(0, b"\xff\xff"), (3, b"\0")])
def test_a_transactional_id_is_never_null(version: int, null: bytes) -> None:
    with pytest.raises(MalformedRequest, match="null"):
        decode(version, null + bytes(11) + (b"\0" if version >= FLEXIBLE_SINCE else b""))
