"""Requests of a transaction that come after its end: they begin nothing, end nothing and commit nothing."""

import pytest

from tests.broker.handlers.group_clients import committed
from tests.broker.harness import Machine
from tests.broker.transactional import (
    ABORTABLE,
    OLD,
    ORDERS,
    OTHER,
    VERSION_2,
    TransactionalProducer,
    error_of,
    is_open,
    log_of,
)
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


@pytest.mark.parametrize(("version", "code"), [(OLD, ErrorCode.INVALID_TXN_STATE), (ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE)])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_late_produce_of_version_1_begins_nothing(
    producer: TransactionalProducer, version: int, code: ErrorCode, is_commit: bool
) -> None:
    machine = producer.machine
    producer.write(ORDERS)
    producer.end(is_commit)
    producer.settle()
    assert error_of(producer, version) is code
    assert not is_open(machine)
    assert log_of(machine).last_stable_offset == 2


def test_a_late_produce_of_version_2_begins_nothing(machine: Machine) -> None:
    producer = TransactionalProducer(machine, is_v2=True).started()
    producer.write(ORDERS)
    epoch = producer.epoch
    producer.end()
    producer.settle()
    assert error_of(producer, VERSION_2, epoch=epoch, sequence=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    # Also where its next transaction is open, and where the partition has never heard of it.
    producer.write(ORDERS)
    assert error_of(producer, VERSION_2, epoch=epoch, sequence=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    (result,) = producer.produce(OTHER, epoch=epoch, sequence=0)
    assert result.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end(False) is ErrorCode.NONE


def test_a_late_end_of_version_2_does_not_end_the_next_transaction(machine: Machine) -> None:
    producer = TransactionalProducer(machine, is_v2=True).started()
    producer.write(ORDERS)
    late = dict(producer.fields)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    producer.write(ORDERS)
    response = producer.client.call(ApiKey.END_TXN, 5, committed=True, **late)
    assert response.error_code == ErrorCode.PRODUCER_FENCED
    assert producer.state == "Ongoing"


@pytest.mark.parametrize("is_v2", [False, True])
def test_a_copy_of_a_batch_of_an_ended_transaction_begins_nothing(machine: Machine, is_v2: bool) -> None:
    producer = TransactionalProducer(machine, is_v2=is_v2).started()
    producer.write(ORDERS)
    epoch = producer.epoch
    producer.end()
    producer.settle()
    (result,) = producer.produce(ORDERS, sequence=0, epoch=epoch)
    # The first answer once more; with version 2 the epoch says that it is over.
    assert result.error is (ErrorCode.INVALID_PRODUCER_EPOCH if is_v2 else ErrorCode.NONE)
    assert result.base_offset == (-1 if is_v2 else 0)
    assert log_of(machine).log_end_offset == log_of(machine).last_stable_offset == 2


@pytest.mark.parametrize("is_v2", [False, True])
def test_a_late_commit_of_offsets_takes_no_effect(machine: Machine, is_v2: bool) -> None:
    producer = TransactionalProducer(machine, is_v2=is_v2).started()
    if not is_v2:
        assert producer.add_offsets() is ErrorCode.NONE
    assert producer.commit_offset(1) is ErrorCode.NONE
    epoch = producer.epoch
    producer.end()
    producer.settle()
    next_epoch, producer.epoch = producer.epoch, epoch
    code = producer.commit_offset(9)
    producer.epoch = next_epoch
    assert code is (ErrorCode.INVALID_PRODUCER_EPOCH if is_v2 else ErrorCode.INVALID_TXN_STATE)
    assert committed(machine.client()) == 1
    # It is no part of the next one either.
    producer.write(ORDERS)
    producer.end()
    producer.settle()
    assert committed(machine.client()) == 1
