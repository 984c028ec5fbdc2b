"""IncrementalAlterConfigs: sets, removes, appends to or subtracts from single settings, and leaves the others alone."""

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.broker.response_fields import alteration_failure, altered_fields
from tidelog.controller.configs import ConfigChange, ResourceChanges, incremental_alter_configs
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker = context.broker
    resources = [_changes(resource) for resource in request.resources]
    context.decide(
        lambda image: incremental_alter_configs(image, broker.static_config, resources, validate_only=request.validate_only),
        altered_fields,
    )


def _changes(resource: DecodedMessage) -> ResourceChanges:
    changes = tuple(ConfigChange(config.name, config.value, config.config_operation) for config in resource.configs)
    return ResourceChanges(resource.resource_type, resource.resource_name, changes)


API = Api(
    key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    name="IncrementalAlterConfigs",
    versions=(0, 1),
    handle=handle,
    failure=alteration_failure,
    listeners=ALL_LISTENERS,
    is_forwarded=True,
    is_repeatable=True,
)
