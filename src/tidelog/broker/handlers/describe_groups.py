"""DescribeGroups: returns state, protocol and members of classic groups. Each group has its own error; a group of another type
counts as not found.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext, ResultCollector
from tidelog.broker.response_fields import GROUP_OPERATIONS, OPERATIONS_NOT_ASKED_FOR
from tidelog.coordinator.machine import OnDone
from tidelog.groups.coordinator import DescribedGroup, DescribedMember, GroupCoordinator
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

# Before this version a group that does not exist is reported as Dead, without an error.
NOT_FOUND_SINCE = 6


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    def reply(groups: Sequence[dict[str, Any]]) -> None:
        context.continue_in_slices(context.reply_in_slices({"groups": groups}))

    gather = ResultCollector(len(request.groups), reply)
    operations = GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_NOT_ASKED_FOR

    def described(index: int, group_id: str) -> OnDone:
        def done(group: DescribedGroup | None, error: Exception | None) -> None:
            if group is None:
                code, message = context.code_of(error or RuntimeError("neither a group nor an error"))
                gather.put(index, _failed(group_id, code, message))
            else:
                gather.put(index, _fields(group, context.header.api_version, operations))

        return done

    pace = Pace()
    for index, group_id in enumerate(request.groups):
        context.broker.coordinators.groups.read(group_id, _query(group_id), described(index, group_id))
        if pace.is_pause_due():
            yield


def _query(group_id: str) -> Callable[[GroupCoordinator], DescribedGroup]:
    return lambda machine: machine.describe_group(group_id)


def _fields(group: DescribedGroup, version: int, operations: int) -> dict[str, Any]:
    is_missing = group.missing is not None and version >= NOT_FOUND_SINCE
    return {
        "error_code": ErrorCode.GROUP_ID_NOT_FOUND if is_missing else ErrorCode.NONE,
        "error_message": group.missing if is_missing else None,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [_member(member) for member in group.members],
        "authorized_operations": OPERATIONS_NOT_ASKED_FOR if is_missing else operations,
    }


def _member(member: DescribedMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata,
        "member_assignment": member.assignment,
    }


def _failed(group_id: str, code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
        "authorized_operations": OPERATIONS_NOT_ASKED_FOR,
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    return {"groups": [_failed(group_id, code, message) for group_id in request.groups]}


API = Api(key=ApiKey.DESCRIBE_GROUPS, name="DescribeGroups", versions=(0, 6), handle=handle, failure=_failure)
