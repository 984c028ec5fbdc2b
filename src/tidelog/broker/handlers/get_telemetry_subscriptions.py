"""GetTelemetrySubscriptions (KIP-714): tells a client which of its metrics to push, and how often."""

from dataclasses import dataclass
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.client_metrics import ACCEPTED_COMPRESSIONS, ClientIdentity, ClientMetrics
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


@dataclass(frozen=True, slots=True)
class _Disconnection:
    """Kept with the connection, and cancelled with it."""

    client_metrics: ClientMetrics
    instance_id: bytes

    def cancel(self) -> None:
        self.client_metrics.disconnected(self.instance_id)


def handle(context: RequestContext, request: DecodedMessage) -> None:
    client_metrics = context.broker.client_metrics
    instance_id, subscription = client_metrics.subscribe(request.client_instance_id, identity_of(context))
    context.session.add_delayed(_Disconnection(client_metrics, instance_id))
    context.reply(
        {
            "error_code": ErrorCode.NONE,
            "client_instance_id": instance_id,
            "subscription_id": subscription.subscription_id,
            "accepted_compression_types": [int(kind) for kind in ACCEPTED_COMPRESSIONS],
            "push_interval_ms": subscription.push_interval_ms,
            "telemetry_max_bytes": client_metrics.telemetry_bytes_max,
            "delta_temporality": False,
            "requested_metrics": subscription.metrics,
        }
    )


def identity_of(context: RequestContext) -> ClientIdentity:
    session = context.session
    return ClientIdentity(context.header.client_id or "", *session.client_software, session.client_host)


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


API = Api(
    key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    name="GetTelemetrySubscriptions",
    versions=(0, 0),
    handle=handle,
    failure=_failure,
)
