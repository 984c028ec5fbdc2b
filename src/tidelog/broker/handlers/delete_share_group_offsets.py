"""DeleteShareGroupOffsets: an empty share group forgets where it was in some topics."""

from collections.abc import Collection
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.share_deletion import delete_share_states
from tidelog.broker.share_requests import check_share_groups_enabled
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker = context.broker
    check_share_groups_enabled(broker)
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
    topics = {topic.topic_name: broker.image.topic(topic.topic_name) for topic in request.topics}

    def deleted(_: Collection[bytes], error: Exception | None) -> None:
        if error is not None:
            context.fail(error)
        else:
            context.reply_later(lambda: {"error_code": ErrorCode.NONE, "responses": [_result(name) for name in topics]})

    def _result(name: str) -> dict[str, Any]:
        topic = topics[name]
        code = ErrorCode.NONE if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        message = None if topic is not None else code.message
        topic_id = ZERO_UUID if topic is None else topic.topic_id
        return {"topic_name": name, "topic_id": topic_id, "error_code": code, "error_message": message}

    wanted = {topic.topic_id for topic in topics.values() if topic is not None}
    delete_share_states(broker, request.group_id, wanted, deleted)


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - for the whole request
    return {"error_code": code, "error_message": message, "responses": ()}


API = Api(
    key=ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    name="DeleteShareGroupOffsets",
    versions=(0, 0),
    handle=handle,
    failure=_failure,
)
