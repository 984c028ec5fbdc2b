"""OffsetForLeaderEpoch: returns where a leader epoch ended. A consumer whose position lies beyond that knows that the log was
truncated.
"""

from functools import partial
from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext, free_in_slices, in_steps
from tidelog.log.reading import end_offset_for_epoch
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ELEMENTS_MAX
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    def partition_fields(name: str, wanted: DecodedMessage) -> dict[str, Any]:
        try:
            partition = context.broker.partitions.find(name, None, wanted.partition)
            partition.check_epoch(wanted.current_leader_epoch)
            epoch, end_offset = end_offset_for_epoch(partition.log, wanted.leader_epoch, partition.leader_epoch)
        except Exception as error:
            return {"partition": wanted.partition, "error_code": context.code_of(error)[0]}
        return {"partition": wanted.partition, "leader_epoch": epoch, "end_offset": end_offset}

    topics = []
    pace = Pace()
    for topic in request.topics:
        partitions = yield from in_steps(topic.partitions, partial(partition_fields, topic.topic), pace)
        topics.append({"topic": topic.topic, "partitions": partitions})
    fields = {"topics": topics}
    yield from context.reply_in_slices(fields)
    yield from free_in_slices(fields)
    yield from free_in_slices(request)


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [{"partition": wanted.partition, "error_code": code} for wanted in topic.partitions],
            }
            for topic in request.topics
        ]
    }


API = Api(
    key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
    name="OffsetForLeaderEpoch",
    versions=(2, 4),
    handle=handle,
    failure=_failure,
    elements_max=ELEMENTS_MAX,
)
