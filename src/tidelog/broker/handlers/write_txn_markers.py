"""WriteTxnMarkers: end transactions in the partitions named.

What coordinators send to other brokers, and the way in which an admin ends a transaction that no coordinator knows of any more.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.metadata.topics import GROUPS_TOPIC
from tidelog.records.control import ControlType, EndTransactionMarker
from tidelog.transactions.transaction import TopicPartition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.kio_adapter import Message
from tidelog.wire.protocol import ApiKey

Place = tuple[int, TopicPartition]


def handle(context: RequestContext, request: Message) -> None:
    codes: dict[Place, ErrorCode] = {}
    places = [
        (number, (topic.name, index))
        for number, marker in enumerate(request.markers)
        for topic in marker.topics
        for index in topic.partition_indexes
    ]
    waiting = dict.fromkeys(places)

    def written(place: Place, error: Exception | None) -> None:
        codes[place] = ErrorCode.NONE if error is None else context.code_of(error)[0]
        waiting.pop(place, None)
        if not waiting:
            context.reply_later(lambda: _response(request, codes))

    if not places:
        context.reply(_response(request, codes))
    for place in list(waiting):
        _write(context, request.markers[place[0]], place[1], partial(written, place))


def _write(
    context: RequestContext, marker: Message, partition: TopicPartition, on_written: Callable[[Exception | None], None]
) -> None:
    control_type = ControlType.COMMIT if marker.transaction_result else ControlType.ABORT
    end = EndTransactionMarker(control_type, marker.coordinator_epoch)
    producer = marker.producer_id, marker.producer_epoch
    markers = context.broker.coordinators.markers
    try:
        if partition[0] == GROUPS_TOPIC:
            markers.to_group_coordinator(partition[1], producer, end, on_written)
        else:
            markers.to_partition(partition, producer, end, on_written)
    except Exception as error:
        on_written(error)


def _response(request: Message, codes: dict[Place, ErrorCode]) -> dict[str, Any]:
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


def _failure(request: Message, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    codes = {
        (number, (topic.name, index)): code
        for number, marker in enumerate(request.markers)
        for topic in marker.topics
        for index in topic.partition_indexes
    }
    return _response(request, codes)


API = Api(key=ApiKey.WRITE_TXN_MARKERS, name="WriteTxnMarkers", versions=(1, 2), handle=handle, failure=_failure)
