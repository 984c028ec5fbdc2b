"""ShareAcknowledge (KIP-932): settles records that a member has, or renews their locks, without fetching others."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.response_fields import HINTED_ERRORS, current_leader, leader_endpoints
from tidelog.broker.share_requests import (
    AcknowledgeErrors,
    acknowledgements_of,
    check_member,
    check_share_groups_enabled,
    settle,
)
from tidelog.broker.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSessionKey
from tidelog.controller.errors import ApiError
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    broker = context.broker
    check_share_groups_enabled(broker)
    check_member(request.group_id, request.member_id)
    key = ShareSessionKey(request.group_id, request.member_id)
    epoch = request.share_session_epoch
    if epoch == INITIAL_EPOCH:
        raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "A session begins with ShareFetch.")
    sessions = broker.share_sessions
    session = sessions.find(key, context.session) if epoch == FINAL_EPOCH else sessions.advance(key, epoch, context.session)

    def settled(errors: AcknowledgeErrors) -> None:
        if not context.session.is_closed:
            context.reply_later(lambda: _response(context, request, errors))

    yield from settle(context, key.group_id, key.member_id, acknowledgements_of(request), settled)
    if epoch == FINAL_EPOCH:
        sessions.close(session)


def _response(context: RequestContext, request: DecodedMessage, errors: AcknowledgeErrors) -> dict[str, Any]:
    image = context.broker.image
    leaders: set[int] = set()
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            code, message = errors.get((topic.topic_id, index), (ErrorCode.NONE, None))
            fields: dict[str, Any] = {"partition_index": index, "error_code": code, "error_message": message}
            if code in HINTED_ERRORS:
                leader = current_leader(image, None, topic.topic_id, index)
                if leader is not None:
                    leaders.add(leader[0])
                    fields["current_leader"] = {"leader_id": leader[0], "leader_epoch": leader[1]}
            partitions.append(fields)
        topics.append({"topic_id": topic.topic_id, "partitions": partitions})
    endpoints = leader_endpoints(image, leaders, context.session.listener.name) if leaders else ()
    return {
        "error_code": ErrorCode.NONE,
        "acquisition_lock_timeout_ms": context.broker.share_sessions.share_partitions.settings.lock_duration_ms(request.group_id),
        "responses": topics,
        "node_endpoints": [each._asdict() for each in endpoints],
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - for the whole request
    return {"error_code": code, "error_message": message, "responses": (), "node_endpoints": ()}


API = Api(key=ApiKey.SHARE_ACKNOWLEDGE, name="ShareAcknowledge", versions=(1, 2), handle=handle, failure=_failure)
