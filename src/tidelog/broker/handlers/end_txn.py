"""EndTxn: commits or aborts a transaction. The answer is sent when the decision is durable; the markers follow later."""

from functools import partial
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.transactions.client_errors import coordinator_error
from tidelog.controller.errors import ApiError
from tidelog.transactions.end_transaction import EndTransactionResult
from tidelog.transactions.transaction import TRANSACTION_VERSION_2
from tidelog.wire.end_txn import VERSIONS, EndTxnRequest, decode_end_txn_request, encode_end_txn_response
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

FENCED_SINCE = 2
VERSION_2_SINCE = 5


def handle(context: RequestContext, request: EndTxnRequest) -> None:
    transaction_version = TRANSACTION_VERSION_2 if context.header.api_version >= VERSION_2_SINCE else 0
    context.broker.coordinators.transactions.write(
        request.transactional_id,
        lambda coordinator: coordinator.ends.end(request, transaction_version),
        partial(_ended, context),
    )


def _ended(context: RequestContext, result: EndTransactionResult | None, error: Exception | None) -> None:
    if result is None:
        context.fail(error or ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        return
    version = context.header.api_version
    code = coordinator_error(result.error, version, FENCED_SINCE)
    if code is not ErrorCode.NONE:
        context.count_error(code)
    throttle_time_ms = context.throttle_time_ms()
    context.reply_parts([encode_end_txn_response(version, code, result.producer_id, result.producer_epoch, throttle_time_ms)])


def _failure(request: EndTxnRequest, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


API = Api(key=ApiKey.END_TXN, name="EndTxn", versions=VERSIONS, handle=handle, failure=_failure, decode=decode_end_txn_request)
