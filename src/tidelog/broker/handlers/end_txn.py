"""EndTxn: commit or abort. Answered when the decision is durable; the markers follow by themselves."""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.transactions.results import FENCED_SINCE_END_TRANSACTION, EndTransactionResult, error_for_version
from tidelog.transactions.transaction import TRANSACTION_VERSION_2
from tidelog.wire.errors import ErrorCode
from tidelog.wire.kio_adapter import Message
from tidelog.wire.protocol import ApiKey

VERSION_2_SINCE = 5


def handle(context: RequestContext, request: Message) -> None:
    version = context.header.api_version
    transaction_version = TRANSACTION_VERSION_2 if version >= VERSION_2_SINCE else 0

    def done(result: EndTransactionResult | None, error: Exception | None) -> None:
        if result is None:
            context.fail(error or ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        fields = {
            "error_code": error_for_version(result.error, version, FENCED_SINCE_END_TRANSACTION),
            "producer_id": result.producer_id,
            "producer_epoch": result.producer_epoch,
        }
        context.reply_later(lambda: fields)

    context.broker.coordinators.transactions.write(
        request.transactional_id,
        lambda machine: machine.end_transaction(
            request.transactional_id, request.producer_id, request.producer_epoch, request.committed, transaction_version
        ),
        done,
    )


def _failure(request: Message, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


API = Api(key=ApiKey.END_TXN, name="EndTxn", versions=(0, 5), handle=handle, failure=_failure)
