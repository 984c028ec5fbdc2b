"""ControllerRegistration: a controller tells the active one its listeners and features, so that others can be told (KIP-919)."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.config.listeners import ListenerRole
from tidelog.controller.brokers import register_controller
from tidelog.metadata.records import BrokerEndpoint, RegisterControllerRecord, SupportedFeature
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    record = RegisterControllerRecord(
        request.controller_id,
        request.incarnation_id,
        request.zk_migration_ready,
        tuple(BrokerEndpoint(each.name, each.host, each.port, each.security_protocol) for each in request.listeners),
        tuple(SupportedFeature(each.name, each.min_supported_version, each.max_supported_version) for each in request.features),
    )
    context.decide(lambda image: register_controller(image, record), _response)


def _response(_: None) -> dict[str, Any]:
    return {"error_code": ErrorCode.NONE, "error_message": None}


API = Api(
    key=ApiKey.CONTROLLER_REGISTRATION,
    name="ControllerRegistration",
    versions=(0, 0),
    handle=handle,
    listeners=frozenset((ListenerRole.CONTROLLER,)),
    is_forwarded=True,
)
