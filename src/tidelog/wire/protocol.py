"""Request and response headers, and the first flexible version of each API.

A request starts with api key, api version and correlation id; header v1 adds the client id, v2 (flexible versions of the API,
KIP-482) tagged fields. A response starts with the correlation id; header v1 (flexible versions) adds tagged fields. Two
exceptions, both so that a client and a broker who do not know each other's versions can talk: the client id never has the
compact form, and the ApiVersions response always has header v0.

``ApiKey`` is the one table of APIs. A request whose key is not in it cannot be parsed beyond the correlation id, because the
version of its header is unknown, so the connection must be closed. Handling versions that are too new is up to the broker.
"""

import struct
from enum import IntEnum
from typing import NamedTuple, Self

from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import NO_TAGGED_FIELDS, Reader, write_nullable_string

# This is above every version, for APIs that have no flexible version.
NEVER = 1 << 15


class ApiKey(IntEnum):
    """Kafka's APIs: the key, and the first flexible version, which selects the headers."""

    flexible_since: int

    def __new__(cls, key: int, flexible_since: int = NEVER) -> Self:
        member = int.__new__(cls, key)
        member._value_ = key
        member.flexible_since = flexible_since
        return member

    PRODUCE = 0, 9
    FETCH = 1, 12
    LIST_OFFSETS = 2, 6
    METADATA = 3, 9
    OFFSET_COMMIT = 8, 8
    OFFSET_FETCH = 9, 6
    FIND_COORDINATOR = 10, 3
    JOIN_GROUP = 11, 6
    HEARTBEAT = 12, 4
    LEAVE_GROUP = 13, 4
    SYNC_GROUP = 14, 4
    DESCRIBE_GROUPS = 15, 5
    LIST_GROUPS = 16, 3
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18, 3
    CREATE_TOPICS = 19, 5
    DELETE_TOPICS = 20, 4
    DELETE_RECORDS = 21, 2
    INIT_PRODUCER_ID = 22, 2
    OFFSET_FOR_LEADER_EPOCH = 23, 4
    ADD_PARTITIONS_TO_TXN = 24, 3
    ADD_OFFSETS_TO_TXN = 25, 3
    END_TXN = 26, 3
    WRITE_TXN_MARKERS = 27, 1
    TXN_OFFSET_COMMIT = 28, 3
    DESCRIBE_ACLS = 29, 2
    CREATE_ACLS = 30, 2
    DELETE_ACLS = 31, 2
    DESCRIBE_CONFIGS = 32, 4
    ALTER_CONFIGS = 33, 2
    ALTER_REPLICA_LOG_DIRS = 34, 2
    DESCRIBE_LOG_DIRS = 35, 2
    SASL_AUTHENTICATE = 36, 2
    CREATE_PARTITIONS = 37, 2
    CREATE_DELEGATION_TOKEN = 38, 2
    RENEW_DELEGATION_TOKEN = 39, 2
    EXPIRE_DELEGATION_TOKEN = 40, 2
    DESCRIBE_DELEGATION_TOKEN = 41, 2
    DELETE_GROUPS = 42, 2
    ELECT_LEADERS = 43, 2
    INCREMENTAL_ALTER_CONFIGS = 44, 1
    ALTER_PARTITION_REASSIGNMENTS = 45, 0
    LIST_PARTITION_REASSIGNMENTS = 46, 0
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48, 1
    ALTER_CLIENT_QUOTAS = 49, 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, 0
    VOTE = 52, 0
    BEGIN_QUORUM_EPOCH = 53, 1
    END_QUORUM_EPOCH = 54, 1
    DESCRIBE_QUORUM = 55, 0
    ALTER_PARTITION = 56, 0
    UPDATE_FEATURES = 57, 0
    ENVELOPE = 58, 0
    FETCH_SNAPSHOT = 59, 0
    DESCRIBE_CLUSTER = 60, 0
    DESCRIBE_PRODUCERS = 61, 0
    BROKER_REGISTRATION = 62, 0
    BROKER_HEARTBEAT = 63, 0
    UNREGISTER_BROKER = 64, 0
    DESCRIBE_TRANSACTIONS = 65, 0
    LIST_TRANSACTIONS = 66, 0
    ALLOCATE_PRODUCER_IDS = 67, 0
    CONSUMER_GROUP_HEARTBEAT = 68, 0
    CONSUMER_GROUP_DESCRIBE = 69, 0
    CONTROLLER_REGISTRATION = 70, 0
    GET_TELEMETRY_SUBSCRIPTIONS = 71, 0
    PUSH_TELEMETRY = 72, 0
    ASSIGN_REPLICAS_TO_DIRS = 73, 0
    LIST_CONFIG_RESOURCES = 74, 0
    DESCRIBE_TOPIC_PARTITIONS = 75, 0
    SHARE_GROUP_HEARTBEAT = 76, 0
    SHARE_GROUP_DESCRIBE = 77, 0
    SHARE_FETCH = 78, 0
    SHARE_ACKNOWLEDGE = 79, 0
    ADD_RAFT_VOTER = 80, 0
    REMOVE_RAFT_VOTER = 81, 0
    UPDATE_RAFT_VOTER = 82, 0
    INITIALIZE_SHARE_GROUP_STATE = 83, 0
    READ_SHARE_GROUP_STATE = 84, 0
    WRITE_SHARE_GROUP_STATE = 85, 0
    DELETE_SHARE_GROUP_STATE = 86, 0
    READ_SHARE_GROUP_STATE_SUMMARY = 87, 0
    STREAMS_GROUP_HEARTBEAT = 88, 0
    STREAMS_GROUP_DESCRIBE = 89, 0
    DESCRIBE_SHARE_GROUP_OFFSETS = 90, 0
    ALTER_SHARE_GROUP_OFFSETS = 91, 0
    DELETE_SHARE_GROUP_OFFSETS = 92, 0


