"""AllocateProducerIds: a broker gets a block of producer ids that nobody else will ever have."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.config.listeners import ListenerRole
from tidelog.controller.brokers import find_broker
from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.producer_ids import BLOCK_SIZE, allocate_producer_ids
from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    def decide(image: ClusterImage) -> ControllerResult[int]:
        find_broker(image, request.broker_id, request.broker_epoch)
        return allocate_producer_ids(image, request.broker_id, request.broker_epoch)

    context.decide(decide, _response)


def _response(first: int) -> dict[str, Any]:
    return {"error_code": ErrorCode.NONE, "producer_id_start": first, "producer_id_len": BLOCK_SIZE}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code, "producer_id_start": -1, "producer_id_len": 0}


API = Api(
    key=ApiKey.ALLOCATE_PRODUCER_IDS,
    name="AllocateProducerIds",
    versions=(0, 0),
    handle=handle,
    failure=_failure,
    listeners=frozenset((ListenerRole.CONTROLLER,)),
    is_forwarded=True,
)
