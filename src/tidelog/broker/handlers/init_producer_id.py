"""InitProducerId: gives an id and an epoch to an idempotent producer, or to a transactional one that takes over its id."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.transactions.client_errors import coordinator_error
from tidelog.controller.errors import ApiError
from tidelog.transactions.coordinator import InitProducerIdRequest, InitProducerIdResult
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

FENCED_SINCE = 4


def handle(context: RequestContext, request: DecodedMessage) -> None:
    if request.transactional_id is None:
        _idempotent(context)
    elif not request.transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id must not be empty")
    else:
        _transactional(context, request)


def _idempotent(context: RequestContext) -> None:
    """Nothing is kept for a producer without a transactional id: every request may get a new producer id."""
    producer_ids = context.broker.coordinators.producer_ids

    def available(error: Exception | None) -> None:
        if error is not None:
            context.fail(error)
            return
        producer_id = producer_ids.take()
        if producer_id is None:
            producer_ids.when_available(available)  # Other requests have used up the whole block.
        else:
            context.reply_later(lambda: {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0})

    producer_ids.when_available(available)


def _transactional(context: RequestContext, request: DecodedMessage) -> None:
    transactional_id = request.transactional_id
    init = InitProducerIdRequest(transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch)

    def done(result: InitProducerIdResult | None, error: Exception | None) -> None:
        if result is None:
            context.fail(error or ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        fields = {
            "error_code": coordinator_error(result.error, context.header.api_version, FENCED_SINCE),
            "producer_id": result.producer_id,
            "producer_epoch": result.producer_epoch,
        }
        context.reply_later(lambda: fields)

    def available(error: Exception | None) -> None:
        if error is not None:
            context.fail(error)
            return
        context.broker.concurrent_transactions.write(
            transactional_id, lambda coordinator: coordinator.init_producer_id(init), lambda result: result.error, done
        )

    # The decision may need a producer id, and cannot wait for one.
    context.broker.coordinators.producer_ids.when_available(available)


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


API = Api(key=ApiKey.INIT_PRODUCER_ID, name="InitProducerId", versions=(0, 5), handle=handle, failure=_failure)
