"""ListTransactions: lists the transactions of all shards that this broker leads, filtered by state, producer, age and name.

As long as one shard is still loading or unavailable, the request fails: a list without its transactions would look complete.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tidelog.broker.api import Api, RequestContext, ResultCollector, in_steps
from tidelog.config.regular_expressions import InvalidExpression, full_matcher
from tidelog.controller.errors import ApiError
from tidelog.coordinator.errors import CoordinatorLoading, NotCoordinator
from tidelog.coordinator.machine import OnDone
from tidelog.ports.steps import Steps
from tidelog.transactions.coordinator import ListedTransaction, TransactionFilter, unknown_states
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    unknown = unknown_states(request.state_filters)
    if unknown and len(unknown) == len(request.state_filters):
        context.reply({"error_code": ErrorCode.NONE, "unknown_state_filters": unknown, "transaction_states": ()})
        return
    criteria = TransactionFilter(
        frozenset(request.producer_id_filters),
        frozenset(request.state_filters),
        request.duration_filter,
        _matcher(request.transactional_id_pattern),
    )
    shards = context.broker.coordinators.transactions.shards()

    def listed(results: Sequence[list[ListedTransaction] | Exception]) -> None:
        failed = next((result for result in results if isinstance(result, Exception)), None)
        if failed is not None:
            context.fail(failed)
            return
        context.continue_in_slices(answer([each for result in results if not isinstance(result, Exception) for each in result]))

    def answer(transactions: list[ListedTransaction]) -> Steps[None]:
        found = yield from in_steps(transactions, _fields)
        fields = {"error_code": ErrorCode.NONE, "unknown_state_filters": unknown, "transaction_states": found}
        yield from context.reply_in_slices(fields)

    gather = ResultCollector(len(shards), listed)

    def put(position: int) -> OnDone:
        def done(transactions: list[ListedTransaction] | None, error: Exception | None) -> None:
            # Another broker leads the shard by now and lists its transactions.
            gather.put(position, [] if isinstance(error, NotCoordinator) else error or transactions)

        return done

    for position, (index, shard) in enumerate(shards.items()):
        if shard is None:
            gather.put(position, CoordinatorLoading(f"shard {index} is not loaded yet"))
        else:
            shard.read(lambda coordinator: coordinator.list_transactions(criteria), put(position))
        yield


def _matcher(pattern: str | None) -> Callable[[str], bool] | None:
    if not pattern:
        return None
    try:
        return full_matcher(pattern)
    except InvalidExpression as error:
        message = f"{pattern!r} is not a valid regular expression: {error}"
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None


def _fields(transaction: ListedTransaction) -> dict[str, Any]:
    transactional_id, producer_id, state = transaction
    return {"transactional_id": transactional_id, "producer_id": producer_id, "transaction_state": state}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - only the code is in it
    return {"error_code": code, "unknown_state_filters": (), "transaction_states": ()}


API = Api(key=ApiKey.LIST_TRANSACTIONS, name="ListTransactions", versions=(0, 2), handle=handle, failure=_failure)
