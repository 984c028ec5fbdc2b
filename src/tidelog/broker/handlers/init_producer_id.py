"""InitProducerId: an id and an epoch for an idempotent producer, or for a transactional one that takes over its id."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.transactions.results import FENCED_SINCE_INIT_PRODUCER_ID, InitProducerIdResult, error_for_version
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    if request.transactional_id is None:
        _idempotent(context)
    elif not request.transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
    else:
        _transactional(context, request)


def _idempotent(context: RequestContext) -> None:
    """There is nothing to keep for a producer without a transactional id: what it asks for may be new every time."""
    producer_ids = context.broker.coordinators.producer_ids

    def available(error: Exception | None) -> None:
        if error is not None:
            context.fail(error)
            return
        producer_id = producer_ids.take()
        if producer_id is None:
            producer_ids.when_available(available)  # Others were faster.
        else:
            context.reply_later(lambda: {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0})

    producer_ids.when_available(available)


def _transactional(context: RequestContext, request: DecodedMessage) -> None:
    version = context.header.api_version

    def done(result: InitProducerIdResult | None, error: Exception | None) -> None:
        if result is None:
            context.fail(error or ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        fields = {
            "error_code": error_for_version(result.error, version, FENCED_SINCE_INIT_PRODUCER_ID),
            "producer_id": result.producer_id,
            "producer_epoch": result.producer_epoch,
        }
        context.reply_later(lambda: fields)

    def available(error: Exception | None) -> None:
        if error is not None:
            context.fail(error)
            return
        context.broker.settling.write(
            request.transactional_id,
            lambda machine: machine.init_producer_id(
                request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
            ),
            lambda result: result.error,
            done,
        )

    # The decision may need an id, and cannot wait for one.
    context.broker.coordinators.producer_ids.when_available(available)


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


API = Api(key=ApiKey.INIT_PRODUCER_ID, name="InitProducerId", versions=(0, 5), handle=handle, failure=_failure)
