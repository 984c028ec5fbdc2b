import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import TransactionalProducer, log_of, transactional_machine
from tests.log.harness import START_MS, batch
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

ORDERS = ("orders", 0)


@pytest.fixture
def machine() -> Machine:
    return transactional_machine(partitions=2)


def describe(machine: Machine, *places: tuple[str, int]) -> dict[tuple[str, int], DecodedMessage]:
    topics = [{"name": name, "partition_indexes": [index]} for name, index in places]
    response = machine.client().call(ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics)
    return {(topic.name, each.partition_index): each for topic in response.topics for each in topic.partitions}


def test_who_writes_and_whose_transaction_is_open(machine: Machine) -> None:
    producer = TransactionalProducer(machine).started()
    machine.client().append(records=batch(3, producer_id=900, producer_epoch=2, sequence=4))
    producer.write(ORDERS, count=2)
    found = describe(machine, ORDERS)[ORDERS]
    assert found.error_code == 0
    assert {
        each.producer_id: (each.producer_epoch, each.last_sequence, each.last_timestamp, each.current_txn_start_offset)
        for each in found.active_producers
    } == {900: (2, 6, START_MS, -1), producer.producer_id: (0, 1, START_MS, 3)}
    producer.end()
    producer.settle()
    (ended,) = [each for each in describe(machine, ORDERS)[ORDERS].active_producers if each.producer_id == producer.producer_id]
    assert (ended.current_txn_start_offset, ended.coordinator_epoch) == (-1, 0)


def test_partitions_that_cannot_be_looked_at(machine: Machine) -> None:
    log_of(machine, "orders", 1).go_offline("the disk is broken")
    found = describe(machine, ("orders", 1), ("orders", 9), ("missing", 0))
    assert {place: each.error_code for place, each in found.items()} == {
        ("orders", 1): ErrorCode.KAFKA_STORAGE_ERROR,
        ("orders", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_partition_that_is_named_twice_is_described_once(machine: Machine) -> None:
    response = machine.client().call(ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": "orders", "partition_indexes": [0, 0, 1]}])
    assert [each.partition_index for each in response.topics[0].partitions] == [0, 1]
