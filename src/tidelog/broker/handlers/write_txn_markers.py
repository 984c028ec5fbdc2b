"""WriteTxnMarkers: end transactions in the partitions named.

What coordinators send to other brokers, and the way in which an admin ends a transaction that no coordinator knows of any more.
"""

from functools import partial
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.transaction_markers import EndOfTransaction
from tidelog.coordinator.errors import CoordinatorError
from tidelog.records.topic_partition import TopicPartition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

TRANSACTION_VERSION_SINCE = 2

Place = tuple[int, TopicPartition]


def handle(context: RequestContext, request: DecodedMessage) -> None:
    places = [_partitions(marker) for marker in request.markers]
    codes: dict[Place, ErrorCode] = {}
    left = sum(map(len, places))

    def written(number: int, partition: TopicPartition, error: Exception | None) -> None:
        nonlocal left
        codes[number, partition] = _code_of(context, error)
        left -= 1
        if not left:
            context.reply_later(lambda: _response(request, codes))

    if not left:
        context.reply(_response(request, codes))
    for number, marker in enumerate(request.markers):
        end = EndOfTransaction(
            (marker.producer_id, marker.producer_epoch),
            marker.transaction_result,
            marker.coordinator_epoch,
            marker.transaction_version if context.header.api_version >= TRANSACTION_VERSION_SINCE else 0,
        )
        context.broker.coordinators.markers.write(end, places[number], partial(written, number))


def _partitions(marker: DecodedMessage) -> dict[TopicPartition, None]:
    return {(topic.name, index): None for topic in marker.topics for index in topic.partition_indexes}


def _code_of(context: RequestContext, error: Exception | None) -> ErrorCode:
    if error is None:
        return ErrorCode.NONE
    # A transaction coordinator knows leaders only, and tries again after this.
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(error, CoordinatorError) else context.code_of(error)[0]


def _response(request: DecodedMessage, codes: dict[Place, ErrorCode]) -> dict[str, Any]:
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": codes[number, (topic.name, index)]}
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for number, marker in enumerate(request.markers)
        ]
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    places = [(number, partition) for number, marker in enumerate(request.markers) for partition in _partitions(marker)]
    return _response(request, dict.fromkeys(places, code))


API = Api(key=ApiKey.WRITE_TXN_MARKERS, name="WriteTxnMarkers", versions=(1, 2), handle=handle, failure=_failure)
