"""Who begins a transaction right after the last one is not told to come again, wherever the end of the last one stands."""

from typing import Any, cast

import pytest

from tests.coordinator.harness import SimulatedTimers
from tests.transactions.harness import TransactionBench
from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.settling import ATTEMPTS_MAX, SETTLE_MS_MAX, Settling
from tidelog.coordinator.machine import CoordinatorResult, OnDone
from tidelog.coordinator.shard import Shard
from tidelog.transactions.machine import TransactionMachine
from tidelog.wire.errors import ErrorCode

PARTITION = ("t", 0)


class OneShard:
    """As much of a CoordinatorService as Settling uses."""

    def __init__(self, bench: TransactionBench) -> None:
        self._bench = bench

    def shard_of(self, key: str) -> Shard[TransactionMachine]:
        return self._bench.shard

    def write(self, key: str, decide: Any, on_done: OnDone) -> None:
        self._bench.shard.write(decide, on_done)


def settling(bench: TransactionBench) -> Settling:
    return Settling(cast(CoordinatorService[TransactionMachine], OneShard(bench)), SimulatedTimers(bench.scheduler))


def begin_next(bench: TransactionBench, producer: tuple[int, int]) -> list[Any]:
    answers: list[Any] = []
    settling(bench).write(
        "id",
        lambda machine: machine.add_partitions("id", *producer, [PARTITION], 0),
        lambda code: code,
        lambda code, error: answers.append(code if error is None else error),
    )
    return answers


@pytest.fixture
def bench() -> TransactionBench:
    return TransactionBench(transaction_version=0)


def ended(bench: TransactionBench) -> tuple[int, int]:
    """The end is decided and committed; the marker is on its way."""
    result = bench.init()
    producer = result.producer_id, result.producer_epoch
    assert bench.add(producer, PARTITION, version=0) is ErrorCode.NONE
    assert bench.end(producer, True, version=0).error is ErrorCode.NONE
    return producer


def test_while_the_marker_is_on_its_way_it_waits(bench: TransactionBench) -> None:
    answers = begin_next(bench, ended(bench))
    assert answers == []
    bench.settle()
    assert answers == [ErrorCode.NONE]


def test_while_the_completion_is_on_its_way_to_the_log_it_waits(bench: TransactionBench) -> None:
    """The answer to the first question comes with the commit that ends what it was refused for."""
    producer = ended(bench)
    bench.sendings[0].deliver()
    bench.scheduler.run_for(1000)
    bench.runtime.flush()
    assert bench.state() == "COMPLETE_COMMIT"
    answers = begin_next(bench, producer)
    bench.log.commit()
    bench.commit()
    assert answers == [ErrorCode.NONE]


def test_a_marker_that_does_not_arrive_is_not_waited_for_longer_than_a_client_would(bench: TransactionBench) -> None:
    answers = begin_next(bench, ended(bench))
    bench.scheduler.run_for((SETTLE_MS_MAX - 1) * 1000)
    assert answers == []
    bench.scheduler.run_for(2 * 1000)
    assert answers == [ErrorCode.CONCURRENT_TRANSACTIONS]
    bench.settle()
    assert answers == [ErrorCode.CONCURRENT_TRANSACTIONS]


def test_who_is_refused_every_time_is_told(bench: TransactionBench) -> None:
    asked: list[None] = []
    answers: list[Any] = []
    ended(bench)
    bench.settle()

    def refuse(_: TransactionMachine) -> CoordinatorResult:
        asked.append(None)
        return CoordinatorResult(response=ErrorCode.CONCURRENT_TRANSACTIONS)

    settling(bench).write("id", refuse, lambda code: code, lambda code, _: answers.append(code))
    assert answers == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert len(asked) == ATTEMPTS_MAX
