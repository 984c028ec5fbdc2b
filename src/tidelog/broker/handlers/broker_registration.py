"""BrokerRegistration: a broker that starts tells the active controller who it is, and is told its epoch (KIP-631)."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.config.listeners import ListenerRole
from tidelog.controller.brokers import BrokerRegistration, register_broker
from tidelog.metadata.records import BrokerEndpoint, SupportedFeature
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker, controller = context.broker, context.broker.controller
    wanted = BrokerRegistration(
        request.broker_id,
        request.cluster_id,
        request.incarnation_id,
        tuple(BrokerEndpoint(each.name, each.host, each.port, each.security_protocol) for each in request.listeners),
        tuple(SupportedFeature(each.name, each.min_supported_version, each.max_supported_version) for each in request.features),
        request.rack,
        tuple(request.log_dirs),
        request.previous_broker_epoch,
    )

    def registered(broker_epoch: int) -> dict[str, Any]:
        controller.heard_of(wanted.broker_id, broker_epoch, context.session)
        return {"error_code": ErrorCode.NONE, "broker_epoch": broker_epoch}

    context.decide(
        lambda image: register_broker(
            image,
            broker.settings,
            wanted,
            cluster_id=broker.config.cluster_id,
            has_session=controller.sessions.is_valid(wanted.broker_id, broker.clock.monotonic_ms()),
            next_offset=broker.quorum.end_offset,
        ),
        registered,
    )


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code, "broker_epoch": -1}


API = Api(
    key=ApiKey.BROKER_REGISTRATION,
    name="BrokerRegistration",
    versions=(1, 4),
    handle=handle,
    failure=_failure,
    listeners=frozenset((ListenerRole.CONTROLLER,)),
    is_forwarded=True,
)
