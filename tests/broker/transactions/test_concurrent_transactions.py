"""CONCURRENT_TRANSACTIONS is waited for, for a while."""

from typing import Any

import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import ID, ORDERS, TransactionalProducer, stop_markers, transactional_machine
from tidelog.broker.transactions.concurrent_transactions import ATTEMPTS_MAX, WAIT_MS_MAX, ConcurrentTransactions
from tidelog.coordinator.errors import CoordinatorError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.transactions import end_transaction
from tidelog.transactions.coordinator import InitProducerIdRequest, TransactionPartitions
from tidelog.wire.end_txn import EndTxnRequest
from tidelog.wire.errors import ErrorCode

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.fixture
def machine() -> Machine:
    return transactional_machine()


@pytest.fixture
def producer(machine: Machine) -> TransactionalProducer:
    producer = TransactionalProducer(machine).started()
    producer.write(ORDERS)
    return producer


def begin_add(producer: TransactionalProducer) -> list[Any]:
    answers: list[Any] = []
    producer.machine.broker.concurrent_transactions.write(
        ID,
        lambda transactions: transactions.add_partitions(
            TransactionPartitions(ID, producer.producer_id, producer.epoch, [ORDERS])
        ),
        lambda code: code,
        lambda code, error: answers.append(error or code),
    )
    return answers


def test_the_next_transaction_begins_as_soon_as_the_last_one_has_ended(producer: TransactionalProducer) -> None:
    machine = producer.machine
    go_on = stop_markers(machine)
    producer.end()
    timers = len(machine.broker.timers)
    answers = begin_add(producer)
    machine.run_for(WAIT_MS_MAX // 2)
    assert answers == []
    assert len(machine.broker.timers) == timers + 1
    before_ms = machine.clock.monotonic_ms()
    go_on()
    machine.run_until(lambda: bool(answers))
    assert answers == [ErrorCode.NONE]
    assert machine.clock.monotonic_ms() - before_ms < 50
    assert len(machine.broker.timers) == timers


def test_after_a_while_the_client_hears_of_it(producer: TransactionalProducer) -> None:
    machine = producer.machine
    stop_markers(machine)
    producer.end()
    answers = begin_add(producer)
    machine.run_for(WAIT_MS_MAX - 1)
    assert answers == []
    machine.run_for(2)
    assert answers == [CONCURRENT]


def test_who_has_given_up_keeps_no_place(producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction may wait for a partition for hours, and its producer asks again all the time."""
    machine = producer.machine
    monkeypatch.setattr(end_transaction, "WAITERS_MAX", 1)
    stop_markers(machine)
    producer.end()
    for _ in range(3):
        answers = begin_add(producer)
        machine.run_for(WAIT_MS_MAX // 2)
        assert answers == []
        machine.run_for(WAIT_MS_MAX)
        assert answers == [CONCURRENT]
    shard = machine.broker.coordinators.transactions.shard_of(ID)
    assert shard.machine is not None
    assert (shard.machine.ends._waiters, shard.machine.ends._waiting) == ({}, 0)


def test_who_finds_no_place_hears_of_it_at_once(producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = producer.machine
    monkeypatch.setattr(end_transaction, "WAITERS_MAX", 1)
    go_on = stop_markers(machine)
    producer.end()
    first, second = begin_add(producer), begin_add(producer)
    machine.run_for(10)
    assert (first, second) == ([], [CONCURRENT])
    go_on()
    machine.run_until(lambda: bool(first))
    assert first == [ErrorCode.NONE]


def test_a_shard_that_is_dropped_ends_the_wait(producer: TransactionalProducer) -> None:
    machine = producer.machine
    stop_markers(machine)
    producer.end()
    answers = begin_add(producer)
    machine.broker.coordinators.transactions.shard_of(ID).drop(OSError("a failed append"))
    (error,) = answers
    assert isinstance(error, CoordinatorError)
    machine.run_for(2 * WAIT_MS_MAX)
    assert len(answers) == 1


def test_an_end_that_is_not_durable_yet_is_waited_for(producer: TransactionalProducer) -> None:
    machine = producer.machine
    machine.broker.coordinators.transactions.write(
        ID,
        lambda transactions: transactions.ends.end(EndTxnRequest(ID, producer.producer_id, producer.epoch, True), 0),
        lambda _response, _error: None,
    )
    answers: list[Any] = []
    machine.broker.concurrent_transactions.write(
        ID,
        lambda transactions: transactions.init_producer_id(InitProducerIdRequest(ID, 60_000)),
        lambda result: result.error,
        lambda result, error: answers.append(error or result.error),
    )
    machine.run_until(lambda: bool(answers))
    assert answers == [ErrorCode.NONE]


def test_who_loses_every_race_is_told(producer: TransactionalProducer) -> None:
    machine = producer.machine
    stop_markers(machine)
    producer.end()
    asked = 0
    answers: list[Any] = []
    shard = machine.broker.coordinators.transactions.shard_of(ID)

    def decide(_: object) -> CoordinatorResult:
        nonlocal asked
        asked += 1
        return CoordinatorResult(response=CONCURRENT)

    ConcurrentTransactions(machine.broker.coordinators.transactions, machine.broker.timers).write(
        ID, decide, lambda code: code, lambda code, error: answers.append(error or code)
    )
    assert shard.machine is not None
    for _ in range(ATTEMPTS_MAX):
        shard.machine.ends._wake(ID, None)
    assert (asked, answers) == (ATTEMPTS_MAX, [CONCURRENT])
