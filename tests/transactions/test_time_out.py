"""Transactions that are open for too long are aborted, and their producers fenced."""

import pytest

from tests.transactions.harness import TransactionBench
from tidelog.transactions.coordinator import ABORTS_PER_SLICE, TransactionPartitions
from tidelog.transactions.end_transaction import EndTransactionResult
from tidelog.wire.errors import ErrorCode

SWEEP_MS = 10_000


@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_is_aborted_when_its_time_is_up(version: int) -> None:
    bench = TransactionBench(transaction_version=version)
    bench.init(timeout_ms=25_000)
    producer = (0, 0)
    bench.run_for(3_000)
    bench.add(producer, ("t", 0), version=0)
    bench.run_for(24_000)
    assert bench.state() == "ONGOING"
    bench.run_for(SWEEP_MS)
    assert bench.state() == "PREPARE_ABORT"
    bench.settle()
    assert bench.state() == "COMPLETE_ABORT"
    assert bench.written == {("t", 0): [(0, 1, False)]}
    assert bench.end(producer, True, version=0).error is ErrorCode.PRODUCER_FENCED
    assert bench.add(producer, ("t", 0)) is ErrorCode.PRODUCER_FENCED
    assert ("transactions_timed_out", {"count": 1, "first": "id"}) in bench.events


def test_a_client_of_version_2_that_aborts_late_goes_on() -> None:
    bench = TransactionBench()
    producer = bench.started()
    bench.add(producer, ("t", 0))
    bench.run_for(80_000)
    bench.settle()
    assert bench.end(producer, True).error is ErrorCode.INVALID_TXN_STATE
    assert bench.end(producer, False) == EndTransactionResult(ErrorCode.NONE, producer[0], 1)
    assert bench.add((producer[0], 1), ("t", 0)) is ErrorCode.NONE


def test_the_time_counts_from_the_first_partition_also_over_a_restart() -> None:
    bench = TransactionBench()
    producer = bench.started()
    bench.run_for(100_000)
    bench.add(producer, ("t", 0))
    bench.run_for(40_000)
    bench.add(producer, ("t", 1))
    bench.crash()
    bench.run_for(11_000)
    assert bench.state() == "ONGOING"
    bench.run_for(20_000)
    assert bench.state() == "PREPARE_ABORT"


def test_others_are_left_alone() -> None:
    bench = TransactionBench()
    for name in ("empty", "done", "short", "long"):
        bench.init(name, timeout_ms=20_000 if name != "long" else 200_000)
    for index, name in enumerate(("done", "short", "long"), 1):
        bench.add((index, 0), ("t", index), transactional_id=name)
    bench.end((1, 0), True, "done")
    bench.settle()
    bench.run_for(60_000)
    states = {name: bench.state(name) for name in ("empty", "done", "short", "long")}
    assert states == {"empty": "EMPTY", "done": "COMPLETE_COMMIT", "short": "PREPARE_ABORT", "long": "ONGOING"}


def test_many_at_once_are_aborted_in_parts() -> None:
    bench = TransactionBench()
    count = 3 * ABORTS_PER_SLICE + 1
    for index in range(count):
        name = f"id-{index}"
        assert bench.init(name, timeout_ms=1000).error is ErrorCode.NONE
        bench.add((index, 0), ("t", index), transactional_id=name)
    bench.run_for(2 * SWEEP_MS)
    bench.settle()
    assert {bench.state(f"id-{index}") for index in range(count)} == {"COMPLETE_ABORT"}
    assert all(markers == [(partition, 1, False)] for (_, partition), markers in bench.written.items())


def test_one_that_has_something_pending_waits_for_the_next_sweep() -> None:
    bench = TransactionBench()
    bench.init(timeout_ms=1000)
    bench.add((0, 0), ("t", 0))
    bench.scheduler.run_for((SWEEP_MS - 1000) * 1000)
    bench.begin(lambda machine: machine.add_partitions(TransactionPartitions("id", 0, 0, [("t", 1)]), 2))
    bench.scheduler.run_for(2_000_000)
    assert bench.state() == "ONGOING"
    bench.commit()
    bench.run_for(SWEEP_MS)
    assert bench.state() == "PREPARE_ABORT"


def test_the_end_of_the_epochs_does_not_stop_a_time_out() -> None:
    bench = TransactionBench()
    bench.init()
    bench.put(bench.value()._replace(producer_epoch=2**15 - 2))
    bench.add((0, 2**15 - 2), ("t", 0))
    bench.has_blocks = False
    bench.producer_ids._blocks.clear()
    bench.run_for(80_000)
    assert bench.state() == "ONGOING"
    bench.has_blocks = True
    bench.run_for(SWEEP_MS)
    bench.settle()
    assert bench.state() == "COMPLETE_ABORT"
    assert bench.value().producer_epoch == 0
    assert bench.value().producer_id >= 1000
