"""What read_committed readers see: never what is open or aborted, and never less than all that is committed below it."""

import random

import pytest

from tests.broker.handlers.group_clients import commit, committed
from tests.broker.harness import FakeClient, Machine
from tests.broker.transactional import (
    ORDERS,
    OTHER,
    READ_COMMITTED,
    TransactionalProducer,
    committed_offsets,
    fetch,
    is_open,
    is_settled,
    log_of,
    stop_markers,
    transactional_machine,
    wait_loaded,
)
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def producer(machine: Machine, request: pytest.FixtureRequest) -> TransactionalProducer:
    return TransactionalProducer(machine, is_v2=request.param).started()


def stable_offset(client: FakeClient) -> int:
    """By ListOffsets: where a read_committed reader's end is."""
    topics = [{"name": "orders", "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}]
    response = client.call(ApiKey.LIST_OFFSETS, 5, replica_id=-1, isolation_level=READ_COMMITTED, topics=topics)
    offset: int = response.topics[0].partitions[0].offset
    return offset


def test_open_records_are_not_seen_nor_what_is_behind_them(producer: TransactionalProducer) -> None:
    client = producer.machine.client()
    client.append()
    producer.write(ORDERS)
    client.append()
    assert committed_offsets(client) == [0]
    assert stable_offset(client) == 1
    producer.end()
    producer.settle()
    assert committed_offsets(client) == [0, 1, 2]
    assert stable_offset(client) == 4


def test_a_decision_is_not_seen_before_its_marker(producer: TransactionalProducer) -> None:
    client = producer.machine.client()
    producer.write(ORDERS)
    go_on = stop_markers(producer.machine)
    producer.end()
    producer.machine.run_for(1_000)
    assert committed_offsets(client) == []
    go_on()
    producer.settle()
    assert committed_offsets(client) == [0]


def test_a_marker_is_not_seen_before_it_is_durable(producer: TransactionalProducer) -> None:
    machine = producer.machine
    producer.write(ORDERS)
    go_on = stop_markers(machine)
    producer.end()
    delay_us, machine.executor.run_delay_us = machine.executor.run_delay_us, (10**6, 10**6)
    go_on()
    machine.run_until(lambda: not is_open(machine))
    assert (log_of(machine).log_end_offset, log_of(machine).last_stable_offset) == (2, 0)
    assert committed_offsets(machine.client()) == []
    machine.executor.run_delay_us = delay_us
    producer.settle()
    assert log_of(machine).last_stable_offset == 2


def test_aborted_records_are_listed_with_their_producer_and_first_offset(producer: TransactionalProducer) -> None:
    machine = producer.machine
    other = TransactionalProducer(machine, "other").started()
    producer.write(ORDERS, count=2)
    other.write(ORDERS)
    producer.write(ORDERS)
    producer_id = producer.producer_id
    producer.end(False)
    producer.settle()
    client = machine.client()
    fetched = fetch(client, "orders", 0, READ_COMMITTED)
    # The other one is open: below it there is only what was aborted.
    assert (fetched.aborted, fetched.last_stable_offset) == ([(producer_id, 0)], 2)
    assert committed_offsets(client) == []
    other.end()
    other.settle()
    fetched = fetch(client, "orders", 0, READ_COMMITTED)
    assert (fetched.aborted, fetched.last_stable_offset) == ([(producer_id, 0)], 6)
    assert committed_offsets(client) == [2]


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(machine: Machine) -> None:
    producer = TransactionalProducer(machine, timeout_ms=5_000).started()
    producer.write(ORDERS)
    machine.run_for(4_000)
    assert producer.state == "Ongoing"
    machine.run_for(16_000)
    machine.run_until(lambda: is_settled(machine))
    assert producer.state == "CompleteAbort"
    assert log_of(machine).last_stable_offset == 2
    assert committed_offsets(machine.client()) == []
    (result,) = producer.produce(ORDERS)
    assert result.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end() is ErrorCode.PRODUCER_FENCED
    producer.started().write(ORDERS)
    producer.end()
    producer.settle()
    assert committed_offsets(machine.client()) == [2]


def test_a_producer_is_not_forgotten_while_its_transaction_is_open_and_then_begins_nothing() -> None:
    settings = {"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "1000"}
    machine = transactional_machine(settings)
    producer = TransactionalProducer(machine).started()
    producer.write(ORDERS)
    machine.run_for(20_000)
    assert is_open(machine)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    machine.run_until(lambda: log_of(machine).producers.producer_count == 0)
    (late,) = producer.produce(ORDERS)
    assert late.error is ErrorCode.INVALID_TXN_STATE
    assert not is_open(machine)
    assert committed_offsets(machine.client()) == [0]


def test_offsets_count_with_the_commit_and_never_with_an_abort(producer: TransactionalProducer) -> None:
    client = producer.machine.client()
    commit(client, {"orders": {0: 1}})
    for is_commit, offset in ((False, 5), (True, 7)):
        if not producer.is_v2:
            assert producer.add_offsets() is ErrorCode.NONE
        assert producer.commit_offset(offset) is ErrorCode.NONE
        assert committed(client) == 1
        response = client.call(
            ApiKey.OFFSET_FETCH, 7, group_id="g", topics=[{"name": "orders", "partition_indexes": [0]}], require_stable=True
        )
        assert response.topics[0].partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        producer.end(is_commit)
        producer.settle()
    assert committed(client) == 7


def test_a_group_that_is_deleted_meanwhile_stays_deleted(producer: TransactionalProducer) -> None:
    machine = producer.machine
    client = machine.client()
    if not producer.is_v2:
        assert producer.add_offsets() is ErrorCode.NONE
    assert producer.commit_offset(5) is ErrorCode.NONE
    (deleted,) = client.call(ApiKey.DELETE_GROUPS, 2, groups_names=["g"]).results
    assert deleted.error_code == 0
    producer.end()
    producer.settle()
    assert committed(client) == -1
    # The marker is in the log all the same, so that nothing is left open there.
    assert machine.crash("none") is None
    wait_loaded(machine)
    assert committed(machine.client()) == -1
    index = int(machine.broker.coordinators.groups.shard_of("g").name.rpartition("-")[2])
    assert not is_open(machine, "__consumer_offsets", index)


@pytest.mark.parametrize("seed", range(6))
def test_transactions_by_chance(seed: int) -> None:
    """Several producers on two partitions, each ends its transactions one way or the other: readers see exactly the committed
    ones at any moment that they look, and all of them in the end."""
    chance = random.Random(seed)
    machine = transactional_machine(partitions=2)
    producers = [TransactionalProducer(machine, f"tx{number}", is_v2=number % 2 == 0).started() for number in range(4)]
    reader = machine.client()
    written: dict[TransactionalProducer, list[tuple[tuple[str, int], int]]] = {each: [] for each in producers}
    visible: dict[tuple[str, int], set[int]] = {ORDERS: set(), OTHER: set()}

    def check() -> None:
        for place, offsets in visible.items():
            shown = committed_offsets(reader, *place)
            assert set(shown) <= offsets
            stable = log_of(machine, *place).last_stable_offset
            assert {offset for offset in offsets if offset < stable} == {offset for offset in shown if offset < stable}

    for _ in range(60):
        producer = chance.choice(producers)
        if chance.random() < 0.6 or not written[producer]:
            place = chance.choice([ORDERS, OTHER])
            if not producer.is_v2:
                assert producer.add(place) == {place: ErrorCode.NONE}
            (result,) = producer.produce(place)
            assert result.error is ErrorCode.NONE
            written[producer].append((place, result.base_offset))
        else:
            is_commit = chance.random() < 0.5
            if is_commit:
                for place, offset in written[producer]:
                    visible[place].add(offset)
            assert producer.end(is_commit) is ErrorCode.NONE
            written[producer] = []
            if chance.random() < 0.3:
                producer.settle()
        check()
    for producer in producers:
        if written[producer]:
            assert producer.end(False) is ErrorCode.NONE
    machine.run_for(1_000)
    for place, offsets in visible.items():
        assert committed_offsets(reader, *place) == sorted(offsets)
        assert log_of(machine, *place).last_stable_offset == log_of(machine, *place).log_end_offset
