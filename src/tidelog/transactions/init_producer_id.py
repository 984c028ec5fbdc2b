"""InitProducerId for a transactional id: a producer id, and an epoch that shuts out everybody who had the id before.

A producer that names the id and epoch it has (KIP-360) goes on after an error: its epoch is raised once, however often it asks,
unless somebody else took over meanwhile. An ongoing transaction is aborted first, and the producer told to come again.
Without a transactional id there is nothing to keep: a new id at epoch 0, straight from ``ProducerIds``.
"""

from typing import NamedTuple

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.transactions.decisions import Decisions, answer
from tidelog.transactions.end_transaction import fence_and_abort
from tidelog.transactions.records import NO_TIMESTAMP_MS, TransactionValue
from tidelog.transactions.results import InitProducerIdResult
from tidelog.transactions.state import PREPARED_STATES, TransactionState
from tidelog.transactions.transaction import TransactionMetadata, advance, is_epoch_exhausted
from tidelog.wire.errors import ErrorCode


class Expected(NamedTuple):
    """The id and epoch that the producer believes to have."""

    producer_id: int
    producer_epoch: int


def init_producer_id(
    decisions: Decisions,
    transactional_id: str,
    timeout_ms: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> CoordinatorResult:
    """The response is an InitProducerIdResult."""
    if not transactional_id or (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
        return _refuse(ErrorCode.INVALID_REQUEST)
    if not 0 < timeout_ms <= decisions.environment.settings["transaction.max.timeout.ms"]:
        return _refuse(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    metadata = decisions.table.find(transactional_id)
    if metadata is None:
        return _create(decisions, transactional_id, timeout_ms)
    expected = None if producer_id == NO_PRODUCER_ID else Expected(producer_id, producer_epoch)
    if metadata.pending:
        return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _is_valid(metadata.value, expected):
        return _refuse(ErrorCode.PRODUCER_FENCED)
    state = metadata.value.state
    if state in PREPARED_STATES:
        return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if state is TransactionState.ONGOING:
        # The raised epoch is given to nobody: the producer comes again, and gets the one after it.
        return fence_and_abort(
            decisions,
            transactional_id,
            metadata,
            InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS),
            on_no_id=InitProducerIdResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        )
    return _raise_epoch(decisions, transactional_id, metadata, timeout_ms, expected)


def _refuse(error: ErrorCode) -> CoordinatorResult:
    return answer(InitProducerIdResult(error))


def _is_valid(value: TransactionValue, expected: Expected) -> bool:
    if expected.producer_id == value.producer_id:
        return True  # The epoch is looked at when it is raised.
    # It may ask again because it never heard that its used-up id was replaced.
    return expected.producer_id == value.previous_producer_id and is_epoch_exhausted(expected.producer_epoch)


def _create(decisions: Decisions, transactional_id: str, timeout_ms: int) -> CoordinatorResult:
    if len(decisions.table) >= decisions.environment.settings["tidelog.transactional.ids.max"]:
        return _refuse(ErrorCode.POLICY_VIOLATION)
    producer_id = decisions.environment.producer_ids.take()
    if producer_id is None:
        return _refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    value = TransactionValue(
        producer_id=producer_id,
        previous_producer_id=producer_id,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=0,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=(),
        last_update_timestamp_ms=decisions.now_ms(),
        start_timestamp_ms=NO_TIMESTAMP_MS,
        client_transaction_version=0,
    )
    return decisions.decide(transactional_id, value, InitProducerIdResult(ErrorCode.NONE, producer_id, 0))


def _raise_epoch(
    decisions: Decisions, transactional_id: str, metadata: TransactionMetadata, timeout_ms: int, expected: Expected | None
) -> CoordinatorResult:
    value = metadata.value
    producer_id, producer_epoch = value.producer_id, value.producer_epoch
    if expected is None or expected.producer_epoch == producer_epoch:
        last_producer_epoch = NO_PRODUCER_EPOCH if expected is None else producer_epoch
        if is_epoch_exhausted(producer_epoch):
            new_id = decisions.environment.producer_ids.take()
            if new_id is None:
                return _refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            producer_id, producer_epoch = new_id, 0
        else:
            producer_epoch += 1
    elif expected.producer_epoch == metadata.last_producer_epoch:
        # Asked once more. Nobody else took over: that would have cleared the last epoch.
        last_producer_epoch = metadata.last_producer_epoch
    else:
        return _refuse(ErrorCode.PRODUCER_FENCED)
    begun = advance(
        value,
        TransactionState.EMPTY,
        decisions.now_ms(),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        start_timestamp_ms=NO_TIMESTAMP_MS,
    )
    response = InitProducerIdResult(ErrorCode.NONE, producer_id, producer_epoch)
    return decisions.decide(transactional_id, begun, response, last_producer_epoch)
