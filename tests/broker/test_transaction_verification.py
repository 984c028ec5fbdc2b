"""Produce and TxnOffsetCommit of a transaction: only while it is open, whatever had to be waited for."""

from collections.abc import Callable

import pytest

from tests.broker.handlers.group_clients import committed
from tests.broker.harness import Machine
from tests.broker.transactional import (
    ID,
    TransactionalProducer,
    committed_offsets,
    is_open,
    is_settled,
    log_of,
    stop_markers,
    transactional_machine,
    wait_loaded,
)
from tidelog.broker.transaction_verification import ClientKind, OnVerified, Question, TransactionVerification
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce_client import decode_produce_response
from tidelog.wire.protocol import ApiKey

ORDERS = ("orders", 0)
OTHER = ("orders", 1)
# Versions of Produce: which knows INVALID_TXN_STATE only, which TRANSACTION_ABORTABLE, which leaves adding to the broker.
OLD, ABORTABLE, VERSION_2 = 9, 11, 12


@pytest.fixture
def machine() -> Machine:
    return transactional_machine(partitions=2)


@pytest.fixture
def producer(machine: Machine) -> TransactionalProducer:
    return TransactionalProducer(machine).started()


def error_of(producer: TransactionalProducer, version: int, **fields: int) -> ErrorCode:
    (result,) = producer.produce(ORDERS, version=version, **fields)
    return result.error


# -- codes -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(OLD, ErrorCode.INVALID_TXN_STATE), (ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE)])
def test_a_partition_that_was_not_added_is_refused(producer: TransactionalProducer, version: int, code: ErrorCode) -> None:
    assert error_of(producer, version) is code
    assert not is_open(producer.machine)
    # Also while the transaction is open elsewhere.
    producer.write(OTHER)
    assert error_of(producer, version, sequence=0) is code


@pytest.mark.parametrize("version", [OLD, ABORTABLE, VERSION_2])
def test_a_zombie_is_refused(producer: TransactionalProducer, version: int) -> None:
    TransactionalProducer(producer.machine).started()
    assert error_of(producer, version) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log_of(producer.machine).log_end_offset == 0


@pytest.mark.parametrize("version", [OLD, ABORTABLE, VERSION_2])
def test_a_producer_of_another_id_is_refused(producer: TransactionalProducer, version: int) -> None:
    producer.producer_id += 1
    assert error_of(producer, version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [OLD, ABORTABLE, VERSION_2])
def test_a_coordinator_that_is_being_loaded_makes_producers_come_again(producer: TransactionalProducer, version: int) -> None:
    producer.add(ORDERS)
    producer.machine.broker.coordinators.transactions.shard_of(ID).drop(OSError("a failed append"))
    assert error_of(producer, version, sequence=0) is ErrorCode.NOT_ENOUGH_REPLICAS
    wait_loaded(producer.machine)
    assert error_of(producer, version, sequence=0) is ErrorCode.NONE


@pytest.mark.parametrize(("version", "code"), [(OLD, ErrorCode.NOT_ENOUGH_REPLICAS), (ABORTABLE, ErrorCode.NOT_ENOUGH_REPLICAS)])
def test_a_transaction_that_is_being_ended_takes_no_new_partition(
    producer: TransactionalProducer, version: int, code: ErrorCode
) -> None:
    producer.write(OTHER)
    go_on = stop_markers(producer.machine)
    producer.end()
    assert error_of(producer, version) is code
    go_on()


def test_a_broker_that_asks_hears_the_coordinators_own_words(machine: Machine, producer: TransactionalProducer) -> None:
    TransactionalProducer(machine).started()
    verdicts: dict[tuple[str, int], ErrorCode] = {}
    question = Question(ID, producer.producer_id, producer.epoch, [ORDERS], ClientKind.BROKER)
    machine.broker.transaction_verification.verify(question, verdicts.update)
    assert verdicts == {ORDERS: ErrorCode.PRODUCER_FENCED}


