"""AlterPartitionReassignments: changes which brokers hold a partition, and their order of preference."""

from collections.abc import Iterable
from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.reassignment import Reassignment, ReassignmentResult, alter_partition_reassignments
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    wanted = [
        Reassignment(topic.name, part.partition_index, None if part.replicas is None else tuple(part.replicas))
        for topic in request.topics
        for part in topic.partitions
    ]
    rules = context.broker.settings
    # Version 0 lacks the field, and allows such a change.
    allowed = getattr(request, "allow_replication_factor_change", True)
    context.decide(
        lambda image: alter_partition_reassignments(image, rules, wanted, allow_replication_factor_change=allowed),
        lambda results: {**_response(results), "allow_replication_factor_change": allowed},
        request.timeout_ms,
    )


def _response(results: Iterable[ReassignmentResult]) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        fields = {"partition_index": result.partition, "error_code": result.error, "error_message": result.message}
        topics.setdefault(result.topic, []).append(fields)
    responses = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    return {"error_code": ErrorCode.NONE, "error_message": None, "responses": responses}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the whole request failed
    return {"error_code": code, "error_message": message, "responses": []}


API = Api(
    key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    name="AlterPartitionReassignments",
    versions=(0, 1),
    handle=handle,
    failure=_failure,
    listeners=ALL_LISTENERS,
    is_forwarded=True,
)
