"""DescribeTopicPartitions: returns topics and their partitions in the order of names, one page at a time.

The cursor names the first partition of the next page. A topic that is gone by then is skipped; the pages before it are not
repeated. Topics that were asked for by name and do not exist have no partitions, and their errors take no room on a page.
"""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.response_fields import TOPIC_OPERATIONS, partition_fields
from tidelog.controller.errors import ApiError
from tidelog.log.names import topic_name_problem
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.topics import TopicImage
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    image = context.broker.image
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"a cursor at partition {cursor.partition_index}")
    limit = min(request.response_partition_limit, context.broker.config.values["max.request.partition.size.limit"])
    room = max(limit, 1)
    topics: list[dict[str, Any]] = []
    next_cursor: dict[str, Any] | None = None
    for name in _names(image, request):
        topic = image.topic(name)
        if topic is None:
            if request.topics:
                topics.append({"error_code": _unknown(name), "name": name})
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        indexes = sorted(index for index in topic.partitions if index >= first)
        if room == 0 and indexes:
            next_cursor = {"topic_name": name, "partition_index": indexes[0]}
            break
        topics.append(_topic_fields(image, topic, indexes[:room]))
        if len(indexes) > room:
            next_cursor = {"topic_name": name, "partition_index": indexes[room]}
            break
        room -= len(indexes)
    context.reply({"topics": topics, "next_cursor": next_cursor})


def _names(image: ClusterImage, request: DecodedMessage) -> list[str]:
    names = {topic.name for topic in request.topics} or {topic.name for topic in image.topics}
    start = request.cursor.topic_name if request.cursor is not None else ""
    return sorted(name for name in names if name >= start)


def _unknown(name: str) -> ErrorCode:
    is_bad = topic_name_problem(name) is not None
    return ErrorCode.INVALID_TOPIC_EXCEPTION if is_bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topic_fields(image: ClusterImage, topic: TopicImage, indexes: list[int]) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [
            {
                **partition_fields(image, index, topic.partitions[index]),
                "eligible_leader_replicas": topic.partitions[index].eligible_leader_replicas,
                "last_known_elr": topic.partitions[index].last_known_elr,
            }
            for index in indexes
        ],
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"topics": [{"error_code": code, "name": topic.name} for topic in request.topics]}


API = Api(key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, name="DescribeTopicPartitions", versions=(0, 0), handle=handle, failure=_failure)
