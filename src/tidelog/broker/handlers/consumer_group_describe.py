"""ConsumerGroupDescribe (KIP-848): returns epochs, members, and the current and target assignment of each member."""

from collections.abc import Callable
from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext
from tidelog.broker.response_fields import GROUP_OPERATIONS
from tidelog.controller.errors import ApiError
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    # A group that is listed twice is described once.
    described: dict[str, dict[str, Any]] = {}
    group_ids = list(dict.fromkeys(request.group_ids))
    operations = {"authorized_operations": GROUP_OPERATIONS} if request.include_authorized_operations else {}
    coordinators = context.broker.coordinators.groups
    pace = Pace()

    def query(group_id: str) -> Callable[[GroupCoordinator], dict[str, Any]]:
        return lambda machine: machine.consumer.describe(group_id)

    def finish(group_id: str) -> Callable[[Any, Exception | None], None]:
        def done(fields: Any, error: Exception | None) -> None:
            described[group_id] = _refused(group_id, *context.code_of(error)) if error is not None else {**fields, **operations}
            if len(described) == len(group_ids):
                groups = [described[group_id] for group_id in group_ids]
                context.continue_in_slices(context.reply_in_slices({"groups": groups}))

        return done

    if not group_ids:
        context.reply({"groups": []})
    for group_id in group_ids:
        if not group_id:
            finish(group_id)(None, ApiError(ErrorCode.INVALID_GROUP_ID))
        else:
            coordinators.read(group_id, query(group_id), finish(group_id))
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


API = Api(key=ApiKey.CONSUMER_GROUP_DESCRIBE, name="ConsumerGroupDescribe", versions=(0, 1), handle=handle, failure=_failure)
