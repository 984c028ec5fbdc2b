"""DescribeConfigs: returns the settings in force for topics, groups, client metrics and this broker, with the source and meaning
of each.
"""

from collections.abc import Collection
from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, Pace, RequestContext, free_in_slices
from tidelog.controller.config_sources import (
    DescribedConfig,
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from tidelog.controller.errors import ApiError
from tidelog.log.names import topic_name_problem
from tidelog.metadata.configs import ResourceType
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ELEMENTS_MAX
from tidelog.wire.protocol import ApiKey

# A resource has dozens of settings.
RESOURCES_PER_STEP = 4


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    def resource_fields(resource: DecodedMessage) -> dict[str, Any]:
        who = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            # An empty or missing list of names means all settings.
            configs = _describe(context, resource.resource_type, resource.resource_name, resource.configuration_keys or None)
        except Exception as error:
            code, message = context.code_of(error)
            return {**who, "error_code": code, "error_message": message}
        return {**who, "configs": [_config_fields(config, request) for config in configs]}

    # Describe each resource once: repeating a resource costs a client a few bytes but would cost the broker a whole answer.
    resources = {}
    pace = Pace()
    for resource in request.resources:
        resources[resource.resource_type, resource.resource_name] = resource
        if pace.is_pause_due():
            yield
    results = []
    for number, resource in enumerate(resources.values(), 1):
        results.append(resource_fields(resource))
        if not number % RESOURCES_PER_STEP:
            yield
    fields = {"results": results}
    yield from context.reply_in_slices(fields)
    yield from free_in_slices(fields)
    yield from free_in_slices(request)


def _describe(
    context: RequestContext, resource_type: int, resource_name: str, names: Collection[str] | None
) -> list[DescribedConfig]:
    broker = context.broker
    if resource_type == ResourceType.TOPIC:
        problem = topic_name_problem(resource_name)
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        return describe_topic(broker.image, broker.static_config, resource_name, names)
    if resource_type == ResourceType.BROKER:
        return describe_broker(broker.image, broker.static_config, resource_name, names)
    if resource_type == ResourceType.GROUP:
        return describe_group(broker.image, broker.static_config, resource_name, names)
    if resource_type == ResourceType.CLIENT_METRICS:
        return describe_client_metrics(broker.image, resource_name, names)
    raise ApiError(ErrorCode.INVALID_REQUEST, f"resources of type {resource_type} have no settings here")


def _config_fields(config: DescribedConfig, request: DecodedMessage) -> dict[str, Any]:
    synonyms = config.synonyms if request.include_synonyms else ()
    return {
        "name": config.name,
        "value": config.value,
        "read_only": config.read_only,
        "config_source": config.source,
        "is_sensitive": config.is_sensitive,
        "synonyms": [{"name": name, "value": value, "source": source} for name, value, source in synonyms],
        "config_type": config.type,
        "documentation": config.documentation if request.include_documentation else None,
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "results": [
            {
                "error_code": code,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
            for resource in request.resources
        ]
    }


API = Api(
    key=ApiKey.DESCRIBE_CONFIGS,
    name="DescribeConfigs",
    versions=(1, 4),
    handle=handle,
    failure=_failure,
    elements_max=ELEMENTS_MAX,
    listeners=ALL_LISTENERS,
)
