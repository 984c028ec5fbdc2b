"""No request takes memory out of proportion to its bytes.

Every API that clients may call is sent a request with as many array elements as a frame holds, at each level of nesting, and one
with strings as long as they may be. The broker refuses it or answers it, and its memory grows by what the broker accounts for, at
most. (A fetch once took 680 bytes for each entry of 16, of which nobody knew.)
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.peers import Peer, rss_bytes
from tests.faults.peers import request as framed
from tidelog.broker.api import DECODED_ELEMENT_BYTES
from tidelog.broker.handlers import TABLE
from tidelog.testing import Broker
from tidelog.wire.messages import Direction, encode_request, message_struct
from tidelog.wire.produce import RECORDS_BYTES_MIN, ProducePartition, ProduceRequest, ProduceTopic, encode_produce_request
from tidelog.wire.protocol import ApiKey
from tidelog.wire.schema import FieldType, Struct

TEXT = "x" * 32_000
# Something is always allocated.
GROWTH_BYTES_MIN = 12 << 20
BLOB = b"x" * (1 << 20)
# What makes a request be answered soon.
SOON: dict[int, dict[str, Any]] = {ApiKey.PRODUCE: {"acks": -1}}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


def array_paths(struct: Struct, version: int, is_flexible: bool, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in struct.fields:
        if field.is_array and field.is_in(version, is_flexible):
            yield (*path, field.name)
            if isinstance(field.type, Struct):
                yield from array_paths(field.type, version, is_flexible, (*path, field.name))


def with_elements(struct: Struct, path: tuple[str, ...], count: int) -> dict[str, Any]:
    """One element in each array on the way, and ``count`` in the last."""
    name, *rest = path
    field = next(field for field in struct.fields if field.name == name)
    if isinstance(field.type, Struct):
        element: Any = with_elements(field.type, tuple(rest), count) if rest else {}
    else:
        element = field.type.zero
    return {name: [element] if rest else [element] * count}


def with_long_texts(struct: Struct, version: int, is_flexible: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in struct.fields:
        if not field.is_in(version, is_flexible):
            continue
        if isinstance(field.type, Struct):
            value: Any = with_long_texts(field.type, version, is_flexible)
        else:
            value = long_value(field.type)
        if value:
            # Arrays within arrays would multiply.
            fields[field.name] = [value] * (1 if isinstance(field.type, Struct) else 50) if field.is_array else value
    return fields


def long_value(kind: FieldType) -> Any:
    return {"string": TEXT, "bytes": BLOB}.get(kind.name)


def largest_requests(api_key: int, version: int) -> Iterator[tuple[str, bytes]]:
    struct, _, is_flexible = message_struct(api_key, version, Direction.REQUEST)
    soon = SOON.get(api_key, {})
    limit = TABLE[api_key].elements_max
    for path in array_paths(struct, version, is_flexible):
        for count in (limit - len(path) + 1, limit + 1):
            yield f"{count} {'.'.join(path)}", encode_request(api_key, version, with_elements(struct, path, count) | soon)
    if api_key == ApiKey.PRODUCE:
        # The longest request without records is short. One that has them has as many partitions as any request.
        data = [ProducePartition(index, memoryview(bytes(RECORDS_BYTES_MIN))) for index in range(limit - 1)]
        topics = [ProduceTopic(None, bytes(16), data)]
        yield "partitions with records", encode_produce_request(version, ProduceRequest(None, -1, 1000, topics))
    yield "long texts", encode_request(api_key, version, with_long_texts(struct, version, is_flexible) | soon)


@pytest.mark.parametrize("api_key", sorted(TABLE), ids=lambda key: ApiKey(key).name)
def test_the_largest_requests_of_an_api(broker: Broker, api_key: int) -> None:
    version = TABLE[api_key].versions[1]
    for what, body in largest_requests(api_key, version):
        before = rss_bytes(broker)
        # From here on the kernel records a new peak.
        Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
        with Peer(broker) as peer:
            peer.send(framed(api_key, version, body))
            peer.read_response()
        growth = rss_bytes(broker, "VmHWM") - before
        api = TABLE[api_key]
        accounted = min(api.decoded_bytes_per_byte_max * len(body), api.elements_max * DECODED_ELEMENT_BYTES)
        # The frame, its copy, and what it becomes.
        allowed = GROWTH_BYTES_MIN + 2 * len(body) + accounted
        assert growth <= allowed, f"{what}: {growth} bytes for a request of {len(body)}"
