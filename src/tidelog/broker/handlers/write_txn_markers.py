"""WriteTxnMarkers: ends transactions in the given partitions.

Coordinators send it to other brokers, and an administrator uses it to end a transaction that no coordinator knows any more.
"""

from functools import partial
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.coordinator.errors import CoordinatorError
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.end_transaction import MarkersToWrite, transaction_marker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

TRANSACTION_VERSION_SINCE = 2

MarkerPartition = tuple[int, TopicPartition]
"""The index of a marker in the request, and one of its partitions."""


def handle(context: RequestContext, request: DecodedMessage) -> None:
    partitions = [_partitions(marker) for marker in request.markers]
    codes: dict[MarkerPartition, ErrorCode] = {}
    left = sum(map(len, partitions))

    def written(number: int, partition: TopicPartition, error: Exception | None) -> None:
        nonlocal left
        codes[number, partition] = _code_of(context, error)
        left -= 1
        if not left:
            context.reply_later(lambda: _response(request, codes))

    if not left:
        context.reply(_response(request, codes))
    for number, marker in enumerate(request.markers):
        end = transaction_marker(
            marker.producer_id,
            marker.producer_epoch,
            is_commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version if context.header.api_version >= TRANSACTION_VERSION_SINCE else 0,
        )
        markers = MarkersToWrite(end, partitions[number], partial(written, number), is_retried=False)
        context.broker.coordinators.local_markers.send(markers)


def _partitions(marker: DecodedMessage) -> dict[TopicPartition, None]:
    return {(topic.name, index): None for topic in marker.topics for index in topic.partition_indexes}


def _code_of(context: RequestContext, error: Exception | None) -> ErrorCode:
    if error is None:
        return ErrorCode.NONE
    # A transaction coordinator knows only errors about partition leaders, and retries after this one.
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(error, CoordinatorError) else context.code_of(error)[0]


def _response(request: DecodedMessage, codes: dict[MarkerPartition, ErrorCode]) -> dict[str, Any]:
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
    everywhere = [(number, partition) for number, marker in enumerate(request.markers) for partition in _partitions(marker)]
    return _response(request, dict.fromkeys(everywhere, code))


API = Api(key=ApiKey.WRITE_TXN_MARKERS, name="WriteTxnMarkers", versions=(1, 2), handle=handle, failure=_failure)
