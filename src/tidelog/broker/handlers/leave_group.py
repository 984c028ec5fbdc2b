"""LeaveGroup: members leave a classic group. From version 3 on a request may have several members, each with its own error."""

from collections.abc import Sequence
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.groups.classic.requests import LeaveResult, LeavingMember, check_group_id
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

BATCHED_SINCE = 3


def handle(context: RequestContext, request: DecodedMessage) -> None:
    check_group_id(request.group_id)
    is_batched = context.header.api_version >= BATCHED_SINCE
    if is_batched:
        members = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]
    else:
        members = [LeavingMember(request.member_id, None)]

    def done(results: Sequence[LeaveResult], error: Exception | None) -> None:
        if error is not None:
            context.fail(error)
        elif is_batched:
            context.reply_later(lambda: {"error_code": ErrorCode.NONE, "members": [_member(result) for result in results]})
        else:
            context.reply_later(lambda: {"error_code": results[0].error, "members": ()})

    context.broker.coordinators.groups.write(
        request.group_id, lambda machine: machine.classic.leave(request.group_id, members), done
    )


def _member(result: LeaveResult) -> dict[str, Any]:
    return {"member_id": result.member_id, "group_instance_id": result.group_instance_id, "error_code": result.error}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 -- only the code is in it
    return {"error_code": code, "members": ()}


API = Api(key=ApiKey.LEAVE_GROUP, name="LeaveGroup", versions=(0, 5), handle=handle, failure=_failure)
