from typing import Any

import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import ID, TransactionalProducer, log_of, stop_markers, transactional_machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

ORDERS = ("orders", 0)
OTHER = ("orders", 1)
CLIENT_VERSIONS = range(4)


@pytest.fixture
def producer() -> TransactionalProducer:
    return TransactionalProducer(transactional_machine(partitions=2)).started()


def partitions_of(producer: TransactionalProducer) -> list[tuple[str, tuple[int, ...]]]:
    (described,) = producer.client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[ID]).transaction_states
    return [(topic.topic, tuple(topic.partitions)) for topic in described.topics]


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_partitions_are_added(producer: TransactionalProducer, version: int) -> None:
    assert producer.add(OTHER, ORDERS, version=version) == {OTHER: ErrorCode.NONE, ORDERS: ErrorCode.NONE}
    assert producer.add(ORDERS, version=version) == {ORDERS: ErrorCode.NONE}
    assert producer.state == "Ongoing"
    assert partitions_of(producer) == [("orders", (1, 0))]


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_one_that_does_not_exist_keeps_all_out(producer: TransactionalProducer, version: int) -> None:
    codes = producer.add(ORDERS, ("orders", 9), ("missing", 0), version=version)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {ORDERS: ErrorCode.OPERATION_NOT_ATTEMPTED, ("orders", 9): unknown, ("missing", 0): unknown}
    assert producer.state == "Empty"


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_internal_topics_are_the_brokers_own(producer: TransactionalProducer, topic: str, version: int) -> None:
    """A marker written to the coordinator's own partition would come between it and its log."""
    codes = producer.add(ORDERS, (topic, 0), version=version)
    assert codes == {ORDERS: ErrorCode.OPERATION_NOT_ATTEMPTED, (topic, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert producer.state == "Empty"


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_zombie_hears_of_it_in_words_that_it_knows(producer: TransactionalProducer, version: int) -> None:
    TransactionalProducer(producer.machine).started()
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add(ORDERS, version=version) == {ORDERS: code}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"producer_id": 4711}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"transactional_id": "unknown"}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 7}, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_what_is_refused(producer: TransactionalProducer, change: dict[str, Any], code: ErrorCode) -> None:
    for name, value in change.items():
        setattr(producer, name, value)
    assert producer.add(ORDERS) == {ORDERS: code}


def test_the_last_transaction_is_waited_for_but_not_for_long(producer: TransactionalProducer) -> None:
    producer.write(ORDERS)
    go_on = stop_markers(producer.machine)
    producer.end()
    assert producer.add(ORDERS) == {ORDERS: ErrorCode.CONCURRENT_TRANSACTIONS}
    go_on()
    assert producer.add(ORDERS) == {ORDERS: ErrorCode.NONE}


def test_a_transaction_over_thousands_of_partitions() -> None:
    machine = transactional_machine(partitions=2_000)
    producer = TransactionalProducer(machine).started()
    places = [("orders", index) for index in range(2_000)]
    assert set(producer.add(*places).values()) == {ErrorCode.NONE}
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert all(log_of(machine, *place).log_end_offset == 1 for place in places)


# -- from version 4 on: several transactions ---------------------------------------------------------------------------------


def batched(producer: TransactionalProducer, *transactions: dict[str, Any], version: int) -> dict[str, dict[int, ErrorCode]]:
    response = producer.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, transactions=list(transactions))
    assert response.error_code == 0
    return {
        result.transactional_id: {
            each.partition_index: ErrorCode(each.partition_error_code)
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }


def one(producer: TransactionalProducer, *partitions: int, verify_only: bool = False, topic: str = "orders") -> dict[str, Any]:
    return {**producer.fields, "verify_only": verify_only, "topics": [{"name": topic, "partitions": list(partitions)}]}


@pytest.mark.parametrize("version", [4, 5])
def test_several_transactions_in_one_request(producer: TransactionalProducer, version: int) -> None:
    other = TransactionalProducer(producer.machine, "other").started()
    other.epoch += 1
    codes = batched(producer, one(producer, 0, 1), one(other, 0), version=version)
    assert codes == {ID: {0: ErrorCode.NONE, 1: ErrorCode.NONE}, "other": {0: ErrorCode.PRODUCER_FENCED}}


@pytest.mark.parametrize("version", [4, 5])
def test_a_broker_verifies(producer: TransactionalProducer, version: int) -> None:
    producer.add(ORDERS)
    codes = batched(producer, one(producer, 0, 1, verify_only=True), version=version)
    assert codes == {ID: {0: ErrorCode.NONE, 1: ErrorCode.TRANSACTION_ABORTABLE}}
    producer.epoch += 1
    assert batched(producer, one(producer, 0, verify_only=True), version=version) == {ID: {0: ErrorCode.PRODUCER_FENCED}}


@pytest.mark.parametrize("version", [4, 5])
def test_a_group_coordinator_adds_its_partition(producer: TransactionalProducer, version: int) -> None:
    asked = one(producer, 0, topic="__consumer_offsets")
    assert batched(producer, asked, version=version) == {ID: {0: ErrorCode.NONE}}
    asked = one(producer, 0, topic="__transaction_state")
    assert batched(producer, asked, version=version) == {ID: {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}}


@pytest.mark.parametrize("version", [4, 5])
def test_no_transaction_at_all(producer: TransactionalProducer, version: int) -> None:
    assert batched(producer, version=version) == {}


def test_while_the_shard_is_loaded(producer: TransactionalProducer) -> None:
    machine: Machine = producer.machine
    machine.broker.coordinators.transactions.shard_of(ID).drop(OSError("a failed append"))
    loading = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert producer.add(ORDERS)[ORDERS] in loading
    codes = batched(producer, one(producer, 0, verify_only=True), version=4)
    assert codes[ID][0] in loading


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_errors_are_counted(producer: TransactionalProducer, version: int) -> None:
    producer.add(ORDERS, ("orders", 9), version=version)
    assert producer.machine.broker.request_metrics.errors == {
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.OPERATION_NOT_ATTEMPTED): 1,
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): 1,
    }
