"""JoinGroup: a member joins a classic group. The answer is sent when all members have joined or the rebalance times out."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.groups.classic.requests import JoinedMember, JoinRequest, JoinResponse, check_join
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

REBALANCE_TIMEOUT_SINCE = 1
MEMBER_ID_REQUIRED_SINCE = 4
NULLABLE_PROTOCOL_NAME_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9


def handle(context: RequestContext, request: DecodedMessage) -> None:
    join = _join_request(context, request)
    version = context.header.api_version

    def done(response: JoinResponse | None, error: Exception | None) -> None:
        if context.is_answered:
            return  # A decision that fails answers all waiting members first, and then this request.
        answer = response if error is None else JoinResponse(context.code_of(error)[0], request.member_id)
        if answer is not None:
            context.reply_later(lambda: _fields(answer, version))

    try:
        check_join(join, context.broker.config.values)
    except ApiError as error:
        done(None, error)
        return
    context.broker.coordinators.groups.write(join.group_id, lambda machine: machine.classic.join(join, done), done)


def _join_request(context: RequestContext, request: DecodedMessage) -> JoinRequest:
    version = context.header.api_version
    has_rebalance_timeout = version >= REBALANCE_TIMEOUT_SINCE
    return JoinRequest(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        context.header.client_id or "",
        f"/{context.session.client_host}",
        request.session_timeout_ms,
        request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms,
        request.protocol_type,
        tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        requires_known_member_id=version >= MEMBER_ID_REQUIRED_SINCE,
        supports_skipping_assignment=version >= SKIP_ASSIGNMENT_SINCE,
    )


def _fields(response: JoinResponse, version: int) -> dict[str, Any]:
    no_name = None if version >= NULLABLE_PROTOCOL_NAME_SINCE else ""
    return {
        "error_code": response.error,
        "generation_id": response.generation,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol_name or no_name,
        "leader": response.leader,
        "skip_assignment": response.skip_assignment,
        "member_id": response.member_id,
        "members": [_member(member) for member in response.members],
    }


def _member(member: JoinedMember) -> dict[str, Any]:
    return {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "metadata": member.metadata}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 -- the response has no message
    # This is for unexpected errors only. An empty name is valid in every version; older ones do not allow null.
    return _fields(JoinResponse(code, request.member_id), version=0)


API = Api(key=ApiKey.JOIN_GROUP, name="JoinGroup", versions=(0, 9), handle=handle, failure=_failure, waits_for_others=True)
