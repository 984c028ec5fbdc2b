"""ConsumerGroupHeartbeat: the request, its checks, and the response. Error messages are Kafka's."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.classic.requests import STRING_BYTES_MAX, fits_into_record
from tidelog.groups.consumer.group import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from tidelog.groups.consumer.rebalance import OwnedPartitions
from tidelog.wire.errors import ErrorCode

# From this version on the client generates the member id; before, the coordinator does so for a client that has none.
CLIENT_MAKES_MEMBER_ID = 1
UNCHANGED_MS = -1


class ConsumerHeartbeatRequest(NamedTuple):
    """None, or -1 for a time-out, means unchanged since the last heartbeat."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    subscribed_topic_names: Sequence[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: OwnedPartitions | None = None
    client_id: str = ""
    client_host: str = ""
    version: int = 1

    @property
    def is_full(self) -> bool:
        """Whether the request has all fields: a member sends them when it joins, and after an error, because it may not know its
        last state."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms != UNCHANGED_MS
            and (self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None)
            and self.owned is not None
        )


class ConsumerHeartbeatResponse(NamedTuple):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """None means unchanged."""


def check_request(request: ConsumerHeartbeatRequest, assignors: Collection[str]) -> None:
    epoch = request.member_epoch
    if request.version >= CLIENT_MAKES_MEMBER_ID or epoch > 0 or epoch == LEAVE_EPOCH:
        _check_not_blank(request.member_id, "MemberId can't be empty.")
    _check_not_blank(request.group_id, "GroupId can't be empty.")
    _check_not_blank(request.instance_id, "InstanceId can't be empty.")
    _check_not_blank(request.rack_id, "RackId can't be empty.")
    for text in (request.group_id, request.member_id, request.subscribed_topic_regex or ""):
        if not fits_into_record(text):
            raise _invalid(f"a name is longer than {STRING_BYTES_MAX} bytes")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == UNCHANGED_MS:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        message = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}."
        raise ApiError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)


def _check_not_blank(text: str | None, message: str) -> None:
    if text is not None and not text.strip():
        raise _invalid(message)


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
