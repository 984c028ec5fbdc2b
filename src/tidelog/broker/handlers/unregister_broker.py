"""UnregisterBroker: forget a broker that has left for good."""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.brokers import unregister_broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    rules = context.broker.settings

    def unregistered(_: None) -> dict[str, Any]:
        context.broker.controller.sessions.end(request.broker_id)
        return {"error_code": ErrorCode.NONE, "error_message": None}

    context.decide(lambda image: unregister_broker(image, rules, request.broker_id), unregistered)


API = Api(
    key=ApiKey.UNREGISTER_BROKER,
    name="UnregisterBroker",
    versions=(0, 0),
    handle=handle,
    listeners=ALL_LISTENERS,
    is_forwarded=True,
)
