from typing import Any

import pytest

from tests.broker.handlers.group_clients import committed
from tests.broker.harness import FakeClient, Machine
from tests.broker.transactional import (
    TransactionalProducer,
    committed_offsets,
    is_open,
    log_of,
    markers_in,
    transactional_machine,
)
from tidelog.coordinator.shard import ShardState
from tidelog.transactions.end_transaction import MARKERS_PER_SLICE
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import encode_request
from tidelog.wire.protocol import ApiKey

VERSIONS = [1, 2]
ORDERS = ("orders", 0)
Codes = list[tuple[int, dict[tuple[str, int], ErrorCode]]]


@pytest.fixture
def machine() -> Machine:
    # As if a late request had come through: a transaction that no coordinator knows of.
    return transactional_machine({"transaction.partition.verification.enable": "false"}, partitions=2)


@pytest.fixture
def producer(machine: Machine) -> TransactionalProducer:
    return TransactionalProducer(machine).started()


def marker(producer_id: int, epoch: int = 0, *places: tuple[str, int], commits: bool = False, **fields: Any) -> dict[str, Any]:
    names = dict.fromkeys(name for name, _ in places)
    return {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": commits,
        "coordinator_epoch": 0,
        "topics": [{"name": name, "partition_indexes": [index for topic, index in places if topic == name]} for name in names],
        **fields,
    }


def write(client: FakeClient, *markers: dict[str, Any], version: int = 1) -> Codes:
    response = client.call(ApiKey.WRITE_TXN_MARKERS, version, markers=list(markers))
    return [
        (
            each.producer_id,
            {
                (topic.name, partition.partition_index): ErrorCode(partition.error_code)
                for topic in each.topics
                for partition in topic.partitions
            },
        )
        for each in response.markers
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commits", [True, False])
def test_a_hanging_transaction_is_ended(producer: TransactionalProducer, version: int, commits: bool) -> None:
    machine = producer.machine
    producer.produce(ORDERS)
    assert is_open(machine)
    owner = producer.producer_id
    codes = write(machine.client(), marker(owner, producer.epoch, ORDERS, commits=commits), version=version)
    assert codes == [(owner, {ORDERS: ErrorCode.NONE})]
    assert not is_open(machine)
    assert committed_offsets(machine.client()) == ([0] if commits else [])


@pytest.mark.parametrize("version", VERSIONS)
def test_several_markers_in_one_request(producer: TransactionalProducer, version: int) -> None:
    client = producer.machine.client()
    places = [ORDERS, ("orders", 1), ("missing", 0)]
    codes = write(client, marker(7, 0, *places), marker(8, 0, ORDERS), marker(7, 0, ORDERS), marker(9), version=version)
    none = ErrorCode.NONE
    assert codes == [
        (7, {ORDERS: none, ("orders", 1): none, ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
        (8, {ORDERS: none}),
        (7, {ORDERS: none}),
        (9, {}),
    ]
    assert len(markers_in(producer.machine)) == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_to_write(machine: Machine, version: int) -> None:
    assert write(machine.client(), version=version) == []


def test_an_older_epoch_of_the_producer(producer: TransactionalProducer) -> None:
    producer.started().produce(ORDERS)
    owner = producer.producer_id
    codes = write(producer.machine.client(), marker(owner, producer.epoch - 1, ORDERS))
    assert codes == [(owner, {ORDERS: ErrorCode.INVALID_PRODUCER_EPOCH})]
    assert is_open(producer.machine)


def test_an_older_epoch_of_the_coordinator(producer: TransactionalProducer) -> None:
    client = producer.machine.client()
    write(client, marker(producer.producer_id, 0, ORDERS, coordinator_epoch=5))
    producer.produce(ORDERS)
    codes = write(client, marker(producer.producer_id, 0, ORDERS, coordinator_epoch=4))
    assert codes == [(producer.producer_id, {ORDERS: ErrorCode.TRANSACTION_COORDINATOR_FENCED})]
    assert is_open(producer.machine)


def test_a_late_marker_of_version_2_does_not_end_the_next_transaction(machine: Machine) -> None:
    producer = TransactionalProducer(machine, is_v2=True).started()
    producer.write(ORDERS)
    producer.end()
    producer.settle()
    producer.write(ORDERS)
    late = marker(producer.producer_id, producer.epoch, ORDERS)
    owner = producer.producer_id
    codes = write(machine.client(), {**late, "transaction_version": 2}, version=2)
    assert codes == [(owner, {ORDERS: ErrorCode.INVALID_PRODUCER_EPOCH})]
    assert is_open(machine)


def test_offsets_of_a_group(producer: TransactionalProducer) -> None:
    machine = producer.machine
    index = int(machine.broker.coordinators.groups.shard_of("g").name.rpartition("-")[2])
    place = "__consumer_offsets", index
    assert producer.add_offsets() is ErrorCode.NONE
    assert producer.commit_offset(5) is ErrorCode.NONE
    end = marker(producer.producer_id, producer.epoch, place, commits=True, coordinator_epoch=3)
    assert write(machine.client(), end) == [(producer.producer_id, {place: ErrorCode.NONE})]
    assert committed(machine.client()) == 5
    # One that is refused leaves the group as it is.
    codes = write(machine.client(), {**end, "coordinator_epoch": 2})
    assert codes == [(producer.producer_id, {place: ErrorCode.TRANSACTION_COORDINATOR_FENCED})]
    assert machine.broker.coordinators.groups.shard(index).state is ShardState.ACTIVE
    # A coordinator that sends it knows of leaders only.
    machine.broker.coordinators.groups.shard(index).drop(OSError("a failed append"))
    codes = write(machine.client(), end)
    assert codes == [(producer.producer_id, {place: ErrorCode.NOT_LEADER_OR_FOLLOWER})]


def test_a_coordinators_own_log_takes_none(machine: Machine) -> None:
    place = "__transaction_state", 0
    before = log_of(machine, *place).log_end_offset
    assert write(machine.client(), marker(7, 0, place)) == [(7, {place: ErrorCode.INVALID_TOPIC_EXCEPTION})]
    assert log_of(machine, *place).log_end_offset == before


def test_an_offline_partition_is_not_waited_for(machine: Machine) -> None:
    log_of(machine).go_offline("the disk is broken")
    assert write(machine.client(), marker(7, 0, ORDERS)) == [(7, {ORDERS: ErrorCode.KAFKA_STORAGE_ERROR})]


def test_many_are_written_in_slices() -> None:
    machine = transactional_machine(partitions=4 * MARKERS_PER_SLICE)
    client = machine.client()
    places = [("orders", index) for index in range(4 * MARKERS_PER_SLICE)]
    body = encode_request(ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [marker(7, 0, *places)]})
    client.send(ApiKey.WRITE_TXN_MARKERS, 1, body)
    assert not any(log_of(machine, *place).log_end_offset for place in places)
    machine.broker.coordinators.local_markers._run()
    assert sum(log_of(machine, *place).log_end_offset for place in places) == MARKERS_PER_SLICE
    machine.run_until(lambda: bool(client.replies))
    assert all(log_of(machine, *place).log_end_offset == 1 for place in places)
