"""DescribeCluster: returns the cluster's id, its controller and its brokers."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.response_fields import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED_FOR, address_fields
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

BROKERS = 1
CONTROLLERS = 2


def handle(context: RequestContext, request: DecodedMessage) -> None:
    if request.endpoint_type == CONTROLLERS:
        raise ApiError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this listener knows of brokers, not of controllers")
    if request.endpoint_type != BROKERS:
        raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"there is no endpoint type {request.endpoint_type}")
    broker = context.broker
    brokers = sorted(broker.image.brokers, key=lambda known: known.broker_id)
    asks_for_operations = request.include_cluster_authorized_operations
    context.reply(
        {
            "error_code": ErrorCode.NONE,
            "endpoint_type": BROKERS,
            "cluster_id": broker.config.cluster_id,
            "controller_id": broker.config.node_id,
            "brokers": [
                {"broker_id": known.broker_id, "is_fenced": known.fenced, **address_fields(known)}
                for known in brokers
                if known.is_active or request.include_fenced_brokers
            ],
            "cluster_authorized_operations": CLUSTER_OPERATIONS if asks_for_operations else OPERATIONS_NOT_ASKED_FOR,
        }
    )


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "endpoint_type": request.endpoint_type}


API = Api(key=ApiKey.DESCRIBE_CLUSTER, name="DescribeCluster", versions=(0, 2), handle=handle, failure=_failure)
