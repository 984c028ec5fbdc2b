"""ListOffsets: returns where a partition begins or ends, and the first record at or after a time.

Negative timestamps stand for special questions, and each requires a certain version of the API. A consumer learns only about
records that it may read: an answer at or above the high watermark (for read_committed: the last stable offset) becomes -1, which
means that there is no such record.

A question about a time reads the records of a batch, which may be a quarter of a million, so such answers are made in slices.
"""

from typing import Any, NamedTuple

from tidelog.broker.api import Api, Pace, RequestContext, free_in_slices
from tidelog.controller.errors import ApiError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import TimestampedOffset, offset_for_timestamp, offset_of_max_timestamp
from tidelog.ports.steps import Steps
from tidelog.records.topic_partition import TopicPartition
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ELEMENTS_MAX
from tidelog.wire.protocol import ApiKey

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The first version that supports each question.
_SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
READ_COMMITTED = 1
# Older clients do not know this error.
OFFSET_NOT_AVAILABLE_SINCE = 5
CONSUMER_REPLICA_ID = -1


class Answer(NamedTuple):
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    is_read_committed = request.isolation_level == READ_COMMITTED
    seen: set[TopicPartition] = set()
    twice: set[TopicPartition] = set()
    pace = Pace()
    for topic in request.topics:
        for wanted in topic.partitions:
            key = topic.name, wanted.partition_index
            (twice if key in seen else seen).add(key)
            if pace.is_pause_due():
                yield

    def partition_fields(name: str, wanted: DecodedMessage) -> Steps[dict[str, Any]]:
        index = wanted.partition_index
        try:
            if request.replica_id > CONSUMER_REPLICA_ID:
                raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "this listener is for clients, not for replicas")
            if (name, index) in twice:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"the request names {name}-{index} twice")
            _check_version(wanted.timestamp, context.header.api_version)
            partition = context.broker.partitions.find(name, None, index)
            partition.check_epoch(wanted.current_leader_epoch)
            answer = yield from _answer(partition, wanted.timestamp, is_read_committed)
            return {"partition_index": index, **answer._asdict()}
        except Exception as error:
            code = context.code_of(error)[0]
            if code is ErrorCode.OFFSET_NOT_AVAILABLE and context.header.api_version < OFFSET_NOT_AVAILABLE_SINCE:
                code = ErrorCode.LEADER_NOT_AVAILABLE
            return {"partition_index": index, "error_code": code}

    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            partitions.append((yield from partition_fields(topic.name, wanted)))
            if pace.is_pause_due():
                yield
        topics.append({"name": topic.name, "partitions": partitions})
    fields = {"topics": topics}
    yield from context.reply_in_slices(fields)
    yield from free_in_slices(fields)
    yield from free_in_slices(request)


def _check_version(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < _SINCE_VERSION.get(timestamp, version + 1):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"version {version} has no timestamp {timestamp}")


def _answer(partition: Partition, timestamp: int, is_read_committed: bool) -> Steps[Answer]:
    log = partition.log
    log.check_online()
    if timestamp == LATEST:
        return Answer(-1, partition.latest_offset(is_read_committed=is_read_committed), partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        # The current epoch writes the first record of a log that is empty now.
        is_empty = start == log.log_end_offset
        return Answer(-1, start, partition.leader_epoch if is_empty else log.epochs.epoch_for_offset(start))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return Answer()  # There is no remote storage, so everything is local.
    found = yield from _find(log, timestamp)
    visible_end = partition.latest_offset(is_read_committed=is_read_committed)
    if found is None or found.offset >= visible_end:
        return Answer()
    return Answer(*found)


def _find(log: PartitionLog, timestamp: int) -> Steps[TimestampedOffset | None]:
    return offset_of_max_timestamp(log) if timestamp == MAX_TIMESTAMP else offset_for_timestamp(log, timestamp)


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [{"partition_index": wanted.partition_index, "error_code": code} for wanted in topic.partitions],
            }
            for topic in request.topics
        ]
    }


API = Api(
    key=ApiKey.LIST_OFFSETS, name="ListOffsets", versions=(1, 11), handle=handle, failure=_failure, elements_max=ELEMENTS_MAX
)
