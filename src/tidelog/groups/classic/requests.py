"""The requests and responses of the classic protocol, all versions in one form, and the checks that need no group.

Every response begins with its error and has defaults for the rest, so an error alone is a complete response.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode

UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1

# (name, metadata) pairs, in the member's order of preference.
Protocols = tuple[tuple[str, bytes], ...]


class JoinRequest(NamedTuple):
    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member_id: bool
    """Version 4 and later: a dynamic member gets its id first, and joins with it."""
    supports_skipping_assignment: bool
    """Version 9 and later: a leader that has returned can be told that there is nothing to assign."""


class JoinedMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResponse(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncRequest(NamedTuple):
    group_id: str
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]
    """Assignments by member id; only the leader sends any."""


class SyncResponse(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    member_id: str
    group_instance_id: str | None


class LeaveResult(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


# The longest string that a record can hold; requests of newer versions have room for more.
STRING_BYTES_MAX = 2**15 - 1


def check_group_id(group_id: str) -> None:
    if not group_id or not fits_into_record(group_id):
        raise ApiError(ErrorCode.INVALID_GROUP_ID)


def check_join(request: JoinRequest, settings: Mapping[str, Any]) -> None:
    check_group_id(request.group_id)
    timeout_ms, low, high = (
        request.session_timeout_ms,
        settings["group.min.session.timeout.ms"],
        settings["group.max.session.timeout.ms"],
    )
    if not low <= timeout_ms <= high:
        raise ApiError(
            ErrorCode.INVALID_SESSION_TIMEOUT, f"{timeout_ms} ms is outside of the broker's bounds, {low} to {high} ms"
        )
    names = [request.protocol_type, request.group_instance_id or "", *(name for name, _ in request.protocols)]
    if not all(map(fits_into_record, names)):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"a name is longer than {STRING_BYTES_MAX} bytes")


def fits_into_record(text: str) -> bool:
    return len(text) <= STRING_BYTES_MAX // 4 or len(text.encode()) <= STRING_BYTES_MAX
