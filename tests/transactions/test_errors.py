"""The error code for each wrong turn: one table, after Kafka 4.3. A value is put into the log, then one request is made."""

import pytest

from tests.transactions.harness import TIMEOUT_MS, TransactionBench
from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.transactions.coordinator import (
    InitProducerIdRequest,
    InitProducerIdResult,
    TransactionPartitions,
    offsets_partition,
)
from tidelog.transactions.end_transaction import EndTransactionResult
from tidelog.transactions.records import TransactionTopic, TransactionValue
from tidelog.transactions.state import TransactionState
from tidelog.wire.end_txn import EndTxnRequest
from tidelog.wire.errors import ErrorCode

S = TransactionState
E = ErrorCode
PID = 77
EPOCH = 5
NOW = (PID, EPOCH)
RETRY = (PID, EPOCH - 1)
LATER = (PID, EPOCH + 1)
OTHER = (PID + 1, EPOCH)
LAST = 2**15 - 2
PARTITIONS = (TransactionTopic("t", (0, 1)),)


def value(state: TransactionState, producer_epoch: int = EPOCH) -> TransactionValue:
    has_partitions = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    return TransactionValue(
        producer_id=PID,
        previous_producer_id=PID,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=producer_epoch,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=TIMEOUT_MS,
        state=state,
        partitions=PARTITIONS if has_partitions else (),
        last_update_timestamp_ms=1_704_067_200_000,
        start_timestamp_ms=-1 if state is S.EMPTY else 1_704_067_200_000,
        client_transaction_version=2,
    )


# State, id and epoch, commit?, version, answer.
END = [
    # Transactions v1: strictly the current epoch; an end that was reached is answered once more.
    (S.EMPTY, NOW, True, 0, E.INVALID_TXN_STATE),
    (S.EMPTY, NOW, False, 0, E.INVALID_TXN_STATE),
    (S.ONGOING, NOW, True, 0, E.NONE),
    (S.ONGOING, NOW, False, 0, E.NONE),
    (S.ONGOING, RETRY, True, 0, E.PRODUCER_FENCED),
    (S.ONGOING, LATER, True, 0, E.PRODUCER_FENCED),
    (S.ONGOING, OTHER, True, 0, E.INVALID_PRODUCER_ID_MAPPING),
    (S.PREPARE_COMMIT, NOW, True, 0, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_COMMIT, NOW, False, 0, E.INVALID_TXN_STATE),
    (S.PREPARE_ABORT, NOW, True, 0, E.INVALID_TXN_STATE),
    (S.PREPARE_ABORT, NOW, False, 0, E.CONCURRENT_TRANSACTIONS),
    (S.COMPLETE_COMMIT, NOW, True, 0, E.NONE),
    (S.COMPLETE_COMMIT, NOW, False, 0, E.INVALID_TXN_STATE),
    (S.COMPLETE_COMMIT, RETRY, True, 0, E.PRODUCER_FENCED),
    (S.COMPLETE_ABORT, NOW, True, 0, E.INVALID_TXN_STATE),
    (S.COMPLETE_ABORT, NOW, False, 0, E.NONE),
    # Transactions v2: the epoch says which transaction is meant.
    (S.EMPTY, RETRY, False, 2, E.PRODUCER_FENCED),
    (S.EMPTY, RETRY, True, 2, E.PRODUCER_FENCED),
    (S.EMPTY, NOW, False, 2, E.NONE),
    (S.EMPTY, NOW, True, 2, E.INVALID_TXN_STATE),
    (S.EMPTY, OTHER, False, 2, E.INVALID_PRODUCER_ID_MAPPING),
    (S.ONGOING, NOW, True, 2, E.NONE),
    (S.ONGOING, NOW, False, 2, E.NONE),
    (S.ONGOING, RETRY, True, 2, E.PRODUCER_FENCED),
    (S.ONGOING, RETRY, False, 2, E.PRODUCER_FENCED),
    (S.ONGOING, LATER, True, 2, E.PRODUCER_FENCED),
    (S.ONGOING, OTHER, True, 2, E.INVALID_PRODUCER_ID_MAPPING),
    (S.PREPARE_COMMIT, RETRY, True, 2, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_COMMIT, RETRY, False, 2, E.INVALID_TXN_STATE),
    # About the next transaction, too early: on Kafka the end of this one is always pending by then, which is told the same way.
    (S.PREPARE_COMMIT, NOW, True, 2, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_COMMIT, NOW, False, 2, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_ABORT, RETRY, False, 2, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_ABORT, RETRY, True, 2, E.INVALID_TXN_STATE),
    (S.PREPARE_ABORT, NOW, False, 2, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_ABORT, LATER, False, 2, E.PRODUCER_FENCED),
    (S.COMPLETE_COMMIT, RETRY, True, 2, E.NONE),
    (S.COMPLETE_COMMIT, RETRY, False, 2, E.INVALID_TXN_STATE),
    (S.COMPLETE_COMMIT, NOW, True, 2, E.INVALID_TXN_STATE),
    (S.COMPLETE_COMMIT, NOW, False, 2, E.NONE),
    (S.COMPLETE_COMMIT, LATER, True, 2, E.PRODUCER_FENCED),
    (S.COMPLETE_COMMIT, (PID, EPOCH - 2), True, 2, E.PRODUCER_FENCED),
    (S.COMPLETE_ABORT, RETRY, False, 2, E.NONE),
    (S.COMPLETE_ABORT, RETRY, True, 2, E.INVALID_TXN_STATE),
    (S.COMPLETE_ABORT, NOW, True, 2, E.INVALID_TXN_STATE),
    (S.COMPLETE_ABORT, NOW, False, 2, E.NONE),
    (S.COMPLETE_ABORT, OTHER, False, 2, E.INVALID_PRODUCER_ID_MAPPING),
]


