"""EndTxn, and the abort that nobody asked for.

Transactions v1: the producer keeps its epoch. A request that comes late cannot be told from one about the next transaction, which
is what KIP-890 is about.

Transactions v2: the decision raises the epoch, so the epoch of a request says which transaction it means. Of the current epoch
it is about the current transaction; one below it is a repetition about the one that is being ended or has ended, and gets the
same answer. Epochs that are used up go on with a new producer id at epoch 0. An abort is taken even when no partition was added,
because such a producer cannot know whether one was:

                     abort               commit
                     repeated  current   repeated  current
    Empty            FENCED    taken     FENCED    INVALID_TXN_STATE
    CompleteAbort    NONE      taken     INVALID   INVALID_TXN_STATE
    CompleteCommit   INVALID   taken     NONE      INVALID_TXN_STATE

While a transaction is being ended (Prepare...), a request about the next one comes too early and is to come again
(CONCURRENT_TRANSACTIONS): a producer may abort the next one before the markers of this one are written.

``fence_and_abort`` ends a transaction for a producer that took over the id, or because its time was up. It always raises the
epoch, so that the producer whose transaction it was can do no more.
"""

from typing import Any

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.transactions.decisions import Decisions, answer
from tidelog.transactions.records import TransactionValue
from tidelog.transactions.results import EndTransactionResult
from tidelog.transactions.state import COMPLETE_STATES, PREPARED_STATES, TransactionState
from tidelog.transactions.transaction import (
    EPOCH_MAX,
    EXHAUSTED_EPOCH_MIN,
    TRANSACTION_VERSION_2,
    TransactionMetadata,
    advance,
    completed,
    is_epoch_exhausted,
    is_of_next_transaction,
)
from tidelog.wire.errors import ErrorCode


def end_transaction(
    decisions: Decisions,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    is_commit: bool,
    transaction_version: int,
) -> CoordinatorResult:
    """The response is an EndTransactionResult. ``transaction_version`` is the client's: 2 from EndTxn v5 on, otherwise 0."""
    if not transactional_id:
        return _refuse(ErrorCode.INVALID_REQUEST)
    metadata = decisions.table.find(transactional_id)
    if metadata is None:
        return _refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if transaction_version >= TRANSACTION_VERSION_2:
        return _end_version_2(decisions, transactional_id, metadata, producer_id, producer_epoch, is_commit)
    return _end_version_1(decisions, transactional_id, metadata, producer_id, producer_epoch, is_commit)


def _refuse(error: ErrorCode) -> CoordinatorResult:
    return answer(EndTransactionResult(error))


