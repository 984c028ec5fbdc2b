"""DeleteRecords: raises the log start of partitions, and answers once that is durable: deleted records must not come back."""

from functools import partial
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.timers import Timer
from tidelog.controller.errors import ApiError
from tidelog.log.partition_log import PartitionLog
from tidelog.records.topic_partition import TopicPartition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

TO_HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1
# The request's timeout is for other replicas. Some clients send 0 (librdkafka does). They are answered when the leader is done,
# which here includes the disk.
WAIT_MS_MIN = 1_000


class _Deletion:
    """One request: results by partition, and the partitions that are not durable yet."""

    def __init__(self, context: RequestContext, request: DecodedMessage) -> None:
        self._context = context
        self._request = request
        self._results: dict[TopicPartition, dict[str, Any]] = {}
        self._open: dict[TopicPartition, None] = {}
        self._timer: Timer | None = None

    def start(self) -> None:
        wanted = {(topic.name, part.partition_index): part.offset for topic in self._request.topics for part in topic.partitions}
        self._open = dict.fromkeys(wanted)
        for key, offset in wanted.items():
            self._delete(key, offset)
        if self._open:
            self._timer = self._context.broker.timers.schedule(max(self._request.timeout_ms, WAIT_MS_MIN), self._time_out)

    def _delete(self, key: TopicPartition, offset: int) -> None:
        name, index = key
        broker = self._context.broker
        try:
            partition = broker.partitions.find(name, None, index)
            if partition.is_internal:
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: its records cannot be deleted")
            log = partition.log
            if not log.settings.delete:
                raise ApiError(ErrorCode.POLICY_VIOLATION, f"cleanup.policy of {name} does not allow deleting")
            if offset == TO_HIGH_WATERMARK:
                offset = log.high_watermark
            if offset < 0:
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is below 0")
            broker.directory.delete_records(log, offset, partial(self._deleted, key, log))
        except Exception as error:
            self._finish(key, self._context.code_of(error)[0], NO_LOW_WATERMARK)

    def _deleted(self, key: TopicPartition, log: PartitionLog, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            self._finish(key, self._context.code_of(error)[0], NO_LOW_WATERMARK)
        else:
            self._finish(key, ErrorCode.NONE, log.log_start_offset)

    def _finish(self, key: TopicPartition, code: ErrorCode, low_watermark: int) -> None:
        if key not in self._open:
            return  # The sync ended after the request had timed out.
        del self._open[key]
        self._results[key] = {"partition_index": key[1], "error_code": code, "low_watermark": low_watermark}
        if not self._open:
            if self._timer is not None:
                self._timer.cancel()
            self._reply()

    def _time_out(self) -> None:
        for key in list(self._open):
            self._finish(key, ErrorCode.REQUEST_TIMED_OUT, NO_LOW_WATERMARK)

    def _reply(self) -> None:
        topics: dict[str, list[dict[str, Any]]] = {}
        for (name, _), result in self._results.items():
            topics.setdefault(name, []).append(result)
        self._context.reply({"topics": [{"name": name, "partitions": results} for name, results in topics.items()]})


def handle(context: RequestContext, request: DecodedMessage) -> None:
    if not any(topic.partitions for topic in request.topics):
        context.reply({"topics": [{"name": topic.name} for topic in request.topics]})
        return
    _Deletion(context, request).start()


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": wanted.partition_index, "error_code": code, "low_watermark": NO_LOW_WATERMARK}
                    for wanted in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


API = Api(key=ApiKey.DELETE_RECORDS, name="DeleteRecords", versions=(0, 2), handle=handle, failure=_failure)