@pytest.mark.parametrize(("state", "producer", "is_commit", "version", "error"), END)
def test_end_txn(
    bench: TransactionBench, state: TransactionState, producer: tuple[int, int], is_commit: bool, version: int, error: ErrorCode
) -> None:
    before = value(state)
    bench.put(before)
    result = bench.end(producer, is_commit, version=version)
    assert result.error is error
    if error is not E.NONE:
        assert result == EndTransactionResult(error)
        assert bench.value() == before
    elif version < 2:
        assert result == EndTransactionResult(E.NONE)
    else:
        # A repetition hears what is there; a new end raises the epoch.
        assert result == EndTransactionResult(E.NONE, PID, EPOCH if producer == RETRY else EPOCH + 1)


# State, id and epoch, answer.
ADD = [
    (S.EMPTY, NOW, E.NONE),
    (S.ONGOING, NOW, E.NONE),
    (S.COMPLETE_COMMIT, NOW, E.NONE),
    (S.COMPLETE_ABORT, NOW, E.NONE),
    (S.PREPARE_COMMIT, NOW, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_ABORT, NOW, E.CONCURRENT_TRANSACTIONS),
    (S.ONGOING, RETRY, E.PRODUCER_FENCED),
    (S.ONGOING, LATER, E.PRODUCER_FENCED),
    (S.PREPARE_COMMIT, RETRY, E.PRODUCER_FENCED),
    (S.ONGOING, OTHER, E.INVALID_PRODUCER_ID_MAPPING),
    (S.PREPARE_ABORT, OTHER, E.INVALID_PRODUCER_ID_MAPPING),
]


@pytest.mark.parametrize("by_offsets", [False, True])
@pytest.mark.parametrize(("state", "producer", "error"), ADD)
def test_add_partitions_to_txn(
    bench: TransactionBench, state: TransactionState, producer: tuple[int, int], error: ErrorCode, by_offsets: bool
) -> None:
    bench.put(value(state))
    if by_offsets:
        assert (
            bench.call(
                lambda machine: machine.add_partitions(TransactionPartitions("id", *producer, [offsets_partition("group", 50)]))
            )
            is error
        )
    else:
        assert bench.add(producer, ("t", 1), ("u", 0)) is error
    assert (bench.value().state is S.ONGOING) == (error is E.NONE or state is S.ONGOING)