def _prepared(is_commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT


def _repeated(state: TransactionState, is_commit: bool) -> ErrorCode:
    """The answer to the same request once more, when the first one is being carried out or is done."""
    if state in PREPARED_STATES:
        return ErrorCode.CONCURRENT_TRANSACTIONS if state is _prepared(is_commit) else ErrorCode.INVALID_TXN_STATE
    is_same = state is (TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT)
    return ErrorCode.NONE if is_same else ErrorCode.INVALID_TXN_STATE


def _end_version_1(
    decisions: Decisions,
    transactional_id: str,
    metadata: TransactionMetadata,
    producer_id: int,
    producer_epoch: int,
    is_commit: bool,
) -> CoordinatorResult:
    # Of whom the id is, is asked of what is committed: a zombie hears that it is one, also while something is pending.
    value = metadata.committed if metadata.pending else metadata.value
    if value is None or value.producer_id != producer_id:
        return _refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if value.producer_epoch != producer_epoch:
        return _refuse(ErrorCode.PRODUCER_FENCED)
    if metadata.pending:
        return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if value.state is not TransactionState.ONGOING:
        is_empty = value.state is TransactionState.EMPTY
        return _refuse(ErrorCode.INVALID_TXN_STATE if is_empty else _repeated(value.state, is_commit))
    ended = advance(
        value, _prepared(is_commit), decisions.now_ms(), next_producer_id=NO_PRODUCER_ID, client_transaction_version=0
    )
    return decisions.decide(transactional_id, ended, EndTransactionResult(ErrorCode.NONE), metadata.last_producer_epoch)


def _end_version_2(
    decisions: Decisions,
    transactional_id: str,
    metadata: TransactionMetadata,
    producer_id: int,
    producer_epoch: int,
    is_commit: bool,
) -> CoordinatorResult:
    if metadata.pending:
        return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    value = metadata.value
    if is_of_next_transaction(value, producer_id, producer_epoch):
        return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_after_overflow = (
        value.previous_producer_id == producer_id and producer_epoch == EXHAUSTED_EPOCH_MIN and value.producer_epoch == 0
    )
    is_repeated = is_after_overflow or value.producer_epoch == producer_epoch + 1
    if value.producer_id != producer_id and not is_after_overflow:
        return _refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if not _is_valid_epoch(value, producer_epoch, is_repeated):
        return _refuse(ErrorCode.PRODUCER_FENCED)
    if value.state in PREPARED_STATES or (value.state in COMPLETE_STATES and is_repeated):
        error = _repeated(value.state, is_commit)
        if error is ErrorCode.NONE:
            return answer(EndTransactionResult(error, value.producer_id, value.producer_epoch))
        return _refuse(error)
    if value.state is not TransactionState.ONGOING and is_commit:
        return _refuse(ErrorCode.INVALID_TXN_STATE)
    ended = _raise_epoch(decisions, value, _prepared(is_commit))
    if ended is None:
        return _refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    after = completed(ended, ended.last_update_timestamp_ms)
    result = EndTransactionResult(ErrorCode.NONE, after.producer_id, after.producer_epoch)
    return decisions.decide(transactional_id, ended, result, value.producer_epoch)


def _is_valid_epoch(value: TransactionValue, producer_epoch: int, is_repeated: bool) -> bool:
    if value.state in PREPARED_STATES:
        return value.producer_epoch == producer_epoch + 1
    if value.state in COMPLETE_STATES and is_repeated:
        return True
    return producer_epoch == value.producer_epoch


def _raise_epoch(decisions: Decisions, value: TransactionValue, state: TransactionState) -> TransactionValue | None:
    """None when a new producer id is needed and there is none yet."""
    next_producer_id: int | None = NO_PRODUCER_ID
    if is_epoch_exhausted(value.producer_epoch):
        next_producer_id = decisions.environment.producer_ids.take()
        if next_producer_id is None:
            return None
    now_ms = decisions.now_ms()
    return advance(
        value,
        state,
        now_ms,
        producer_epoch=min(value.producer_epoch + 1, EPOCH_MAX),
        next_producer_id=next_producer_id,
        # A transaction without a partition has no start of its own, but its end needs one.
        start_timestamp_ms=value.start_timestamp_ms if value.state is TransactionState.ONGOING else now_ms,
        client_transaction_version=TRANSACTION_VERSION_2,
    )


def fence_and_abort(
    decisions: Decisions, transactional_id: str, metadata: TransactionMetadata, response: Any, on_no_id: Any
) -> CoordinatorResult:
    """Shut out the producer of an ongoing transaction, and abort it. ``on_no_id`` is the response when that needs a new producer
    id and there is none yet: nothing was done."""
    value = metadata.value
    if decisions.environment.transaction_version() >= TRANSACTION_VERSION_2:
        fenced = _raise_epoch(decisions, value, TransactionState.PREPARE_ABORT)
        if fenced is None:
            return answer(on_no_id)
        return decisions.decide(transactional_id, fenced, response, value.producer_epoch)
    fenced = advance(
        value,
        TransactionState.PREPARE_ABORT,
        decisions.now_ms(),
        producer_epoch=min(value.producer_epoch + 1, EPOCH_MAX),
        next_producer_id=NO_PRODUCER_ID,
        client_transaction_version=0,
    )
    return decisions.decide(transactional_id, fenced, response, NO_PRODUCER_EPOCH)
