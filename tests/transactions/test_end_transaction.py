"""How a transaction ends: the decision, what a retry gets, and markers to every partition, whatever fails in between."""

from typing import Any

import pytest

from tests.transactions.harness import TransactionBench
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.coordinator import InitProducerIdRequest, TransactionPartitions
from tidelog.transactions.end_transaction import COMPLETE_MS, COMPLETED_PER_SLICE, EndTransactionResult, transaction_marker
from tidelog.transactions.records import TransactionTopic
from tidelog.wire.end_txn import EndTxnRequest
from tidelog.wire.errors import ErrorCode

LAST = 2**15 - 2


def test_version_1_keeps_the_epoch(bench: TransactionBench, producer: tuple[int, int]) -> None:
    for is_commit, state in ((True, "COMMIT"), (False, "ABORT")):
        bench.add(producer, ("t", 0), version=0)
        assert bench.end(producer, is_commit, version=0) == EndTransactionResult(ErrorCode.NONE)
        assert bench.state() == f"PREPARE_{state}"
        bench.settle()
        assert bench.state() == f"COMPLETE_{state}"
        assert bench.end(producer, is_commit, version=0) == EndTransactionResult(ErrorCode.NONE), "once more"
        assert bench.value().partitions == ()
    assert bench.written == {("t", 0): [(*producer, True), (*producer, False)]}


def test_version_2_raises_the_epoch_with_every_transaction(bench: TransactionBench, producer: tuple[int, int]) -> None:
    for epoch in range(1, 6):
        bench.add(producer, ("t", 0))
        result = bench.end(producer, epoch % 2 == 0)
        assert result == EndTransactionResult(ErrorCode.NONE, producer[0], epoch)
        bench.settle()
        assert bench.end(producer, epoch % 2 == 0) == result, "a repetition hears the same"
        producer = result.producer_id, result.producer_epoch
    assert [epoch for _, epoch, _ in bench.written["t", 0]] == [1, 2, 3, 4, 5]


def test_the_same_answer_again_also_after_a_restart(bench: TransactionBench, producer: tuple[int, int]) -> None:
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
def test_a_delayed_end_does_not_end_a_later_transaction(bench: TransactionBench, late: bool) -> None:
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


