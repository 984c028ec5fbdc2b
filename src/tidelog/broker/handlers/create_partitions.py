"""CreatePartitions: adds partitions to existing topics."""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.topics import NewPartitions, create_partitions
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

# From this version on clients know THROTTLING_QUOTA_EXCEEDED.
STRICT_QUOTA_SINCE = 3


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker = context.broker
    ask_quota = broker.throttling.mutations(context, STRICT_QUOTA_SINCE)
    wanted = [_new_partitions(topic) for topic in request.topics]
    context.decide(
        lambda image: create_partitions(
            image, broker.topic_rules, wanted, broker.randomness, validate_only=request.validate_only, ask_quota=ask_quota
        ),
        lambda created: {"results": [_result(topic.topic, topic.error, topic.message) for topic in created]},
        request.timeout_ms,
    )


def _new_partitions(topic: DecodedMessage) -> NewPartitions:
    assignments = topic.assignments
    return NewPartitions(
        topic.name,
        topic.count,
        None if assignments is None else tuple(tuple(assignment.broker_ids) for assignment in assignments),
    )


def _result(name: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "error_code": code, "error_message": message}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    return {"results": [_result(name, code, message) for name in dict.fromkeys(topic.name for topic in request.topics)]}


API = Api(
    key=ApiKey.CREATE_PARTITIONS,
    name="CreatePartitions",
    versions=(0, 3),
    handle=handle,
    failure=_failure,
    listeners=ALL_LISTENERS,
    is_forwarded=True,
)
