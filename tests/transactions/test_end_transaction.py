"""EndTxn: the decision, what a repetition hears, and that a request that comes late does not end a later transaction."""

import pytest

from tests.transactions.harness import TransactionBench
from tidelog.transactions.end_transaction import EndTransactionResult
from tidelog.wire.errors import ErrorCode

LAST = 2**15 - 2


def test_version_1_keeps_the_epoch() -> None:
    bench = TransactionBench()
    producer = bench.started()
    for is_commit, state in ((True, "COMMIT"), (False, "ABORT")):
        bench.add(producer, ("t", 0), version=0)
        assert bench.end(producer, is_commit, version=0) == EndTransactionResult(ErrorCode.NONE)
        assert bench.state() == f"PREPARE_{state}"
        bench.settle()
        assert bench.state() == f"COMPLETE_{state}"
        assert bench.end(producer, is_commit, version=0) == EndTransactionResult(ErrorCode.NONE), "once more"
        assert bench.value().partitions == ()
    assert bench.written == {("t", 0): [(*producer, True), (*producer, False)]}


def test_version_2_raises_the_epoch_with_every_transaction() -> None:
    bench = TransactionBench()
    producer = bench.started()
    for epoch in range(1, 6):
        bench.add(producer, ("t", 0))
        result = bench.end(producer, epoch % 2 == 0)
        assert result == EndTransactionResult(ErrorCode.NONE, producer[0], epoch)
        bench.settle()
        assert bench.end(producer, epoch % 2 == 0) == result, "a repetition hears the same"
        producer = result.producer_id, result.producer_epoch
    assert [epoch for _, epoch, _ in bench.written["t", 0]] == [1, 2, 3, 4, 5]


def test_the_same_answer_again_also_after_a_restart() -> None:
    bench = TransactionBench()
    producer = bench.started()
    bench.add(producer, ("t", 0))
    result = bench.end(producer, True)
    bench.crash()
    assert bench.end(producer, True).error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.settle()
    bench.crash()
    bench.run_for(1)
    assert bench.end(producer, True) == result
    assert bench.end(producer, False).error is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("late", [True, False])
def test_a_delayed_end_does_not_end_a_later_transaction(late: bool) -> None:
    bench = TransactionBench()
    first = bench.started()
    bench.add(first, ("t", 0))
    second = bench.end(first, late)[1:]
    bench.settle()
    bench.add(second, ("t", 1))
    before = bench.value()
    assert bench.end(first, late).error is ErrorCode.PRODUCER_FENCED
    assert bench.value() == before
    assert bench.end(second, not late).error is ErrorCode.NONE
    bench.settle()
    assert [is_commit for _, _, is_commit in bench.written["t", 1]] == [not late]


def test_a_transaction_without_partitions_can_be_aborted() -> None:
    bench = TransactionBench()
    producer = bench.started()
    result = bench.end(producer, False)
    assert result == EndTransactionResult(ErrorCode.NONE, producer[0], 1)
    assert bench.sendings == []
    bench.settle()
    assert bench.state() == "COMPLETE_ABORT"
    assert bench.value().start_timestamp_ms > 0
    assert bench.end(producer, False) == result
    assert bench.end((producer[0], 1), False) == EndTransactionResult(ErrorCode.NONE, producer[0], 2), "that is another one"


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_next_transaction_may_be_aborted_before_this_one_has_ended(is_commit: bool) -> None:
    """As Java's producer does when it aborts before its first record was sent: it asks again, and is not fenced."""
    bench = TransactionBench()
    producer = bench.started()
    bench.add(producer, ("t", 0))
    following = bench.end(producer, is_commit)[1:]
    assert bench.state().startswith("PREPARE")
    assert bench.end(following, False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.settle()
    assert bench.end(following, False) == EndTransactionResult(ErrorCode.NONE, producer[0], 2)


@pytest.mark.parametrize("is_commit", [True, False])
def test_epochs_that_are_used_up_go_on_with_the_next_producer_id(is_commit: bool) -> None:
    bench = TransactionBench()
    producer_id, _ = bench.started()
    bench.put(bench.value()._replace(producer_epoch=LAST))
    bench.add((producer_id, LAST), ("t", 0))
    result = bench.end((producer_id, LAST), is_commit)
    assert result == EndTransactionResult(ErrorCode.NONE, producer_id + 1, 0)
    assert (bench.value().producer_id, bench.value().producer_epoch) == (producer_id, LAST + 1)
    bench.crash()
    assert bench.end((producer_id, LAST), is_commit).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.end(result[1:], False).error is ErrorCode.CONCURRENT_TRANSACTIONS, "who it is from now on"
    assert bench.add(result[1:], ("t", 0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.settle()
    assert bench.written == {("t", 0): [(producer_id, LAST + 1, is_commit)]}, "the marker is of the old id"
    assert bench.value().next_producer_id == -1
    bench.crash()
    bench.run_for(1)
    assert bench.end((producer_id, LAST), is_commit) == result
    assert bench.end((producer_id, LAST), not is_commit).error is ErrorCode.INVALID_TXN_STATE
    assert bench.add((producer_id + 1, 0), ("t", 0)) is ErrorCode.NONE
    assert bench.end((producer_id, LAST), is_commit).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_clients_of_both_versions_may_share_an_id() -> None:
    bench = TransactionBench()
    producer = bench.started()
    bench.add(producer, ("t", 0))
    assert bench.end(producer, True).producer_epoch == 1
    bench.settle()
    bench.add((producer[0], 1), ("t", 0), version=0)
    assert bench.end((producer[0], 1), True, version=0).error is ErrorCode.NONE
    bench.settle()
    assert bench.value().producer_epoch == 1
    assert bench.end((producer[0], 0), True).error is ErrorCode.NONE, "as in Kafka: one epoch below is taken for a repetition"


def test_version_0_of_the_feature_writes_version_0_of_the_value() -> None:
    bench = TransactionBench(transaction_version=0)
    bench.started()
    with_version_0 = len(bench.log.data)
    bench = TransactionBench()
    bench.started()
    assert len(bench.log.data) != with_version_0