def test_records_without_a_transactional_id_are_refused(producer: TransactionalProducer) -> None:
    producer.write(ORDERS)
    request = producer.request(ORDERS)._replace(transactional_id=None)
    ((result,),) = [topic.partitions for topic in producer.client.produce(request).topics]
    assert result.error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_two_producers_in_one_request_are_refused(producer: TransactionalProducer) -> None:
    producer.add(ORDERS, OTHER)
    request = producer.request(ORDERS)
    producer.producer_id += 1
    request = request._replace(topics=[*request.topics, *producer.request(OTHER).topics])
    first, second = [topic.partitions[0] for topic in producer.client.produce(request).topics]
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize("version", [OLD, VERSION_2])
def test_internal_topics_are_never_part_of_it(producer: TransactionalProducer, topic: str, version: int) -> None:
    (result,) = producer.produce((topic, 0), version=version)
    assert result.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert producer.state == "Empty"


def test_a_topic_that_does_not_exist_is_not_added(producer: TransactionalProducer) -> None:
    (result,) = producer.produce(("missing", 0), version=VERSION_2)
    assert result.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.state == "Empty"


def test_a_batch_without_a_producer_id_is_not_asked_about(producer: TransactionalProducer) -> None:
    producer.producer_id = -1
    assert error_of(producer, VERSION_2) is ErrorCode.INVALID_RECORD


def test_verification_can_be_switched_off_for_version_1() -> None:
    machine = transactional_machine({"transaction.partition.verification.enable": "false"}, partitions=2)
    producer = TransactionalProducer(machine).started()
    assert error_of(producer, OLD) is ErrorCode.NONE
    # Version 2 depends on it.
    second = TransactionalProducer(machine, "second", is_v2=True).started()
    second.write(OTHER)
    assert second.state == "Ongoing"


# -- late requests -----------------------------------------------------------------------------------------------------------


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


# -- what changes while a request waits --------------------------------------------------------------------------------------


def end_in_the_background(producer: TransactionalProducer) -> None:
    """Decided, and not durable yet: whoever asks has to wait."""
    machine = producer.machine
    machine.broker.coordinators.transactions.write(
        ID,
        lambda transactions: transactions.end_transaction(ID, producer.producer_id, producer.epoch, True, 0),
        lambda _response, _error: None,
    )
    machine.broker.end_of_burst()


def hold_verification(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The next request has to wait until the function that is returned was called."""
    asked: list[tuple[Question, OnVerified]] = []
    monkeypatch.setattr(TransactionVerification, "verify", lambda _, question, answer: asked.append((question, answer)))

    def go_on() -> None:
        monkeypatch.undo()
        (held,) = asked
        machine.broker.transaction_verification.verify(*held)

    return go_on


def results(producer: TransactionalProducer, version: int = OLD) -> dict[int, ErrorCode]:
    """Of the last reply, by partition."""
    frame = memoryview(producer.client.replies[-1])
    correlation_id = int.from_bytes(frame[:4], "big")
    _, position = producer.client.last_reply(ApiKey.PRODUCE, version, correlation_id)
    response = decode_produce_response(version, frame, position)
    return {result.partition: result.error for topic in response.topics for result in topic.partitions}


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
    shard.write(lambda transactions: transactions.init_producer_id("another", 60_000))
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


@pytest.mark.parametrize("is_v2", [False, True])
def test_what_one_producer_sends_stays_in_order(machine: Machine, is_v2: bool) -> None:
    producer = TransactionalProducer(machine, is_v2=is_v2).started()
    if not is_v2:
        producer.add(ORDERS)
        # Something is on its way to the log, so that the first one has to wait.
        machine.broker.coordinators.transactions.write(
            ID,
            lambda transactions: transactions.add_partitions(ID, producer.producer_id, producer.epoch, [OTHER], 0),
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