# Keyed by plain integers, because every request looks here.
FLEXIBLE_SINCE: dict[int, int] = {int(api): api.flexible_since for api in ApiKey}
_API_VERSIONS = int(ApiKey.API_VERSIONS)

_REQUEST_PREFIX = struct.Struct(">hhih")
_unpack_request_prefix = _REQUEST_PREFIX.unpack_from
_pack_correlation_id = struct.Struct(">i").pack
_pack_api_and_correlation_id = struct.Struct(">hhi").pack
# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and every request makes one.
_new_tuple = tuple.__new__


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    # The position of the body in the frame.
    body_position: int


def is_flexible(api_key: int, api_version: int) -> bool:
    return api_version >= FLEXIBLE_SINCE[api_key]


def parse_request_header(frame: memoryview) -> RequestHeader:
    try:
        api_key, api_version, correlation_id, client_id_length = _unpack_request_prefix(frame)
    except struct.error as error:
        raise MalformedRequest(f"a request of {len(frame)} bytes is shorter than its header") from error
    flexible_since = FLEXIBLE_SINCE.get(api_key)
    if flexible_since is None:
        raise MalformedRequest(f"unknown api key {api_key}")
    position = _REQUEST_PREFIX.size
    client_id = None
    if client_id_length >= 0:
        client_id_position = position
        position += client_id_length
        if position > len(frame):
            raise MalformedRequest(f"a client id of {client_id_length} bytes in a request of {len(frame)} bytes")
        try:
            client_id = str(frame[client_id_position:position], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequest("the client id is not UTF-8") from error
    elif client_id_length != -1:
        raise MalformedRequest(f"a client id of {client_id_length} bytes")
    if api_version >= flexible_since:
        if position < len(frame) and not frame[position]:
            position += 1  # There are no tagged fields, as nearly always.
        else:
            reader = Reader(frame, position)
            reader.skip_tagged_fields()
            position = reader.position
    return _new_tuple(RequestHeader, (api_key, api_version, correlation_id, client_id, position))


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    if api_version >= FLEXIBLE_SINCE[api_key] and api_key != _API_VERSIONS:
        return _pack_correlation_id(correlation_id) + NO_TAGGED_FIELDS
    return _pack_correlation_id(correlation_id)


# The client's side.


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    header = _pack_api_and_correlation_id(api_key, api_version, correlation_id) + write_nullable_string(client_id)
    return header + NO_TAGGED_FIELDS if is_flexible(api_key, api_version) else header


def parse_response_header(api_key: int, api_version: int, frame: memoryview) -> tuple[int, int]:
    """Return the correlation id, and where the body starts."""
    reader = Reader(frame)
    correlation_id = reader.int32()
    if is_flexible(api_key, api_version) and api_key != _API_VERSIONS:
        reader.skip_tagged_fields()
    return correlation_id, reader.position
