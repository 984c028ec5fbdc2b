"""ShareGroupDescribe (KIP-932): returns the epochs and members of share groups, and what is assigned to each member."""

from collections.abc import Callable
from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext, ResultCollector
from tidelog.broker.response_fields import GROUP_OPERATIONS
from tidelog.broker.share_requests import check_share_groups_enabled
from tidelog.controller.errors import ApiError
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    check_share_groups_enabled(context.broker)
    # A group that is listed twice is described once.
    group_ids = list(dict.fromkeys(request.group_ids))
    operations = {"authorized_operations": GROUP_OPERATIONS} if request.include_authorized_operations else {}
    groups = context.broker.coordinators.groups
    pace = Pace()
    gather = ResultCollector(
        len(group_ids), lambda described: context.continue_in_slices(context.reply_in_slices({"groups": described}))
    )

    def finish(position: int, group_id: str) -> Callable[[Any, Exception | None], None]:
        def done(fields: Any, error: Exception | None) -> None:
            described = _refused(group_id, *context.code_of(error)) if error is not None else {**fields, **operations}
            gather.put(position, described)

        return done

    def query(group_id: str) -> Callable[[GroupCoordinator], dict[str, Any]]:
        return lambda machine: machine.share.describe(group_id)

    for position, group_id in enumerate(group_ids):
        if not group_id:
            finish(position, group_id)(None, ApiError(ErrorCode.INVALID_GROUP_ID))
        else:
            groups.read(group_id, query(group_id), finish(position, group_id))
        if pace.is_pause_due():
            yield


def _refused(group_id: str, code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    return {"groups": [_refused(group_id, code, message) for group_id in dict.fromkeys(request.group_ids)]}


API = Api(key=ApiKey.SHARE_GROUP_DESCRIBE, name="ShareGroupDescribe", versions=(1, 1), handle=handle, failure=_failure)
