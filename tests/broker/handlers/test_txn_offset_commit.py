from typing import Any

import pytest

from tests.broker.handlers.group_clients import committed, heartbeat, join
from tests.broker.harness import Machine
from tests.broker.transactional import (
    FEW_SHARDS,
    ID,
    TransactionalProducer,
    code_of,
    stop_markers,
    transactional_machine,
    wait_loaded,
)
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

VERSIONS = range(6)
MEMBER_SINCE = 3
VERSION_2_SINCE = 5


@pytest.fixture
def machine() -> Machine:
    return transactional_machine(partitions=2)


@pytest.fixture
def producer(machine: Machine) -> TransactionalProducer:
    return TransactionalProducer(machine).started()


def begun(producer: TransactionalProducer, version: int) -> TransactionalProducer:
    if version < VERSION_2_SINCE:
        assert producer.add_offsets() is ErrorCode.NONE
    return producer


@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_count_when_the_transaction_commits(producer: TransactionalProducer, version: int) -> None:
    client = producer.machine.client()
    assert begun(producer, version).commit_offset(5, version=version) is ErrorCode.NONE
    assert committed(client) == -1
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert committed(client) == 5


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, ErrorCode.INVALID_TXN_STATE),
        (3, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE),
        (5, ErrorCode.NONE),
    ],
)
def test_a_group_that_was_not_added(producer: TransactionalProducer, version: int, code: ErrorCode) -> None:
    assert producer.commit_offset(5, version=version) is code


@pytest.mark.parametrize("version", VERSIONS)
def test_a_zombie(producer: TransactionalProducer, version: int) -> None:
    begun(producer, version)
    TransactionalProducer(producer.machine).started()
    assert producer.commit_offset(5, version=version) is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("version", VERSIONS)
def test_another_producers_id(producer: TransactionalProducer, version: int) -> None:
    begun(producer, version)
    producer.producer_id += 1
    assert producer.commit_offset(5, version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_group_id(producer: TransactionalProducer, version: int) -> None:
    assert begun(producer, version).commit_offset(5, version=version, group_id="") is ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_or_partition_that_does_not_exist(producer: TransactionalProducer, version: int) -> None:
    begun(producer, version)
    for topic, partition in (("missing", 0), ("orders", 9)):
        assert producer.commit_offset(5, topic, partition, version=version) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", VERSIONS)
def test_while_the_groups_shard_is_loaded(producer: TransactionalProducer, version: int) -> None:
    begun(producer, version)
    producer.machine.broker.coordinators.groups.shard_of("g").drop(OSError("a failed append"))
    loading = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert producer.commit_offset(5, version=version) in loading


@pytest.mark.parametrize("version", VERSIONS)
def test_while_the_transactions_shard_is_loaded(producer: TransactionalProducer, version: int) -> None:
    """The client asks the group's coordinator again, which is the right one."""
    begun(producer, version)
    producer.machine.broker.coordinators.transactions.shard_of(ID).drop(OSError("a failed append"))
    assert producer.commit_offset(5, version=version) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    wait_loaded(producer.machine)
    assert producer.commit_offset(5, version=version) is ErrorCode.NONE


def test_without_a_topic_of_offsets() -> None:
    machine = Machine(FEW_SHARDS)
    client = machine.client()
    client.create_topic()
    assert client.call(ApiKey.FIND_COORDINATOR, 3, key=ID, key_type=1).error_code == 0
    machine.run_for(1_000)
    producer = TransactionalProducer(machine).started()
    assert producer.commit_offset(5) is ErrorCode.NOT_COORDINATOR


def test_a_transaction_that_is_being_ended(producer: TransactionalProducer) -> None:
    begun(producer, 3)
    go_on = stop_markers(producer.machine)
    producer.end()
    assert producer.commit_offset(5, version=3) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert producer.commit_offset(5, version=5) is ErrorCode.CONCURRENT_TRANSACTIONS
    go_on()


# -- the group's own checks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(MEMBER_SINCE, 6))
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, ErrorCode.NONE),
        ({"member_id": "", "generation_id": -1}, ErrorCode.NONE),
        ({"generation_id": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_classic_member(producer: TransactionalProducer, version: int, fields: dict[str, Any], code: ErrorCode) -> None:
    member_id, generation = join(producer.machine.client(), "orders")
    begun(producer, version)
    fields = {"member_id": member_id, "generation_id": generation, **fields}
    assert producer.commit_offset(5, version=version, **fields) is code
    producer.end()
    producer.settle()
    assert committed(producer.machine.client()) == (5 if code is ErrorCode.NONE else -1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, ErrorCode.NONE),
        ({"member_id": "", "generation_id": -1}, ErrorCode.NONE),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_member_of_the_consumer_protocol(producer: TransactionalProducer, fields: dict[str, Any], code: ErrorCode) -> None:
    epoch = heartbeat(producer.machine.client(), "member", 0, "orders").member_epoch
    begun(producer, 3)
    assert producer.commit_offset(5, **{"member_id": "member", "generation_id": epoch, **fields}) is code


def test_a_generation_of_a_group_that_does_not_exist(producer: TransactionalProducer) -> None:
    begun(producer, 3)
    assert producer.commit_offset(5, member_id="member", generation_id=1) is ErrorCode.ILLEGAL_GENERATION


def test_metadata_that_is_too_large(producer: TransactionalProducer) -> None:
    begun(producer, 3)
    commit = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": "x" * 5_000}
    response = producer.client.call(
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        group_id="g",
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": "orders", "partitions": [commit]}],
        **producer.fields,
    )
    assert code_of(response) is ErrorCode.OFFSET_METADATA_TOO_LARGE
