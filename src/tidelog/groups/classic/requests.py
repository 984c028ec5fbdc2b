"""What the classic protocol is asked, and what it answers: requests and responses of all versions in one form.

Every response begins with its error, and has defaults for the rest: an error alone is a whole response.
"""

from typing import NamedTuple

from tidelog.wire.errors import ErrorCode

UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1

# (name, metadata), in the order of the member's preference.
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
    """Version 9 and later: a leader that came back can be told that there is nothing to assign."""


class JoinedMember(NamedTuple):
    """As the leader sees it."""

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
    """By member id; only the leader sends any."""


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
