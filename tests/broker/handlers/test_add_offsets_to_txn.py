import pytest

from tests.broker.handlers.group_clients import committed
from tests.broker.harness import Machine
from tests.broker.transactional import FEW_SHARDS, ID, TransactionalProducer, stop_markers, transactional_machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

VERSIONS = range(5)


@pytest.fixture
def producer() -> TransactionalProducer:
    return TransactionalProducer(transactional_machine(partitions=2)).started()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_partition_of_the_group_is_added(producer: TransactionalProducer, version: int) -> None:
    machine = producer.machine
    assert producer.add_offsets("g", version=version) is ErrorCode.NONE
    (described,) = producer.client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[ID]).transaction_states
    index = int(machine.broker.coordinators.groups.shard_of("g").name.rpartition("-")[2])
    assert [(topic.topic, list(topic.partitions)) for topic in described.topics] == [("__consumer_offsets", [index])]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_zombie_hears_of_it_in_words_that_it_knows(producer: TransactionalProducer, version: int) -> None:
    TransactionalProducer(producer.machine).started()
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add_offsets(version=version) is code


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_producer(producer: TransactionalProducer, version: int) -> None:
    producer.producer_id += 1
    assert producer.add_offsets(version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_an_empty_transactional_id(producer: TransactionalProducer) -> None:
    producer.transactional_id = ""
    assert producer.add_offsets() is ErrorCode.INVALID_REQUEST


def test_the_last_transaction_is_waited_for_but_not_for_long(producer: TransactionalProducer) -> None:
    producer.write(("orders", 0))
    go_on = stop_markers(producer.machine)
    producer.end()
    assert producer.add_offsets() is ErrorCode.CONCURRENT_TRANSACTIONS
    go_on()
    assert producer.add_offsets() is ErrorCode.NONE


def test_the_topic_of_offsets_is_made_when_it_is_missing() -> None:
    machine = Machine(FEW_SHARDS)
    client = machine.client()
    client.create_topic()
    assert client.call(ApiKey.FIND_COORDINATOR, 3, key=ID, key_type=1).error_code == 0
    machine.run_for(1_000)
    producer = TransactionalProducer(machine).started()
    assert machine.broker.image.topic("__consumer_offsets") is None
    assert producer.add_offsets() is ErrorCode.NONE
    machine.run_for(1_000)
    assert producer.commit_offset(3) is ErrorCode.NONE
    producer.end()
    producer.settle()
    assert committed(machine.client()) == 3
