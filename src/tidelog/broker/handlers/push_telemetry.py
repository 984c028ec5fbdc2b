"""PushTelemetry (KIP-714): takes the metrics that a client was asked for."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.client_metrics import TelemetryPush
from tidelog.broker.handlers.get_telemetry_subscriptions import identity_of
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    push = TelemetryPush(
        request.client_instance_id,
        request.subscription_id,
        request.terminating,
        request.compression_type,
        request.metrics,
    )
    context.broker.client_metrics.push(push, identity_of(context))
    context.reply({"error_code": ErrorCode.NONE})


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


API = Api(key=ApiKey.PUSH_TELEMETRY, name="PushTelemetry", versions=(0, 0), handle=handle, failure=_failure)
