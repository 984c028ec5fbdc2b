"""What can be wrong with a request before any group is looked at."""

from collections.abc import Mapping
from typing import Any

from tidelog.controller.errors import ApiError
from tidelog.groups.classic.requests import JoinRequest
from tidelog.wire.errors import ErrorCode

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
