"""ListConfigResources: lists the resources that can have settings. Version 0 knows client metrics only."""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

ONLY_CLIENT_METRICS_UNTIL = 0


def handle(context: RequestContext, request: DecodedMessage) -> None:
    is_old = context.header.api_version <= ONLY_CLIENT_METRICS_UNTIL
    types = [ResourceType.CLIENT_METRICS] if is_old else dict.fromkeys(request.resource_types) or list(ResourceType)
    resources: list[dict[str, Any]] = []
    for resource_type in types:
        names = _names(context.broker.image, resource_type)
        resources += [{"resource_name": name, "resource_type": resource_type} for name in names]
    context.reply({"error_code": ErrorCode.NONE, "config_resources": resources})


def _names(image: ClusterImage, resource_type: int) -> list[str]:
    if resource_type == ResourceType.TOPIC:
        return [topic.name for topic in image.topics]
    if resource_type == ResourceType.BROKER:
        return [str(broker.broker_id) for broker in image.brokers]
    if resource_type in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        return [name for kind, name in image.configs.resources() if kind == resource_type]
    if resource_type in list(ResourceType):
        return []
    raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"there are no resources of type {resource_type}")


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


API = Api(
    key=ApiKey.LIST_CONFIG_RESOURCES,
    name="ListConfigResources",
    versions=(0, 1),
    handle=handle,
    failure=_failure,
    listeners=ALL_LISTENERS,
)
