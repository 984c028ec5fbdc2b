"""How much may wait for its verification, and that nothing overtakes what was told to come again."""

import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import ID, ORDERS, TransactionalProducer, log_of, transactional_machine, wait_loaded
from tidelog.broker.transactions import transactional_produce
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import ELEMENTS_AT_ONCE_MAX


def error_of(producer: TransactionalProducer, sequence: int, count: int = 1, **fields: int) -> ErrorCode:
    (result,) = producer.produce(ORDERS, sequence=sequence, count=count, **fields)
    return result.error


def unload(machine: Machine) -> None:
    machine.broker.coordinators.transactions.shard_of(ID).drop(OSError("a failed append"))


def test_records_are_copied_when_they_have_to_wait(machine: Machine) -> None:
    """The buffer of a connection is used again; the harness overwrites it as soon as the request was handled."""
    producer = TransactionalProducer(machine, is_v2=True).started()
    for _ in range(3):
        producer.begin_produce(ORDERS)
    machine.run_until(lambda: len(producer.client.replies) == 4)
    assert log_of(machine).log_end_offset == 3


def test_what_waits_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = TransactionalProducer(machine, is_v2=True).started()
    size = len(producer.request(ORDERS, sequence=0).topics[0].partitions[0].records or b"")
    monkeypatch.setattr(transactional_produce, "WAITING_BYTES_MAX", 2 * size)
    other = TransactionalProducer(machine, "other", is_v2=True).started()
    for _ in range(3):
        producer.begin_produce(ORDERS)
    assert machine.broker.transactional_produce.waiting == 2
    assert machine.broker.transactional_produce.waiting_bytes == 2 * size
    (refused,) = other.produce(("orders", 1))
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
    machine.run_until(lambda: len(producer.client.replies) == 4)
    assert log_of(machine).log_end_offset == 2
    assert machine.broker.transactional_produce.waiting_bytes == 0
    # They come again, in order.
    assert error_of(producer, 2) is ErrorCode.NONE
    (written,) = other.produce(("orders", 1), sequence=0)
    assert written.error is ErrorCode.NONE


def test_one_that_is_larger_than_the_bound_may_wait_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_produce, "WAITING_BYTES_MAX", 1)
    producer = TransactionalProducer(machine, is_v2=True).started()
    assert error_of(producer, 0) is ErrorCode.NONE


@pytest.mark.parametrize("version", [9, 12])
def test_the_next_batch_does_not_overtake_one_that_was_told_to_come_again(machine: Machine, version: int) -> None:
    """A log that knows nothing of the producer would take the second for the first, and the first for out of order."""
    producer = TransactionalProducer(machine).started()
    producer.add(ORDERS)
    unload(machine)
    assert error_of(producer, 0, 10, version=version) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert error_of(producer, 10, version=version) is ErrorCode.NOT_ENOUGH_REPLICAS
    wait_loaded(machine)
    assert error_of(producer, 10, version=version) is ErrorCode.NOT_ENOUGH_REPLICAS, "it was sent on the same connection"
    producer.client = machine.client()
    assert error_of(producer, 10, version=version) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log_of(machine).log_end_offset == 0
    assert error_of(producer, 0, 10, version=version) is ErrorCode.NONE
    assert error_of(producer, 10, version=version) is ErrorCode.NONE
    assert machine.broker.transactional_produce._postponed == {}


def test_the_next_epoch_starts_afresh(machine: Machine) -> None:
    producer = TransactionalProducer(machine).started()
    unload(machine)
    assert error_of(producer, 5) is ErrorCode.NOT_ENOUGH_REPLICAS
    wait_loaded(machine)
    producer.started()
    producer.add(ORDERS)
    assert error_of(producer, 7) is ErrorCode.NONE


def test_what_was_told_to_come_again_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_produce, "POSTPONED_MAX", 2)
    producer = TransactionalProducer(machine).started()
    unload(machine)
    for producer_id in range(100, 104):
        producer.producer_id = producer_id
        assert error_of(producer, 0) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [key[0] for key in machine.broker.transactional_produce._postponed] == [102, 103]


def test_a_log_that_knows_the_producer_needs_no_help(machine: Machine) -> None:
    producer = TransactionalProducer(machine).started()
    producer.write(ORDERS)
    producer.end()
    producer.settle()
    unload(machine)
    assert error_of(producer, 1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert machine.broker.transactional_produce._postponed == {}


@pytest.mark.parametrize("is_v2", [False, True])
def test_a_request_with_many_partitions_is_verified_in_parts(is_v2: bool) -> None:
    count = ELEMENTS_AT_ONCE_MAX + 10
    machine = transactional_machine(partitions=count)
    producer = TransactionalProducer(machine, is_v2=is_v2).started()
    partitions = [("orders", index) for index in range(count)]
    other = TransactionalProducer(machine, "other", is_v2=is_v2).started()
    producer.write(*partitions)
    # What the coordinator does not know is refused, in every part.
    refused = {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if is_v2 else ErrorCode.INVALID_TXN_STATE}
    assert {result.error for result in other.produce(*partitions, sequence=5)} == refused
    assert producer.end() is ErrorCode.NONE
    for _, index in partitions:
        log = machine.broker.partitions.find("orders", None, index).log
        machine.run_until(lambda log=log: log.last_stable_offset == 2)  # type: ignore[misc]  # bound at once
