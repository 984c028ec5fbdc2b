"""SyncGroup: a member of a classic group gets its assignment once the leader has sent it and it is durable."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.groups.classic.requests import SyncRequest, SyncResponse, check_group_id
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

PROTOCOL_SINCE = 5


def handle(context: RequestContext, request: DecodedMessage) -> None:
    is_mandatory = context.header.api_version >= PROTOCOL_SINCE
    if is_mandatory and (request.protocol_type is None or request.protocol_name is None):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    check_group_id(request.group_id)
    sync = SyncRequest(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        request.protocol_type,
        request.protocol_name,
        {assignment.member_id: assignment.assignment for assignment in request.assignments},
    )

    def done(response: SyncResponse | None, error: Exception | None) -> None:
        if context.is_answered:
            return  # A decision that fails answers all waiting members first, and then this request.
        if error is not None:
            context.fail(error)
        elif response is not None:
            context.reply_later(lambda: _fields(response))

    context.broker.coordinators.groups.write(sync.group_id, lambda machine: machine.classic.sync(sync, done), done)


def _fields(response: SyncResponse) -> dict[str, Any]:
    return {
        "error_code": response.error,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol_name,
        "assignment": response.assignment,
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 -- only the code is in it
    return _fields(SyncResponse(code))


API = Api(key=ApiKey.SYNC_GROUP, name="SyncGroup", versions=(0, 5), handle=handle, failure=_failure, waits_for_others=True)
