"""EndTxn: commit or abort. Answered when the decision is durable; the markers follow by themselves."""

from functools import partial
from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.transactions.results import FENCED_SINCE_END_TRANSACTION, EndTransactionResult, error_for_version
from tidelog.transactions.transaction import TRANSACTION_VERSION_2
from tidelog.wire.end_txn import VERSIONS, EndTxnRequest, decode_end_txn_request, encode_end_txn_response
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

VERSION_2_SINCE = 5


def handle(context: RequestContext, request: EndTxnRequest) -> None:
    version = context.header.api_version
    transaction_version = TRANSACTION_VERSION_2 if version >= VERSION_2_SINCE else 0
    transactional_id, producer_id, producer_epoch, is_commit = request
    context.broker.coordinators.transactions.write(
        transactional_id,
        lambda machine: machine.end_transaction(transactional_id, producer_id, producer_epoch, is_commit, transaction_version),
        partial(_ended, context),
    )


def _ended(context: RequestContext, result: EndTransactionResult | None, error: Exception | None) -> None:
    if result is None:
        context.fail(error or ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        return
    version = context.header.api_version
    code = error_for_version(result.error, version, FENCED_SINCE_END_TRANSACTION)
    if code is not ErrorCode.NONE:
        context.count_error(code)
    throttle_time_ms = context.throttle_time_ms()
    context.reply_parts([encode_end_txn_response(version, code, result.producer_id, result.producer_epoch, throttle_time_ms)])


def _failure(request: EndTxnRequest, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


API = Api(key=ApiKey.END_TXN, name="EndTxn", versions=VERSIONS, handle=handle, failure=_failure, decode=decode_end_txn_request)
