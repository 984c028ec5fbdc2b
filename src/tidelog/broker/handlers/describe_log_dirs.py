"""DescribeLogDirs: returns the size of each partition on disk. There is one data directory."""

from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext
from tidelog.log.partition_log import PartitionLog
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    directory = context.broker.directory
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    topics: dict[str, list[dict[str, Any]]] = {}
    pace = Pace()
    for (name, index), log in list(directory.logs.items()):
        # The metadata log belongs to the quorum and is not one of the broker's topics.
        if name != METADATA_TOPIC and (wanted is None or (name, index) in wanted):
            topics.setdefault(name, []).append(_partition_fields(index, log))
        if pace.is_pause_due():
            yield
    yield from context.reply_in_slices(
        {
            "error_code": ErrorCode.NONE,
            "results": [
                {
                    "error_code": ErrorCode.NONE,
                    "log_dir": directory.path,
                    "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
                    "total_bytes": directory.disk.total_bytes(directory.path),
                    "usable_bytes": directory.disk.free_bytes(directory.path),
                }
            ],
        }
    )


def _partition_fields(index: int, log: PartitionLog) -> dict[str, Any]:
    # A leader does not lag behind itself.
    return {"partition_index": index, "partition_size": log.size, "offset_lag": 0, "is_future_key": False}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


API = Api(key=ApiKey.DESCRIBE_LOG_DIRS, name="DescribeLogDirs", versions=(1, 5), handle=handle, failure=_failure)
