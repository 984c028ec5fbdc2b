"""DescribeTransactions: returns state, producer, age and partitions of transactional ids."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext, ResultCollector
from tidelog.controller.errors import ApiError
from tidelog.ports.steps import Steps
from tidelog.transactions.coordinator import DescribedTransaction, TransactionCoordinator
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    ids = list(dict.fromkeys(request.transactional_ids))

    def described(results: Sequence[dict[str, Any]]) -> None:
        context.continue_in_slices(context.reply_in_slices({"transaction_states": results}))

    gather = ResultCollector(len(ids), described)

    def done(position: int, transactional_id: str, transaction: DescribedTransaction | None, error: Exception | None) -> None:
        if error is None and transaction is None:
            error = ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        if error is not None:
            gather.put(position, {"error_code": context.code_of(error)[0], "transactional_id": transactional_id})
        elif transaction is not None:
            gather.put(position, _fields(transaction))

    transactions = context.broker.coordinators.transactions
    pace = Pace()
    for position, transactional_id in enumerate(ids):
        if not transactional_id:
            done(position, "", None, ApiError(ErrorCode.INVALID_REQUEST, "the transactional id must not be empty"))
            continue
        transactions.read(
            transactional_id,
            partial(_describe, transactional_id),
            partial(done, position, transactional_id),
        )
        if pace.is_pause_due():
            yield


def _describe(transactional_id: str, coordinator: TransactionCoordinator) -> DescribedTransaction | None:
    return coordinator.describe_transaction(transactional_id)


def _fields(transaction: DescribedTransaction) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transaction.transactional_id,
        "transaction_state": transaction.state,
        "transaction_timeout_ms": transaction.timeout_ms,
        "transaction_start_time_ms": transaction.start_timestamp_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in transaction.partitions],
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - only the code is in it
    return {
        "transaction_states": [
            {"error_code": code, "transactional_id": transactional_id} for transactional_id in request.transactional_ids
        ]
    }


API = Api(key=ApiKey.DESCRIBE_TRANSACTIONS, name="DescribeTransactions", versions=(0, 0), handle=handle, failure=_failure)
