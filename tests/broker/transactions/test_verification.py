"""Which answer a Produce of a transaction gets: what is refused, with which code, in which version of the request."""

import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import (
    ABORTABLE,
    ID,
    OLD,
    ORDERS,
    OTHER,
    VERSION_2,
    TransactionalProducer,
    error_of,
    is_open,
    log_of,
    stop_markers,
    transactional_machine,
    wait_loaded,
)
from tidelog.broker.transactions.client_errors import ClientKind
from tidelog.transactions.coordinator import TransactionPartitions
from tidelog.wire.errors import ErrorCode

# -- refused by the transaction's state --------------------------------------------------------------------------------------


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
    codes: dict[tuple[str, int], ErrorCode] = {}
    request = TransactionPartitions(ID, producer.producer_id, producer.epoch, [ORDERS])
    machine.broker.transaction_verification.verify(request, ClientKind.BROKER, codes.update)
    assert codes == {ORDERS: ErrorCode.PRODUCER_FENCED}


# -- refused without asking --------------------------------------------------------------------------------------------------


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
