"""OffsetCommit: stores a group's positions, and answers when they are durable.

As in Kafka, the empty group id is a group like any other, here and in OffsetFetch: consumers that assign partitions themselves
may use it.
"""

from collections.abc import Sequence
from typing import Any

from tidelog.broker.api import Api, RequestContext, count_topics_and_partitions
from tidelog.controller.errors import ApiError
from tidelog.coordinator.errors import DecisionTooLarge
from tidelog.wire.errors import ErrorCode
from tidelog.wire.offset_commit import (
    VERSIONS,
    OffsetCommitRequest,
    OffsetCommitTopicResult,
    decode_offset_commit_request,
    encode_offset_commit_response,
)
from tidelog.wire.primitives import ELEMENTS_AT_ONCE_MAX
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: OffsetCommitRequest) -> None:
    version = context.header.api_version

    def done(results: Sequence[OffsetCommitTopicResult], error: Exception | None) -> None:
        if error is None:
            for topic in results:
                for _, code in topic.partitions:
                    if code is not ErrorCode.NONE:
                        context.count_error(code)
            context.reply_parts([encode_offset_commit_response(version, results, context.throttle_time_ms())])
        elif isinstance(error, DecisionTooLarge):
            context.fail(ApiError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, str(error)))
        else:
            context.fail(error)

    context.broker.coordinators.groups.write(request.group_id, lambda machine: machine.offsets.commit(request, version), done)


def _failure(request: OffsetCommitRequest, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [{"partition_index": each.partition, "error_code": code} for each in topic.partitions],
            }
            for topic in request.topics
        ]
    }


API = Api(
    key=ApiKey.OFFSET_COMMIT,
    name="OffsetCommit",
    versions=VERSIONS,
    handle=handle,
    failure=_failure,
    decode=decode_offset_commit_request,
    count_elements=count_topics_and_partitions,
    elements_max=ELEMENTS_AT_ONCE_MAX,
)
