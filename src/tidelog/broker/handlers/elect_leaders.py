"""ElectLeaders: returns partitions to their preferred leaders or, if no replica is in sync, lets any replica lead (unclean)."""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.election import ElectionResult, elect_leaders
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    wanted = None
    if request.topic_partitions is not None:
        wanted = [(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions]
    rules = context.broker.settings
    context.decide(lambda image: elect_leaders(image, rules, request.election_type, wanted), _response, request.timeout_ms)


def _response(elected: list[ElectionResult]) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for result in elected:
        fields = {"partition_id": result.partition, "error_code": result.error, "error_message": result.message}
        topics.setdefault(result.topic, []).append(fields)
    results = [{"topic": topic, "partition_result": partitions} for topic, partitions in topics.items()]
    return {"error_code": ErrorCode.NONE, "replica_election_results": results}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    """Version 0 has no field for an error of the whole request, so each partition carries it too."""
    topics = request.topic_partitions or ()
    partitions = [ElectionResult(topic.topic, index, code, message) for topic in topics for index in topic.partitions]
    return {**_response(partitions), "error_code": code}


API = Api(
    key=ApiKey.ELECT_LEADERS,
    name="ElectLeaders",
    versions=(0, 2),
    handle=handle,
    failure=_failure,
    listeners=ALL_LISTENERS,
    is_forwarded=True,
)
