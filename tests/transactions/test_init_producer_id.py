"""InitProducerId: epochs that rise, zombies that are shut out, ids that are used up, and what a producer may ask for twice."""

import pytest

from tests.transactions.harness import TransactionBench
from tidelog.transactions.coordinator import InitProducerIdRequest, InitProducerIdResult
from tidelog.wire.errors import ErrorCode

LAST = 2**15 - 2


def test_a_new_id_gets_a_producer_id_at_epoch_0_and_the_next_owner_a_higher_epoch() -> None:
    bench = TransactionBench()
    assert bench.init() == InitProducerIdResult(ErrorCode.NONE, 0, 0)
    assert bench.init() == InitProducerIdResult(ErrorCode.NONE, 0, 1)
    assert bench.init("other") == InitProducerIdResult(ErrorCode.NONE, 1, 0)
    bench.crash()
    assert bench.init() == InitProducerIdResult(ErrorCode.NONE, 0, 2)
    assert bench.init("third") == InitProducerIdResult(ErrorCode.NONE, 1000, 0), "ids of the old block are never used"


def test_nobody_hears_of_an_id_before_it_is_committed() -> None:
    bench = TransactionBench()
    answers = bench.begin(lambda machine: machine.init_producer_id(InitProducerIdRequest("id", 60_000)))
    bench.runtime.flush()
    assert answers == []
    bench.log.commit()
    assert answers == [InitProducerIdResult(ErrorCode.NONE, 0, 0)]


def test_a_zombie_can_do_nothing_after_another_producer_took_over() -> None:
    bench = TransactionBench()
    zombie = bench.started()
    owner = bench.started()
    assert bench.add(zombie, ("t", 0)) is ErrorCode.PRODUCER_FENCED
    assert bench.end(zombie, True, version=0).error is ErrorCode.PRODUCER_FENCED
    assert bench.end(zombie, True).error is ErrorCode.PRODUCER_FENCED
    assert bench.init(producer=zombie).error is ErrorCode.PRODUCER_FENCED
    assert bench.add(owner, ("t", 0)) is ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_ongoing_transaction_is_aborted_first_under_an_epoch_that_nobody_gets(version: int) -> None:
    bench = TransactionBench(transaction_version=version)
    zombie = bench.started()
    assert bench.add(zombie, ("t", 0), ("t", 1)) is ErrorCode.NONE
    assert bench.init() == InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert bench.state() == "PREPARE_ABORT"
    assert bench.add(zombie, ("t", 2)) is ErrorCode.PRODUCER_FENCED
    assert bench.init() == InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    bench.settle()
    assert bench.state() == "COMPLETE_ABORT"
    assert bench.written == {("t", 0): [(0, 1, False)], ("t", 1): [(0, 1, False)]}
    assert bench.init() == InitProducerIdResult(ErrorCode.NONE, 0, 2)


def test_a_producer_that_goes_on_after_an_error_may_ask_twice() -> None:
    bench = TransactionBench()
    producer = bench.started()
    raised = InitProducerIdResult(ErrorCode.NONE, 0, 1)
    assert bench.init(producer=producer) == raised
    assert bench.init(producer=producer) == raised, "it did not hear the first answer"
    assert bench.init(producer=(0, 1)) == InitProducerIdResult(ErrorCode.NONE, 0, 2)
    assert bench.init(producer=producer) == InitProducerIdResult(ErrorCode.PRODUCER_FENCED)


def test_a_repetition_over_a_restart_is_fenced_as_in_kafka() -> None:
    bench = TransactionBench()
    producer = bench.started()
    bench.init(producer=producer)
    bench.crash()
    assert bench.init(producer=producer) == InitProducerIdResult(ErrorCode.PRODUCER_FENCED)


def test_a_new_owner_ends_the_right_to_repeat() -> None:
    bench = TransactionBench()
    producer = bench.started()
    bench.init(producer=producer)
    bench.init()
    assert bench.init(producer=producer) == InitProducerIdResult(ErrorCode.PRODUCER_FENCED)


def test_an_unknown_id_with_a_producer_gets_a_new_producer_id() -> None:
    bench = TransactionBench()
    assert bench.init(producer=(4711, 3)) == InitProducerIdResult(ErrorCode.NONE, 0, 0)


@pytest.mark.parametrize(
    ("version", "answer"),
    [(0, InitProducerIdResult(ErrorCode.PRODUCER_FENCED)), (2, InitProducerIdResult(ErrorCode.NONE, 0, 1))],
)
def test_with_version_2_a_producer_whose_transaction_timed_out_goes_on(version: int, answer: InitProducerIdResult) -> None:
    bench = TransactionBench(transaction_version=version)
    producer = bench.started()
    bench.add(producer, ("t", 0))
    bench.run_for(80_000)
    bench.settle()
    assert bench.init(producer=producer) == answer


def test_an_owner_begins_without_anything_of_the_transaction_before() -> None:
    bench = TransactionBench()
    producer = bench.started()
    bench.add(producer, ("t", 0))
    bench.end(producer, True)
    bench.settle()
    assert bench.value().start_timestamp_ms > 0
    bench.init()
    assert bench.value().start_timestamp_ms == -1
    assert bench.value().partitions == ()


def test_the_time_out_is_that_of_the_last_owner() -> None:
    bench = TransactionBench()
    bench.init(timeout_ms=1000)
    bench.init(timeout_ms=2000)
    assert bench.value().timeout_ms == 2000


@pytest.mark.parametrize("is_named", [False, True])
def test_when_the_epochs_are_used_up_a_new_producer_id_follows(is_named: bool) -> None:
    bench = TransactionBench()
    bench.started()
    bench.put(bench.value()._replace(producer_epoch=LAST - 1))
    assert bench.init(producer=(0, LAST - 1) if is_named else (-1, -1)) == InitProducerIdResult(ErrorCode.NONE, 0, LAST)
    assert bench.init(producer=(0, LAST) if is_named else (-1, -1)) == InitProducerIdResult(ErrorCode.NONE, 1, 0)
    repeated = bench.init(producer=(0, LAST))
    assert repeated == (
        InitProducerIdResult(ErrorCode.NONE, 1, 0) if is_named else InitProducerIdResult(ErrorCode.PRODUCER_FENCED)
    )
    for epoch in (LAST - 1, 0, 1):
        assert bench.init(producer=(0, epoch)) == InitProducerIdResult(ErrorCode.PRODUCER_FENCED)


def test_a_repetition_that_led_to_the_last_epoch_gets_it_again() -> None:
    bench = TransactionBench()
    bench.started()
    bench.put(bench.value()._replace(producer_epoch=LAST - 1))
    assert bench.init(producer=(0, LAST - 1)) == InitProducerIdResult(ErrorCode.NONE, 0, LAST)
    assert bench.init(producer=(0, LAST - 1)) == InitProducerIdResult(ErrorCode.NONE, 0, LAST)


@pytest.mark.parametrize("version", [0, 2])
def test_a_producer_with_the_last_epoch_can_still_be_fenced(version: int) -> None:
    bench = TransactionBench(transaction_version=version)
    bench.started()
    bench.put(bench.value()._replace(producer_epoch=LAST))
    assert bench.add((0, LAST), ("t", 0)) is ErrorCode.NONE
    assert bench.init() == InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert bench.value().producer_epoch == LAST + 1
    bench.settle()
    assert bench.written == {("t", 0): [(0, LAST + 1, False)]}
    found = bench.init()
    assert found.error is ErrorCode.NONE
    assert found.producer_id == 1
