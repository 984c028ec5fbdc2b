"""ShareFetch's response, encoded by hand because its records leave straight from their files.

The records of a partition may be several slices of a file: whole batches, but only those with records that were acquired.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.ports.disk import Buffer
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import RecordsPart
from tidelog.wire.primitives import (
    NO_TAGGED_FIELDS,
    write_compact_length,
    write_compact_nullable_string,
    write_compact_string,
)
from tidelog.wire.produce import NodeEndpoint

_HEAD = struct.Struct(">ih")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_PARTITION = struct.Struct(">ih")
_LEADER = struct.Struct(">ii")
_ACQUIRED = struct.Struct(">qqh")
NO_LEADER = (-1, -1)


class ShareFetchResult(NamedTuple):
    """The result for one partition."""

    partition: int
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    acknowledge_error: ErrorCode = ErrorCode.NONE
    acknowledge_error_message: str | None = None
    current_leader: tuple[int, int] = NO_LEADER
    records: Sequence[RecordsPart] = ()
    acquired: Sequence[tuple[int, int, int]] = ()
    """(first offset, last offset, delivery count)."""


class ShareFetchResponse(NamedTuple):
    topics: Sequence[tuple[bytes, Sequence[ShareFetchResult]]] = ()
    """Topic ids with their partitions."""
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    lock_timeout_ms: int = 0
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def encode_share_fetch_response(response: ShareFetchResponse) -> list[Buffer | RecordsPart]:
    """Versions 1 and 2 are alike."""
    out: list[Buffer | RecordsPart] = []
    pending: list[Buffer] = [
        _HEAD.pack(response.throttle_time_ms, response.error),
        write_compact_nullable_string(response.error_message),
        _INT32.pack(response.lock_timeout_ms),
        write_compact_length(len(response.topics)),
    ]
    for topic_id, partitions in response.topics:
        pending += (topic_id, write_compact_length(len(partitions)))
        for result in partitions:
            pending += _partition_head(result)
            pending.append(write_compact_length(sum(part.length for part in result.records)))
            if result.records:
                out.append(b"".join(pending))
                out += result.records
                pending = []
            pending.append(write_compact_length(len(result.acquired)))
            for acquired in result.acquired:
                pending += (_ACQUIRED.pack(*acquired), NO_TAGGED_FIELDS)
            pending.append(NO_TAGGED_FIELDS)
        pending.append(NO_TAGGED_FIELDS)
    pending.append(write_compact_length(len(response.node_endpoints)))
    for node in response.node_endpoints:
        pending += (_INT32.pack(node.node_id), write_compact_string(node.host), _INT32.pack(node.port))
        pending += (write_compact_nullable_string(node.rack), NO_TAGGED_FIELDS)
    pending.append(NO_TAGGED_FIELDS)
    out.append(b"".join(pending))
    return out


def _partition_head(result: ShareFetchResult) -> tuple[bytes, ...]:
    """Everything before the length of the records."""
    return (
        _PARTITION.pack(result.partition, result.error),
        write_compact_nullable_string(result.error_message),
        _INT16.pack(result.acknowledge_error),
        write_compact_nullable_string(result.acknowledge_error_message),
        _LEADER.pack(*result.current_leader),
        NO_TAGGED_FIELDS,
    )
