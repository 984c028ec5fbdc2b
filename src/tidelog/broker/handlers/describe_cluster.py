"""DescribeCluster: returns the cluster's id, its controller, and its brokers or, on a controllers' listener, the controllers."""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.broker.response_fields import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED_FOR, broker_addresses, named_controller
from tidelog.config.listeners import ListenerRole
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

BROKERS = 1
CONTROLLERS = 2


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker, listener = context.broker, context.session.listener
    served = CONTROLLERS if listener.role is ListenerRole.CONTROLLER else BROKERS
    if request.endpoint_type not in (BROKERS, CONTROLLERS):
        raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"there is no endpoint type {request.endpoint_type}")
    if request.endpoint_type != served:
        knows, lacks = ("controllers", "brokers") if served == CONTROLLERS else ("brokers", "controllers")
        raise ApiError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, f"this listener knows of {knows}, not of {lacks}")
    if served == CONTROLLERS:
        nodes = [
            {"broker_id": node_id, "host": endpoint.host, "port": endpoint.port, "rack": None}
            for node_id, record in sorted(broker.image.controllers.items())
            for endpoint in record.end_points
            if endpoint.name == listener.name
        ]
        controller_id = broker.quorum.leader_id
    else:
        controller_id = named_controller(broker.image, listener.name, broker.quorum.leader_id)
        nodes = [
            {"broker_id": known.broker_id, "is_fenced": known.fenced, **address}
            for known, address in broker_addresses(broker.image, listener.name, request.include_fenced_brokers)
        ]
    asks_for_operations = request.include_cluster_authorized_operations
    context.reply(
        {
            "error_code": ErrorCode.NONE,
            "endpoint_type": served,
            "cluster_id": broker.config.cluster_id,
            "controller_id": controller_id,
            "brokers": nodes,
            "cluster_authorized_operations": CLUSTER_OPERATIONS if asks_for_operations else OPERATIONS_NOT_ASKED_FOR,
        }
    )


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "endpoint_type": request.endpoint_type}


API = Api(
    key=ApiKey.DESCRIBE_CLUSTER, name="DescribeCluster", versions=(0, 2), handle=handle, failure=_failure, listeners=ALL_LISTENERS
)
