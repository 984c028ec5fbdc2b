"""AlterReplicaLogDirs: moves partitions to another log directory. There is only one, and moving a partition there is a no-op."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

Codes = dict[str, dict[int, ErrorCode]]


def handle(context: RequestContext, request: DecodedMessage) -> None:
    directory, image = context.broker.directory, context.broker.image

    def code_of(path: str, topic: str, index: int) -> ErrorCode:
        if path != directory.path:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if (topic, index) in directory.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        # A log that does not exist yet will be created there too.
        known = image.topic(topic)
        return ErrorCode.NONE if known is not None and index in known.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # If a partition is listed under two directories, the last one counts, as in Kafka.
    codes: Codes = {}
    for directory_wanted in request.dirs:
        for topic in directory_wanted.topics:
            for index in topic.partitions:
                codes.setdefault(topic.name, {})[index] = code_of(directory_wanted.path, topic.name, index)
    context.reply(_response(codes))


def _response(codes: Codes) -> dict[str, Any]:
    results = [
        {
            "topic_name": topic,
            "partitions": [{"partition_index": index, "error_code": code} for index, code in partitions.items()],
        }
        for topic, partitions in codes.items()
    ]
    return {"results": results}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    codes: Codes = {}
    for directory_wanted in request.dirs:
        for topic in directory_wanted.topics:
            codes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, code))
    return _response(codes)


API = Api(key=ApiKey.ALTER_REPLICA_LOG_DIRS, name="AlterReplicaLogDirs", versions=(1, 2), handle=handle, failure=_failure)
