"""What changes while a Produce waits for its verification: records are written only if the transaction is still open then."""

from collections.abc import Callable

import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import (
    ID,
    OLD,
    ORDERS,
    OTHER,
    VERSION_2,
    TransactionalProducer,
    committed_offsets,
    error_of,
    is_open,
    is_settled,
    log_of,
    stop_markers,
    wait_loaded,
)
from tidelog.broker.transactions.client_errors import ClientKind
from tidelog.broker.transactions.verification import OnVerified, TransactionVerification
from tidelog.transactions.coordinator import InitProducerIdRequest, TransactionPartitions
from tidelog.wire.end_txn import EndTxnRequest
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import decode_produce_response
from tidelog.wire.protocol import ApiKey


def end_in_the_background(producer: TransactionalProducer) -> None:
    """Decided, and not durable yet: whoever asks has to wait."""
    machine = producer.machine
    machine.broker.coordinators.transactions.write(
        ID,
        lambda transactions: transactions.ends.end(EndTxnRequest(ID, producer.producer_id, producer.epoch, True), 0),
        lambda _response, _error: None,
    )
    machine.broker.end_of_burst()


def hold_verification(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The next request has to wait until the function that is returned was called."""
    calls: list[tuple[TransactionPartitions, ClientKind, OnVerified]] = []
    monkeypatch.setattr(TransactionVerification, "verify", lambda _, *call: calls.append(call))

    def go_on() -> None:
        monkeypatch.undo()
        (held,) = calls
        machine.broker.transaction_verification.verify(*held)

    return go_on


def results(producer: TransactionalProducer, version: int = OLD) -> dict[int, ErrorCode]:
    """Of the last reply, by partition."""
    frame = memoryview(producer.client.replies[-1])
    correlation_id = int.from_bytes(frame[:4], "big")
    _, position = producer.client.last_reply(ApiKey.PRODUCE, version, correlation_id)
    response = decode_produce_response(version, frame, position)
    return {result.partition: result.error for topic in response.topics for result in topic.partitions}


# -- the transaction ---------------------------------------------------------------------------------------------------------


def test_a_transaction_that_ends_meanwhile_gets_no_more_records(producer: TransactionalProducer) -> None:
    machine = producer.machine
    producer.write(ORDERS)
    producer.add(OTHER)
    end_in_the_background(producer)
    producer.begin_produce(OTHER)
    assert machine.broker.transactional_produce.waiting == 1
    producer.settle()
    assert results(producer) == {1: ErrorCode.NOT_ENOUGH_REPLICAS}
    assert log_of(machine, *OTHER).last_stable_offset == log_of(machine, *OTHER).log_end_offset == 1
    assert machine.broker.transactional_produce.waiting == machine.broker.transactional_produce.waiting_bytes == 0


def test_an_answer_of_before_the_end_does_not_count(producer: TransactionalProducer) -> None:
    """The partition was added long ago, so nothing is written; but the answer waits for what others have decided before."""
    machine = producer.machine
    producer.add(ORDERS)
    shard = machine.broker.coordinators.transactions.shard_of(ID)
    shard.write(lambda transactions: transactions.init_producer_id(InitProducerIdRequest("another", 60_000)))
    machine.broker.end_of_burst()
    producer.begin_produce(ORDERS, version=VERSION_2)
    assert machine.broker.transactional_produce.waiting == 1
    end_in_the_background(producer)
    producer.settle()
    assert results(producer, VERSION_2) == {0: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert not is_open(machine)


def test_a_partition_that_was_open_when_the_request_came_is_looked_at_again(
    producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marker may be written while the other partition is asked about: the records would begin a transaction that nobody
    ends."""
    machine = producer.machine
    producer.write(ORDERS)
    go_on = hold_verification(machine, monkeypatch)
    producer.begin_produce(ORDERS, OTHER)
    end_in_the_background(producer)
    producer.settle()
    go_on()
    machine.run_for(100)
    assert results(producer) == {0: ErrorCode.NOT_ENOUGH_REPLICAS, 1: ErrorCode.INVALID_TXN_STATE}
    assert not is_open(machine)
    assert not is_open(machine, *OTHER)


def test_a_version_2_producer_waits_for_its_last_transaction(machine: Machine) -> None:
    """Markers take milliseconds; clients that hear of them come again after twenty."""
    producer = TransactionalProducer(machine, is_v2=True).started()
    producer.write(ORDERS)
    go_on = stop_markers(machine)
    assert producer.end() is ErrorCode.NONE
    count = len(producer.client.replies)
    producer.begin_produce(ORDERS)
    machine.run_for(100)
    assert len(producer.client.replies) == count
    go_on()
    machine.run_until(lambda: len(producer.client.replies) > count)
    assert results(producer, VERSION_2) == {0: ErrorCode.NONE}
    # Not for ever.
    go_on = stop_markers(machine)
    assert producer.end() is ErrorCode.NONE
    assert error_of(producer, VERSION_2) is ErrorCode.CONCURRENT_TRANSACTIONS
    go_on()


# -- the order ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_v2", [False, True])
def test_what_one_producer_sends_stays_in_order(machine: Machine, is_v2: bool) -> None:
    producer = TransactionalProducer(machine, is_v2=is_v2).started()
    if not is_v2:
        producer.add(ORDERS)
        # Something is on its way to the log, so that the first one has to wait.
        machine.broker.coordinators.transactions.write(
            ID,
            lambda transactions: transactions.add_partitions(
                TransactionPartitions(ID, producer.producer_id, producer.epoch, [OTHER])
            ),
            lambda _response, _error: None,
        )
    count = len(producer.client.replies)
    for _ in range(5):
        producer.begin_produce(ORDERS, count=2)
    assert machine.broker.transactional_produce.waiting == 5
    machine.run_until(lambda: len(producer.client.replies) == count + 5)
    assert log_of(machine).log_end_offset == 10
    producer.end()
    producer.settle()
    assert committed_offsets(machine.client()) == list(range(10))


def test_other_producers_do_not_wait(machine: Machine) -> None:
    first = TransactionalProducer(machine, "first", is_v2=True).started()
    second = TransactionalProducer(machine, "second", is_v2=True).started()
    second.write(OTHER)
    first.begin_produce(ORDERS)
    second.begin_produce(OTHER)
    assert machine.broker.transactional_produce.waiting == 1
    assert log_of(machine, *OTHER).log_end_offset == 2


# -- everything else ---------------------------------------------------------------------------------------------------------


def test_a_connection_that_is_closed_meanwhile(machine: Machine) -> None:
    producer = TransactionalProducer(machine, is_v2=True).started()
    producer.begin_produce(ORDERS)
    producer.client.session.closed()
    machine.run_until(lambda: machine.broker.transactional_produce.waiting == 0)
    assert producer.reconnected().end() is ErrorCode.NONE
    producer.settle()
    assert not is_open(machine)
    assert machine.facts("unexpected_error") == []


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_that_is_deleted_meanwhile(machine: Machine, monkeypatch: pytest.MonkeyPatch, is_made_again: bool) -> None:
    producer = TransactionalProducer(machine, is_v2=True).started()
    other = machine.client()
    other.create_topic("gone")
    go_on = hold_verification(machine, monkeypatch)
    producer.begin_produce(("gone", 0))
    other.call(ApiKey.DELETE_TOPICS, 5, topic_names=["gone"], timeout_ms=1000)
    if is_made_again:
        machine.run_for(1_000)
        other.create_topic("gone")
    go_on()
    machine.run_until(lambda: machine.broker.transactional_produce.waiting == 0)
    machine.run_for(100)
    code = ErrorCode.NONE if is_made_again else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert results(producer, VERSION_2) == {0: code}
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    if is_made_again:
        assert committed_offsets(other, "gone") == [0]


@pytest.mark.parametrize("is_v2", [False, True])
def test_a_shard_that_is_dropped_meanwhile(machine: Machine, is_v2: bool) -> None:
    producer = TransactionalProducer(machine, is_v2=is_v2).started()
    producer.write(OTHER)
    shard = machine.broker.coordinators.transactions.shard_of(ID)
    if not is_v2:
        producer.add(ORDERS)
        end_in_the_background(producer)
    producer.begin_produce(ORDERS)
    shard.drop(OSError("a failed append"))
    machine.broker.end_of_burst()
    assert results(producer, VERSION_2 if is_v2 else OLD) == {0: ErrorCode.NOT_ENOUGH_REPLICAS}
    assert machine.broker.transactional_produce.waiting == 0
    wait_loaded(machine)
    if is_v2:
        assert error_of(producer, VERSION_2, sequence=0) is ErrorCode.NONE
    else:
        machine.run_until(lambda: is_settled(machine))
