"""CreateTopics: each topic of the request is created or refused by itself. The answer is sent when the topics are committed."""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.broker.session import FORWARDED
from tidelog.config.listeners import ListenerRole
from tidelog.controller.config_sources import DescribedConfig
from tidelog.controller.topics import NewTopic, TopicCreation, create_topics
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

# From this version on clients know THROTTLING_QUOTA_EXCEEDED.
STRICT_QUOTA_SINCE = 6


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker = context.broker
    ask_quota = broker.throttling.mutations(context, STRICT_QUOTA_SINCE)
    topics = [_new_topic(topic) for topic in request.topics]
    # A broker that asks for itself creates the topics that hold its state.
    listener = context.session.listener
    is_internal = listener.role is ListenerRole.CONTROLLER and listener is not FORWARDED
    context.decide(
        lambda image: create_topics(
            image,
            broker.topic_rules,
            broker.static_config,
            topics,
            broker.randomness,
            validate_only=request.validate_only,
            is_internal=is_internal,
            ask_quota=ask_quota,
        ),
        lambda created: {"topics": [_result(topic) for topic in created]},
        request.timeout_ms,
    )


def _new_topic(topic: DecodedMessage) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((assignment.partition_index, tuple(assignment.broker_ids)) for assignment in topic.assignments),
        tuple((config.name, config.value) for config in topic.configs),
    )


def _result(topic: TopicCreation) -> dict[str, Any]:
    if topic.error is not ErrorCode.NONE:
        return {"name": topic.name, "error_code": topic.error, "error_message": topic.message, "configs": ()}
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "error_code": ErrorCode.NONE,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "configs": [_config(config) for config in topic.configs],
    }


def _config(config: DescribedConfig) -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "read_only": config.read_only,
        "config_source": config.source,
        "is_sensitive": config.is_sensitive,
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    names = dict.fromkeys(topic.name for topic in request.topics)
    return {"topics": [{"name": name, "error_code": code, "error_message": message, "configs": ()} for name in names]}


API = Api(
    key=ApiKey.CREATE_TOPICS,
    name="CreateTopics",
    versions=(2, 7),
    handle=handle,
    failure=_failure,
    listeners=ALL_LISTENERS,
    is_forwarded=True,
)
