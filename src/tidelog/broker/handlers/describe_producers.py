"""DescribeProducers: returns the producers of each partition, and the first offset of each open transaction."""

from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext, in_steps
from tidelog.log.producers.producer_state import ProducerEntry
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    # A partition that is listed twice is described once, because it may have many producers.
    topics: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        topics.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    described = []
    pace = Pace()
    for name, indexes in topics.items():
        partitions = []
        for index in indexes:
            partitions.append((yield from _partition(context, name, index, pace)))
            if pace.is_pause_due():
                yield
        described.append({"name": name, "partitions": partitions})
    yield from context.reply_in_slices({"topics": described})


def _partition(context: RequestContext, topic: str, index: int, pace: Pace) -> Steps[dict[str, Any]]:
    try:
        log = context.broker.partitions.find(topic, None, index).log
        log.check_online()
    except Exception as error:
        code, message = context.code_of(error)
        return {"partition_index": index, "error_code": code, "error_message": message}
    producers = yield from in_steps(list(log.producers.entries()), _producer, pace)
    return {"partition_index": index, "error_code": ErrorCode.NONE, "active_producers": producers}


def _producer(entry: ProducerEntry) -> dict[str, Any]:
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.last_sequence,
        "last_timestamp": entry.last_timestamp,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": entry.current_transaction_first_offset,
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": code, "error_message": message} for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
    }


API = Api(key=ApiKey.DESCRIBE_PRODUCERS, name="DescribeProducers", versions=(0, 0), handle=handle, failure=_failure)