def test_a_transaction_without_partitions_can_be_aborted(bench: TransactionBench, producer: tuple[int, int]) -> None:
    result = bench.end(producer, False)
    assert result == EndTransactionResult(ErrorCode.NONE, producer[0], 1)
    assert bench.sendings == []
    bench.settle()
    assert bench.state() == "COMPLETE_ABORT"
    assert bench.value().start_timestamp_ms > 0
    assert bench.end(producer, False) == result
    assert bench.end((producer[0], 1), False) == EndTransactionResult(ErrorCode.NONE, producer[0], 2), "that is another one"


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_next_transaction_may_be_aborted_before_this_one_has_ended(
    bench: TransactionBench, producer: tuple[int, int], is_commit: bool
) -> None:
    """As Java's producer does when it aborts before its first record was sent: it asks again, and is not fenced."""
    bench.add(producer, ("t", 0))
    following = bench.end(producer, is_commit)[1:]
    assert bench.state().startswith("PREPARE")
    assert bench.end(following, False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.settle()
    assert bench.end(following, False) == EndTransactionResult(ErrorCode.NONE, producer[0], 2)


@pytest.mark.parametrize("is_commit", [True, False])
def test_epochs_that_are_used_up_go_on_with_the_next_producer_id(bench: TransactionBench, is_commit: bool) -> None:
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


def test_clients_of_both_versions_may_share_an_id(bench: TransactionBench, producer: tuple[int, int]) -> None:
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


# -- markers -----------------------------------------------------------------------------------------------------------------

HUNDRED: list[TopicPartition] = [(f"topic-{index % 5}", index // 5) for index in range(100)]


def committing(version: int = 2, *, is_commit: bool = True) -> tuple[TransactionBench, tuple[int, int]]:
    """A transaction over a hundred partitions whose end is decided."""
    bench = TransactionBench()
    producer = bench.started()
    assert bench.add(producer, *HUNDRED, version=version) is ErrorCode.NONE
    assert bench.end(producer, is_commit, version=version).error is ErrorCode.NONE
    return bench, producer


def test_what_is_sent() -> None:
    bench, (producer_id, producer_epoch) = committing()
    (sending,) = bench.sendings
    assert sending.markers.marker == transaction_marker(
        producer_id, producer_epoch + 1, is_commit=True, coordinator_epoch=0, transaction_version=2
    )
    assert set(sending.markers.remaining) == set(HUNDRED)


def test_no_marker_before_the_decision_is_committed(bench: TransactionBench, producer: tuple[int, int]) -> None:
    bench.add(producer, ("t", 0))
    answers = bench.begin(lambda machine: machine.ends.end(EndTxnRequest("id", *producer, True), 2))
    bench.runtime.flush()
    bench.scheduler.run_for(5000)
    assert bench.sendings == []
    assert answers == []
    bench.log.commit()
    assert len(bench.sendings) == 1
    assert answers[0].error is ErrorCode.NONE


def test_no_marker_of_a_decision_that_was_loaded_but_is_not_committed(bench: TransactionBench, producer: tuple[int, int]) -> None:
    bench.add(producer, ("t", 0))
    bench.begin(lambda machine: machine.ends.end(EndTxnRequest("id", *producer, True), 2))
    bench.runtime.flush()
    bench.crash()
    bench.scheduler.run_for(5000)
    assert bench.state() == "PREPARE_COMMIT"
    assert bench.sendings == []
    bench.log.commit()
    assert len(bench.sendings) == 1


def test_a_decision_that_was_lost_sends_nothing(bench: TransactionBench, producer: tuple[int, int]) -> None:
    bench.add(producer, ("t", 0))
    bench.begin(lambda machine: machine.ends.end(EndTxnRequest("id", *producer, True), 2))
    bench.runtime.flush()
    bench.crash(keeps_uncommitted=False)
    bench.run_for(1)
    assert bench.state() == "ONGOING"
    assert bench.sendings == []


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_crash_after_each_single_marker_ends_with_the_same_outcome_on_all(version: int, is_commit: bool) -> None:
    for delivered in range(101):
        bench, _ = committing(version, is_commit=is_commit)
        bench.sendings[0].deliver(delivered)
        bench.crash()
        bench.settle()
        assert bench.state() == ("COMPLETE_COMMIT" if is_commit else "COMPLETE_ABORT")
        assert sorted(bench.written) == sorted(HUNDRED)
        epoch = 1 if version == 2 else 0
        for markers in bench.written.values():
            assert set(markers) == {(0, epoch, is_commit)}


def test_crashes_between_all_markers_of_one_transaction() -> None:
    bench, producer = committing()
    for _ in range(100):
        bench.sendings[0].deliver(1)
        bench.crash(keeps_uncommitted=False)
        bench.run_for(1)
        assert bench.add((producer[0], 1), ("t", 0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.settle()
    assert bench.state() == "COMPLETE_COMMIT"
    assert set(bench.written[HUNDRED[0]]) == {(0, 1, True)}
    assert bench.add((producer[0], 1), ("t", 0)) is ErrorCode.NONE


def test_the_end_is_written_when_the_last_partition_has_its_marker() -> None:
    bench, producer = committing()
    (sending,) = bench.sendings
    sending.deliver(99)
    bench.run_for(COMPLETE_MS + 1)
    assert bench.state() == "PREPARE_COMMIT"
    described = bench.machine.describe_transaction("id")
    assert described is not None
    assert described.partitions == (TransactionTopic("topic-4", (19,)),)
    assert bench.end(producer, True).error is ErrorCode.CONCURRENT_TRANSACTIONS
    sending.deliver()
    bench.run_for(COMPLETE_MS + 1)
    assert bench.state() == "COMPLETE_COMMIT"
    assert len(bench.machine.ends) == 0


def test_a_crash_before_the_end_is_committed_sends_all_again() -> None:
    bench, _ = committing()
    bench.sendings[0].deliver(100)
    bench.scheduler.run_for((COMPLETE_MS + 1) * 1000)
    bench.runtime.flush()
    assert bench.state() == "COMPLETE_COMMIT"
    bench.crash(keeps_uncommitted=False)
    assert bench.state() == "PREPARE_COMMIT"
    bench.run_for(1)
    bench.settle()
    assert bench.state() == "COMPLETE_COMMIT"
    assert all(markers == [(0, 1, True)] * 2 for markers in bench.written.values())


def test_a_dropped_shard_cancels_what_it_sends_and_hears_no_more_of_it() -> None:
    bench, _ = committing()
    (old,) = bench.sendings
    old.deliver(40)
    bench.shard.drop(OSError("no disk"))
    assert old.markers.is_cancelled
    bench.run_for(1000)
    (new,) = bench.sendings
    assert new is not old
    for partition in list(old.left):
        old.markers.written(partition)
    bench.run_for(COMPLETE_MS + 1)
    assert bench.state() == "PREPARE_COMMIT"
    assert [event for event, _ in bench.events] == ["coordinator_shard_dropped"]
    new.deliver(100)
    bench.run_for(COMPLETE_MS + 1)
    assert bench.state() == "COMPLETE_COMMIT"


def test_an_end_that_was_committed_in_the_moment_of_the_drop_is_left_to_the_next_load(
    bench: TransactionBench, producer: tuple[int, int]
) -> None:
    bench.add(producer, ("t", 0))
    bench.shard.write(
        lambda machine: machine.init_producer_id(InitProducerIdRequest("other", 1000)),
        lambda *_: bench.shard.drop(OSError("no disk")),
    )
    bench.begin(lambda machine: machine.ends.end(EndTxnRequest("id", *producer, True), 2))
    bench.commit()
    assert bench.sendings == []
    bench.run_for(1000)
    assert len(bench.sendings) == 1


def test_a_partition_that_is_told_twice_counts_once() -> None:
    bench, _ = committing()
    (sending,) = bench.sendings
    for _ in range(100):
        sending.markers.written(HUNDRED[0])
    bench.run_for(COMPLETE_MS + 1)
    assert bench.state() == "PREPARE_COMMIT"


def test_who_waits_for_the_end_is_told() -> None:
    bench, producer = committing()
    heard: list[Any] = []
    assert bench.machine.ends.when_ended("id", heard.append)
    assert bench.machine.ends.when_ended("id", heard.append)
    assert not bench.machine.ends.when_ended("other", heard.append)
    bench.sendings[0].deliver(99)
    assert heard == []
    bench.sendings[0].deliver()
    assert heard == [None, None], "decided, if not committed: whoever goes on waits for the log by itself"
    assert not bench.machine.ends.when_ended("id", heard.append), "nothing to wait for"
    assert bench.add((producer[0], 1), ("t", 0)) is ErrorCode.NONE


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_the_end_and_the_next_begin_are_one_batch(version: int, is_commit: bool, is_early: bool) -> None:
    """Whether it comes before or after the last marker."""
    bench, (producer_id, epoch) = committing(version, is_commit=is_commit)
    if version == 2:
        epoch += 1
    answers: list[Any] = []

    def begin_next(_: Exception | None) -> None:
        bench.shard.write(
            lambda machine: machine.add_partitions(TransactionPartitions("id", producer_id, epoch, [("t", 0)]), version),
            lambda response, error: answers.append(error or response),
        )

    batches = len(bench.log.batches)
    if is_early:
        assert bench.machine.ends.when_ended("id", begin_next)
    bench.sendings[0].deliver(100)
    if not is_early:
        bench.scheduler.run_for(COMPLETE_MS * 500)
        assert bench.state() in ("PREPARE_COMMIT", "PREPARE_ABORT")
        assert bench.machine.ends.when_ended("id", begin_next)
    bench.runtime.flush()
    assert len(bench.log.batches) == batches + 1
    assert bench.state() == "ONGOING"
    assert answers == [], "neither is committed"
    bench.log.commit()
    assert answers == [ErrorCode.NONE]
    assert not bench.machine.is_pending("id")


def test_an_end_that_nobody_waits_for_is_written_after_a_while() -> None:
    bench, _ = committing()
    bench.sendings[0].deliver(100)
    bench.scheduler.run_for(COMPLETE_MS * 1000 - 1000)
    assert bench.state() == "PREPARE_COMMIT"
    assert len(bench.machine.ends) == 0
    bench.scheduler.run_for(2000)
    assert bench.state() == "COMPLETE_COMMIT"


def test_many_ends_are_written_in_slices(bench: TransactionBench) -> None:
    ids = [f"id-{number}" for number in range(2 * COMPLETED_PER_SLICE + 1)]
    for transactional_id in ids:
        producer = bench.started(transactional_id)
        assert bench.add(producer, ("t", 0), transactional_id=transactional_id) is ErrorCode.NONE
        assert bench.end(producer, True, transactional_id).error is ErrorCode.NONE
    while bench.sendings:
        bench.sendings[0].deliver()
    assert {bench.state(each) for each in ids} == {"PREPARE_COMMIT"}
    timers = bench.shard._timers
    timers_max = len(timers) + COMPLETED_PER_SLICE
    while any(bench.state(each) != "COMPLETE_COMMIT" for each in ids):
        assert bench.scheduler.step()
        assert len(timers) <= timers_max
    bench.commit()
    assert not any(bench.machine.is_pending(each) for each in ids)


def test_the_next_begin_is_lost_with_the_end() -> None:
    """Both or neither: what a crash leaves is the decision, and all markers are sent again."""
    bench, (producer_id, epoch) = committing()
    bench.sendings[0].deliver(100)
    bench.scheduler.run_for((COMPLETE_MS + 1) * 1000)
    answers = bench.begin(
        lambda machine: machine.add_partitions(TransactionPartitions("id", producer_id, epoch + 1, [("t", 0)]), 2)
    )
    bench.runtime.flush()
    assert bench.state() == "ONGOING"
    bench.crash(keeps_uncommitted=False)
    assert isinstance(answers[0], Exception)
    assert bench.state() == "PREPARE_COMMIT"
    bench.settle()
    assert bench.state() == "COMPLETE_COMMIT"
    assert all(len(markers) == 2 for markers in bench.written.values())


def test_who_waits_for_the_end_hears_when_the_shard_goes() -> None:
    bench, _ = committing()
    heard: list[Any] = []
    assert bench.machine.ends.when_ended("id", heard.append)
    bench.crash()
    assert len(heard) == 1
    assert isinstance(heard[0], Exception)


def test_the_coordinator_epoch_is_the_one_of_the_sending() -> None:
    bench, _ = committing()
    bench.crash()
    bench.run_for(1)
    assert [sending.markers.marker.control.coordinator_epoch for sending in bench.sendings] == [1]
