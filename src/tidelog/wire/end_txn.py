"""The codec of EndTxn, written by hand: every transaction sends one.

Versions 0 to 5: flexible from 3, the producer's next id and epoch in the response from 5.
"""

import struct
from typing import NamedTuple

from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.primitives import compact_string_at, skip_tagged_fields_at, string_at
from tidelog.wire.protocol import ApiKey, RequestHeader

VERSIONS = (0, 5)
FLEXIBLE_SINCE = ApiKey.END_TXN.flexible_since
PRODUCERS_SINCE = 5

_PRODUCER_AND_OUTCOME = struct.Struct(">qhB")
_unpack_producer_and_outcome = _PRODUCER_AND_OUTCOME.unpack_from
_pack_error = struct.Struct(">ih").pack
# The last byte of these says that there are no tagged fields.
_pack_flexible_error = struct.Struct(">ihx").pack
_pack_error_and_producer = struct.Struct(">ihqhx").pack


class EndTxnRequest(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


def decode_end_txn_request(header: RequestHeader, frame: memoryview) -> EndTxnRequest:
    data = bytes(frame)
    is_flexible = header.api_version >= FLEXIBLE_SINCE
    try:
        transactional_id, position = (compact_string_at if is_flexible else string_at)(data, header.body_position)
        producer_id, producer_epoch, committed = _unpack_producer_and_outcome(data, position)
        position += _PRODUCER_AND_OUTCOME.size
        if is_flexible:
            position = position + 1 if not data[position] else skip_tagged_fields_at(memoryview(data), position)
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"an EndTxn request of {len(data)} bytes ends before its last field") from error
    except UnicodeDecodeError as error:
        raise MalformedRequest("the transactional id of an EndTxn request is not UTF-8") from error
    if transactional_id is None:
        raise MalformedRequest("the transactional id is null")
    if position != len(data):
        raise MalformedRequest(f"the fields of an EndTxn request end at byte {position} of {len(data)}")
    return EndTxnRequest(transactional_id, producer_id, producer_epoch, committed != 0)


def encode_end_txn_response(
    version: int, error: ErrorCode, producer_id: int, producer_epoch: int, throttle_time_ms: int = 0
) -> bytes:
    if version >= PRODUCERS_SINCE:
        return _pack_error_and_producer(throttle_time_ms, error, producer_id, producer_epoch)
    if version >= FLEXIBLE_SINCE:
        return _pack_flexible_error(throttle_time_ms, error)
    return _pack_error(throttle_time_ms, error)
