"""DeleteTopics: deletes topics by name or, from version 6 on, by id. When the client gets the answer, nobody can read the records
any more; soon afterwards they leave the disk.
"""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.controller.topics import TopicDeletion, delete_topics
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey

TOPIC_IDS_SINCE = 6
# Before this version clients do not know TOPIC_DELETION_DISABLED.
DISABLED_CODE_SINCE = 3
# From this version on clients know THROTTLING_QUOTA_EXCEEDED.
STRICT_QUOTA_SINCE = 5


def handle(context: RequestContext, request: DecodedMessage) -> None:
    version = context.header.api_version
    if not context.broker.config.values["delete.topic.enable"]:
        is_known = version >= DISABLED_CODE_SINCE
        code = ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST
        raise ApiError(code, "delete.topic.enable is false")
    names, topic_ids, refused = list(request.topic_names or ()), [], []
    for topic in request.topics or ():
        if (topic.name is None) == (topic.topic_id == ZERO_UUID):
            message = "a topic is named by its name or by its id, not by both and not by none"
            refused.append(TopicDeletion(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, message))
        elif topic.name is not None:
            names.append(topic.name)
        else:
            topic_ids.append(topic.topic_id)
    ask_quota = context.broker.throttling.mutations(context, STRICT_QUOTA_SINCE)
    context.decide(
        lambda image: delete_topics(image, names, topic_ids, ask_quota),
        lambda deleted: {"responses": [_result(topic) for topic in [*refused, *deleted]]},
        request.timeout_ms,
    )


def _result(topic: TopicDeletion) -> dict[str, Any]:
    return {"name": topic.name, "topic_id": topic.topic_id, "error_code": topic.error, "error_message": topic.message}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    topics = [(name, ZERO_UUID) for name in request.topic_names or ()]
    topics += [(topic.name, topic.topic_id) for topic in request.topics or ()]
    return {
        "responses": [
            {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message} for name, topic_id in topics
        ]
    }


API = Api(
    key=ApiKey.DELETE_TOPICS,
    name="DeleteTopics",
    versions=(1, 6),
    handle=handle,
    failure=_failure,
    listeners=ALL_LISTENERS,
    is_forwarded=True,
)
