"""Heartbeat: a member of a classic group shows that it is alive, and learns whether it must join again."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.coordinator.errors import CoordinatorLoading
from tidelog.groups.classic.requests import check_group_id
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    check_group_id(request.group_id)

    def done(code: ErrorCode, error: Exception | None) -> None:
        if isinstance(error, CoordinatorLoading):
            # No session ends while the group is loading, so the member need not do anything.
            context.reply({"error_code": ErrorCode.NONE})
        elif error is not None:
            context.fail(error)
        else:
            context.reply({"error_code": code})

    context.broker.coordinators.groups.write(
        request.group_id,
        lambda machine: machine.classic.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        ),
        done,
    )


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 -- only the code is in it
    return {"error_code": code}


API = Api(key=ApiKey.HEARTBEAT, name="Heartbeat", versions=(0, 4), handle=handle, failure=_failure)
