from typing import Any

import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import ID, TransactionalProducer, committed_offsets, stop_markers, transactional_machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

ORDERS = ("orders", 0)
VERSIONS = range(6)
OLD_VERSIONS = range(5)


@pytest.fixture
def machine() -> Machine:
    return transactional_machine(partitions=2)


@pytest.fixture
def producer(machine: Machine) -> TransactionalProducer:
    return TransactionalProducer(machine).started()


def end(producer: TransactionalProducer, version: int, committed: bool = True, **fields: Any) -> DecodedMessage:
    return producer.client.call(ApiKey.END_TXN, version, committed=committed, **{**producer.fields, **fields})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_commit", [True, False])
def test_it_commits_and_aborts(producer: TransactionalProducer, version: int, is_commit: bool) -> None:
    producer.write(ORDERS)
    assert end(producer, version, is_commit).error_code == 0
    producer.settle()
    assert producer.state == ("CompleteCommit" if is_commit else "CompleteAbort")
    assert committed_offsets(producer.client) == ([0] if is_commit else [])


def test_it_is_answered_when_the_decision_is_durable_and_not_before(producer: TransactionalProducer) -> None:
    machine = producer.machine
    producer.write(ORDERS)
    stop_markers(machine)
    assert end(producer, 4).error_code == 0
    assert machine.crash("none") is None
    producer.reconnected()
    machine.run_for(2_000)
    assert committed_offsets(producer.client) == [0]


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_a_producer_of_version_1_keeps_its_epoch(producer: TransactionalProducer, version: int) -> None:
    for count in (1, 2):
        producer.write(ORDERS)
        assert end(producer, version).error_code == 0
        producer.settle()
        assert len(committed_offsets(producer.client)) == count


@pytest.mark.parametrize("version", VERSIONS)
def test_a_zombie_hears_of_it_in_words_that_it_knows(producer: TransactionalProducer, version: int) -> None:
    producer.write(ORDERS)
    TransactionalProducer(producer.machine).started()
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(producer, version).error_code == code


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producer_id": 4711}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"transactional_id": "unknown"}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_refused(producer: TransactionalProducer, version: int, fields: dict[str, Any], code: ErrorCode) -> None:
    producer.write(ORDERS)
    assert end(producer, version, **fields).error_code == code
    assert producer.state == "Ongoing"


@pytest.mark.parametrize("version", VERSIONS)
def test_there_is_nothing_to_commit(producer: TransactionalProducer, version: int) -> None:
    assert end(producer, version).error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", OLD_VERSIONS)
@pytest.mark.parametrize("is_commit", [True, False])
def test_it_may_be_repeated_by_version_1(producer: TransactionalProducer, version: int, is_commit: bool) -> None:
    producer.write(ORDERS)
    go_on = stop_markers(producer.machine)
    assert end(producer, version, is_commit).error_code == 0
    assert end(producer, version, is_commit).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert end(producer, version, not is_commit).error_code == ErrorCode.INVALID_TXN_STATE
    go_on()
    producer.settle()
    assert end(producer, version, is_commit).error_code == 0
    assert end(producer, version, not is_commit).error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("is_commit", [True, False])
def test_it_may_be_repeated_by_version_2_and_gets_the_same_answer(machine: Machine, is_commit: bool) -> None:
    producer = TransactionalProducer(machine, is_v2=True).started()
    producer.write(ORDERS)
    go_on = stop_markers(machine)
    first = end(producer, 5, is_commit)
    assert (first.error_code, first.producer_id, first.producer_epoch) == (0, producer.producer_id, producer.epoch + 1)
    assert end(producer, 5, is_commit).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert end(producer, 5, not is_commit).error_code == ErrorCode.INVALID_TXN_STATE
    go_on()
    producer.settle()
    again = end(producer, 5, is_commit)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, first.producer_id, first.producer_epoch)
    refused = end(producer, 5, not is_commit)
    assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (ErrorCode.INVALID_TXN_STATE, -1, -1)


def test_version_2_may_abort_what_never_began(machine: Machine) -> None:
    """Its producer cannot know whether a partition was added."""
    producer = TransactionalProducer(machine, is_v2=True).started()
    for epoch in (1, 2):
        assert producer.end(False) is ErrorCode.NONE
        assert producer.epoch == epoch
        producer.settle()
    producer.write(ORDERS)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert committed_offsets(machine.client()) == [0]


def test_while_the_shard_is_loaded(producer: TransactionalProducer) -> None:
    producer.write(ORDERS)
    producer.machine.broker.coordinators.transactions.shard_of(ID).drop(OSError("a failed append"))
    response = end(producer, 5)
    assert response.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert (response.producer_id, response.producer_epoch) == (-1, -1)