# State, id and epoch, what is heard for a partition that was added and for one that was not.
VERIFY = [
    (S.EMPTY, NOW, E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
    (S.ONGOING, NOW, E.NONE, E.TRANSACTION_ABORTABLE),
    (S.COMPLETE_COMMIT, NOW, E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
    (S.PREPARE_COMMIT, NOW, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_ABORT, NOW, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
    (S.ONGOING, RETRY, E.PRODUCER_FENCED, E.PRODUCER_FENCED),
    (S.ONGOING, LATER, E.PRODUCER_FENCED, E.PRODUCER_FENCED),
    (S.ONGOING, OTHER, E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_ID_MAPPING),
]


@pytest.mark.parametrize(("state", "producer", "added", "not_added"), VERIFY)
def test_verify_only(
    bench: TransactionBench, state: TransactionState, producer: tuple[int, int], added: ErrorCode, not_added: ErrorCode
) -> None:
    before = value(state)
    bench.put(before)
    found = bench.machine.verify_partitions(TransactionPartitions("id", *producer, [("t", 1), ("t", 2), ("u", 1)]))
    assert found == {("t", 1): added, ("t", 2): not_added, ("u", 1): not_added}
    assert bench.value() == before


# State, id and epoch that the producer names, answer.
INIT = [
    (S.EMPTY, (-1, -1), E.NONE),
    (S.COMPLETE_COMMIT, (-1, -1), E.NONE),
    (S.COMPLETE_ABORT, NOW, E.NONE),
    (S.ONGOING, (-1, -1), E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_COMMIT, (-1, -1), E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_ABORT, (-1, -1), E.CONCURRENT_TRANSACTIONS),
    (S.EMPTY, RETRY, E.PRODUCER_FENCED),
    (S.EMPTY, LATER, E.PRODUCER_FENCED),
    (S.EMPTY, OTHER, E.PRODUCER_FENCED),
    (S.PREPARE_ABORT, OTHER, E.PRODUCER_FENCED),
    (S.EMPTY, (PID, -1), E.INVALID_REQUEST),
    (S.EMPTY, (-1, EPOCH), E.INVALID_REQUEST),
]


@pytest.mark.parametrize(("state", "producer", "error"), INIT)
def test_init_producer_id(bench: TransactionBench, state: TransactionState, producer: tuple[int, int], error: ErrorCode) -> None:
    bench.put(value(state))
    result = bench.init(producer=producer)
    assert result == (InitProducerIdResult(E.NONE, PID, EPOCH + 1) if error is E.NONE else InitProducerIdResult(error))


@pytest.mark.parametrize(
    ("timeout_ms", "error"),
    [
        (900_000, E.NONE),
        (1, E.NONE),
        (900_001, E.INVALID_TRANSACTION_TIMEOUT),
        (0, E.INVALID_TRANSACTION_TIMEOUT),
        (-1, E.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_time_outs_have_bounds(timeout_ms: int, error: ErrorCode) -> None:
    assert TransactionBench().init(timeout_ms=timeout_ms).error is error


def test_an_id_that_is_not_known(bench: TransactionBench) -> None:
    assert bench.add(NOW, ("t", 0)) is E.INVALID_PRODUCER_ID_MAPPING
    assert bench.end(NOW, True) == EndTransactionResult(E.INVALID_PRODUCER_ID_MAPPING)
    assert bench.end(NOW, True, version=0) == EndTransactionResult(E.INVALID_PRODUCER_ID_MAPPING)
    assert bench.machine.verify_partitions(TransactionPartitions("id", *NOW, [("t", 0)])) == {
        ("t", 0): E.INVALID_PRODUCER_ID_MAPPING
    }
    assert bench.machine.describe_transaction("id") is None


def test_an_empty_id(bench: TransactionBench) -> None:
    assert bench.init("").error is E.INVALID_REQUEST
    assert bench.add(NOW, ("t", 0), transactional_id="") is E.INVALID_REQUEST
    assert bench.end(NOW, True, "").error is E.INVALID_REQUEST
    assert bench.machine.verify_partitions(TransactionPartitions("", *NOW, [("t", 0)])) == {("t", 0): E.INVALID_REQUEST}


def test_while_a_decision_is_not_committed_others_are_told_to_come_again(bench: TransactionBench) -> None:
    bench.put(value(S.COMPLETE_COMMIT))
    first = bench.begin(lambda machine: machine.init_producer_id(InitProducerIdRequest("id", TIMEOUT_MS)))
    others = [
        bench.begin(lambda machine: machine.init_producer_id(InitProducerIdRequest("id", TIMEOUT_MS))),
        bench.begin(lambda machine: machine.add_partitions(TransactionPartitions("id", *LATER, [("t", 0)]), 2)),
        bench.begin(lambda machine: machine.ends.end(EndTxnRequest("id", *NOW, True), 2)),
        bench.begin(lambda machine: machine.ends.end(EndTxnRequest("id", *NOW, True), 0)),
        # Version 1 looks at what is committed first.
        bench.begin(lambda machine: machine.ends.end(EndTxnRequest("id", *RETRY, True), 0)),
        bench.begin(lambda machine: machine.ends.end(EndTxnRequest("id", *OTHER, True), 0)),
    ]
    assert first == []
    assert all(answers == [] for answers in others)
    bench.commit()
    assert first == [InitProducerIdResult(E.NONE, PID, EPOCH + 1)]
    assert [answers[0] if isinstance(answers[0], ErrorCode) else answers[0].error for answers in others] == [
        E.CONCURRENT_TRANSACTIONS,
        E.CONCURRENT_TRANSACTIONS,
        E.CONCURRENT_TRANSACTIONS,
        E.CONCURRENT_TRANSACTIONS,
        E.PRODUCER_FENCED,
        E.INVALID_PRODUCER_ID_MAPPING,
    ]
    assert bench.add(LATER, ("t", 0)) is E.NONE


def test_a_new_id_whose_first_record_is_not_committed(bench: TransactionBench) -> None:
    bench.begin(lambda machine: machine.init_producer_id(InitProducerIdRequest("id", TIMEOUT_MS)))
    answers = bench.begin(lambda machine: machine.ends.end(EndTxnRequest("id", 0, 0, True), 0))
    bench.commit()
    assert answers == [EndTransactionResult(E.INVALID_PRODUCER_ID_MAPPING)]


def test_without_producer_ids_the_coordinator_is_still_loading(bench: TransactionBench) -> None:
    bench.has_blocks = False
    assert bench.init() == InitProducerIdResult(E.COORDINATOR_LOAD_IN_PROGRESS)
    bench.put(value(S.ONGOING, producer_epoch=LAST))
    before = bench.value()
    assert bench.end((PID, LAST), True) == EndTransactionResult(E.COORDINATOR_LOAD_IN_PROGRESS)
    assert bench.init() == InitProducerIdResult(E.COORDINATOR_LOAD_IN_PROGRESS)
    assert bench.value() == before
    bench.put(value(S.EMPTY, producer_epoch=LAST), "empty")
    assert bench.init("empty") == InitProducerIdResult(E.COORDINATOR_LOAD_IN_PROGRESS)


def test_there_are_only_so_many_ids() -> None:
    bench = TransactionBench({"tidelog.transactional.ids.max": "2"})
    assert [bench.init(name).error for name in ("a", "b", "c", "a")] == [E.NONE, E.NONE, E.POLICY_VIOLATION, E.NONE]
