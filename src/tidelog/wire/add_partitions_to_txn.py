"""The codec of AddPartitionsToTxn as clients send it, written by hand: every transaction of version 1 begins with one.

Versions 0 to 3, of which 3 is flexible. Brokers send each other version 4 and later, which ``messages`` decodes.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.primitives import (
    ELEMENTS_AT_ONCE_MAX,
    compact_array_length_at,
    compact_string_at,
    count_elements,
    skip_tagged_fields_at,
    string_at,
    write_compact_length,
    write_compact_string,
    write_string,
)
from tidelog.wire.protocol import ApiKey, RequestHeader

CLIENT_VERSIONS = (0, 3)
FLEXIBLE_SINCE = ApiKey.ADD_PARTITIONS_TO_TXN.flexible_since

_unpack_int32 = struct.Struct(">i").unpack_from
_PRODUCER = struct.Struct(">qh")
_unpack_producer = _PRODUCER.unpack_from
_pack_int32 = struct.Struct(">i").pack
_pack_result = struct.Struct(">ih").pack
# The last byte says that there are no tagged fields.
_pack_flexible_result = struct.Struct(">ihx").pack


class AddPartitionsToTxnTopic(NamedTuple):
    name: str
    partitions: Sequence[int]


class AddPartitionsToTxnRequest(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    topics: list[AddPartitionsToTxnTopic]


TopicResult = tuple[str, Sequence[tuple[int, ErrorCode]]]
"""A topic's name, and each of its partitions with its code."""


def decode_add_partitions_to_txn_request(header: RequestHeader, frame: memoryview) -> AddPartitionsToTxnRequest:
    data = bytes(frame)
    decode = _decode_flexible if header.api_version >= FLEXIBLE_SINCE else _decode_legacy
    try:
        request, position = decode(data, header.body_position)
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"an AddPartitionsToTxn request of {len(data)} bytes ends before its last field") from error
    except UnicodeDecodeError as error:
        raise MalformedRequest("a string in an AddPartitionsToTxn request is not UTF-8") from error
    if position != len(data):
        raise MalformedRequest(f"the fields of an AddPartitionsToTxn request end at byte {position} of {len(data)}")
    return request


def _decode_legacy(data: bytes, position: int) -> tuple[AddPartitionsToTxnRequest, int]:
    transactional_id, position = string_at(data, position)
    producer_id, producer_epoch = _unpack_producer(data, position)
    position += _PRODUCER.size
    (topic_count,) = _unpack_int32(data, position)
    position += 4
    elements_left = count_elements(ELEMENTS_AT_ONCE_MAX, topic_count)
    topics = []
    for _ in range(topic_count):
        name, position = string_at(data, position)
        (count,) = _unpack_int32(data, position)
        position += 4
        elements_left = count_elements(elements_left, count)
        topics.append(_topic(name, struct.unpack_from(f">{count}i", data, position)))
        position += 4 * count
    return _request(transactional_id, producer_id, producer_epoch, topics), position


def _decode_flexible(data: bytes, position: int) -> tuple[AddPartitionsToTxnRequest, int]:
    transactional_id, position = compact_string_at(data, position)
    producer_id, producer_epoch = _unpack_producer(data, position)
    topic_count, position = compact_array_length_at(data, position + _PRODUCER.size)
    elements_left = count_elements(ELEMENTS_AT_ONCE_MAX, topic_count)
    topics = []
    for _ in range(topic_count):
        name, position = compact_string_at(data, position)
        count, position = compact_array_length_at(data, position)
        elements_left = count_elements(elements_left, count)
        topics.append(_topic(name, struct.unpack_from(f">{count}i", data, position)))
        position = _skip_tagged_fields(data, position + 4 * count)
    return _request(transactional_id, producer_id, producer_epoch, topics), _skip_tagged_fields(data, position)


def _skip_tagged_fields(data: bytes, position: int) -> int:
    return position + 1 if not data[position] else skip_tagged_fields_at(memoryview(data), position)


def _topic(name: str | None, partitions: Sequence[int]) -> AddPartitionsToTxnTopic:
    if name is None:
        raise MalformedRequest("a topic name is null")
    return AddPartitionsToTxnTopic(name, partitions)


def _request(
    transactional_id: str | None, producer_id: int, producer_epoch: int, topics: list[AddPartitionsToTxnTopic]
) -> AddPartitionsToTxnRequest:
    if transactional_id is None:
        raise MalformedRequest("the transactional id is null")
    return AddPartitionsToTxnRequest(transactional_id, producer_id, producer_epoch, topics)


def encode_add_partitions_to_txn_response(version: int, topics: Sequence[TopicResult], throttle_time_ms: int = 0) -> bytes:
    is_flexible = version >= FLEXIBLE_SINCE
    write_text = write_compact_string if is_flexible else write_string
    write_count = write_compact_length if is_flexible else _pack_int32
    pack_result = _pack_flexible_result if is_flexible else _pack_result
    parts = [_pack_int32(throttle_time_ms), write_count(len(topics))]
    for name, results in topics:
        parts += (write_text(name), write_count(len(results)))
        for partition, error in results:
            parts.append(pack_result(partition, error))
        if is_flexible:
            parts.append(b"\0")
    if is_flexible:
        parts.append(b"\0")
    return b"".join(parts)
