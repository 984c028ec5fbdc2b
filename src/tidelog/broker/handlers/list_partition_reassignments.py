"""ListPartitionReassignments: lists the partitions that are being moved to other brokers."""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.reassignment import ongoing_reassignments
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    wanted = None
    if request.topics is not None:
        wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
    topics: dict[str, list[dict[str, Any]]] = {}
    for ongoing in ongoing_reassignments(context.broker.image, wanted):
        fields = {
            "partition_index": ongoing.partition,
            "replicas": ongoing.state.replicas,
            "adding_replicas": ongoing.state.adding_replicas,
            "removing_replicas": ongoing.state.removing_replicas,
        }
        topics.setdefault(ongoing.topic, []).append(fields)
    context.reply(
        {
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        }
    )


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the whole request failed
    return {"error_code": code, "error_message": message, "topics": []}


API = Api(
    key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    name="ListPartitionReassignments",
    versions=(0, 0),
    handle=handle,
    failure=_failure,
    listeners=ALL_LISTENERS,
)
