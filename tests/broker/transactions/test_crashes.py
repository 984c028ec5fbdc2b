"""A crash at every step of a transaction: the same outcome in all its partitions, and readers go on."""

from typing import Any

import pytest

from simulation.disk import Keep, SimulatedDisk
from tests.broker.handlers.group_clients import committed
from tests.broker.harness import Machine
from tests.broker.transactional import (
    FEW_SHARDS,
    TransactionalProducer,
    committed_offsets,
    is_open,
    is_prepared,
    is_settled,
    log_of,
    markers_in,
    stop_markers,
    transactional_machine,
    wait_loaded,
)
from tidelog.broker.transactions.marker_writer import PartitionMarkerWriter
from tidelog.log.reading import Isolation, read
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import encode_request
from tidelog.wire.protocol import ApiKey

PARTITIONS = [("orders", 0), ("orders", 1), ("orders2", 0)]
MANY = 100
KEEPS: list[Keep] = ["none", "some", "all"]


def crashed(machine: Machine, keep: Keep) -> None:
    assert machine.crash(keep) is None
    wait_loaded(machine)


def state_of(machine: Machine) -> str:
    return TransactionalProducer(machine).state


def timed_out(machine: Machine) -> None:
    """Nobody ends it, so its coordinator does."""
    machine.run_for(90_000)
    machine.run_until(lambda: is_settled(machine))


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def producer(request: pytest.FixtureRequest) -> TransactionalProducer:
    machine = transactional_machine(topics=2, partitions=2)
    return TransactionalProducer(machine, is_v2=request.param).started()


@pytest.mark.parametrize("keep", KEEPS)
def test_before_the_first_record_a_producer_goes_on(producer: TransactionalProducer, keep: Keep) -> None:
    crashed(producer.machine, keep)
    producer.reconnected().write(*PARTITIONS)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert committed_offsets(producer.client) == [0]


@pytest.mark.parametrize("keep", KEEPS)
def test_an_open_transaction_stays_open_and_is_committed(producer: TransactionalProducer, keep: Keep) -> None:
    machine = producer.machine
    producer.write(*PARTITIONS)
    crashed(machine, keep)
    assert state_of(machine) == "Ongoing"
    assert all(is_open(machine, *place) for place in PARTITIONS)
    assert committed_offsets(machine.client()) == []
    producer.reconnected().write(*PARTITIONS)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert [committed_offsets(machine.client(), *place) for place in PARTITIONS] == [[0, 1]] * 3


@pytest.mark.parametrize("keep", KEEPS)
def test_an_open_transaction_that_nobody_ends_is_aborted(producer: TransactionalProducer, keep: Keep) -> None:
    machine = producer.machine
    producer.write(*PARTITIONS)
    crashed(machine, keep)
    timed_out(machine)
    assert state_of(machine) == "CompleteAbort"
    for place in PARTITIONS:
        assert committed_offsets(machine.client(), *place) == []
        assert log_of(machine, *place).last_stable_offset == 2
    assert producer.reconnected().end() in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_decision_without_any_marker_is_carried_out(producer: TransactionalProducer, keep: Keep, is_commit: bool) -> None:
    machine = producer.machine
    producer.write(*PARTITIONS)
    stop_markers(machine)
    assert producer.end(is_commit) is ErrorCode.NONE
    machine.run_for(1_000)
    assert all(is_open(machine, *place) for place in PARTITIONS)
    crashed(machine, keep)
    machine.run_until(lambda: is_settled(machine))
    for place in PARTITIONS:
        assert committed_offsets(machine.client(), *place) == ([0] if is_commit else [])
        assert log_of(machine, *place).last_stable_offset == 2


@pytest.mark.parametrize("keep", KEEPS)
def test_a_decision_that_was_not_answered_is_all_or_nothing(producer: TransactionalProducer, keep: Keep) -> None:
    """EndTxn was sent, and the crash came before its record was synced: found again or not, it is never half."""
    machine = producer.machine
    producer.write(*PARTITIONS)
    delay_us, machine.executor.run_delay_us = machine.executor.run_delay_us, (10**9, 10**9)
    version = 5 if producer.is_v2 else 4
    producer.client.send(ApiKey.END_TXN, version, encode_request(ApiKey.END_TXN, version, {"committed": True, **producer.fields}))
    machine.broker.end_of_burst()
    machine.executor.run_delay_us = delay_us
    crashed(machine, keep)
    if state_of(machine) == "Ongoing":
        assert keep != "all"
        timed_out(machine)
    machine.run_until(lambda: is_settled(machine))
    shown = [committed_offsets(machine.client(), *place) for place in PARTITIONS]
    assert shown == [[0] if state_of(machine) == "CompleteCommit" else []] * 3
    assert not any(is_open(machine, *place) for place in PARTITIONS)


@pytest.mark.parametrize("keep", KEEPS)
def test_offsets_of_a_decision_take_effect_after_a_crash(producer: TransactionalProducer, keep: Keep) -> None:
    machine = producer.machine
    producer.write(("orders", 0))
    if not producer.is_v2:
        assert producer.add_offsets() is ErrorCode.NONE
    assert producer.commit_offset(7) is ErrorCode.NONE
    stop_markers(machine)
    assert producer.end() is ErrorCode.NONE
    crashed(machine, keep)
    machine.run_until(lambda: is_settled(machine))
    assert committed(machine.client()) == 7


@pytest.mark.parametrize("keep", KEEPS)
def test_a_completed_transaction_stays_so_and_gets_no_more_markers(producer: TransactionalProducer, keep: Keep) -> None:
    machine = producer.machine
    producer.write(*PARTITIONS)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    crashed(machine, keep)
    machine.run_for(1_000)
    assert state_of(machine) == "CompleteCommit"
    assert [markers_in(machine, *place) for place in PARTITIONS] == [[True]] * 3
    producer.reconnected().write(*PARTITIONS)
    assert producer.end(False) is ErrorCode.NONE
    producer.settle()
    assert [committed_offsets(machine.client(), *place) for place in PARTITIONS] == [[0]] * 3


@pytest.mark.parametrize("topic", ["relaxed", "__consumer_offsets"])
def test_a_marker_counts_when_it_is_durable_also_on_a_relaxed_topic(producer: TransactionalProducer, topic: str) -> None:
    """Records that were synced and a marker that was lost would be a transaction that nobody ends any more."""
    machine = producer.machine
    producer.client.create_topic("relaxed", flush_messages="1000000")
    relaxed = [{"name": "flush.messages", "config_operation": 0, "value": "1000000"}]
    resource = {"resource_type": 2, "resource_name": "__consumer_offsets", "configs": relaxed}
    response = producer.client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    assert response.responses[0].error_code == 0
    if topic == "relaxed":
        producer.write(("relaxed", 0))
    else:
        if not producer.is_v2:
            assert producer.add_offsets() is ErrorCode.NONE
        assert producer.commit_offset(5) is ErrorCode.NONE
    machine.run_for(10_000)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    crashed(machine, "none")
    machine.run_until(lambda: is_settled(machine))
    if topic == "relaxed":
        assert not is_open(machine, "relaxed")
        assert committed_offsets(machine.client(), "relaxed") == [0]
    else:
        assert committed(machine.client()) == 5


@pytest.mark.parametrize(
    ("is_commit", "step"), [(True, 5), (False, 7), pytest.param(True, 1, marks=pytest.mark.soak, id="after every marker")]
)
def test_after_each_marker_of_a_large_transaction(monkeypatch: pytest.MonkeyPatch, is_commit: bool, step: int) -> None:
    """The half-marked transaction exists, and completes after the restart with the same outcome everywhere."""
    machine = transactional_machine(partitions=MANY)
    places = [("orders", index) for index in range(MANY)]
    producer = TransactionalProducer(machine).started()
    producer.write(*places)
    images: list[SimulatedDisk] = []
    halves = 0
    write_marker = PartitionMarkerWriter.write

    def written(writer: PartitionMarkerWriter, *arguments: Any) -> None:
        nonlocal halves
        write_marker(writer, *arguments)
        halves += is_prepared(machine)
        images.append(machine.disk.crash_image(machine.randomness, KEEPS[len(images) % 3]))

    monkeypatch.setattr(PartitionMarkerWriter, "write", written)
    assert producer.end(is_commit) is ErrorCode.NONE
    producer.settle()
    monkeypatch.undo()
    assert (len(images), halves) == (MANY, MANY)

    for image in images[::step]:
        restarted = Machine(FEW_SHARDS, is_started=False)
        restarted.disk = restarted.executor.disk = image
        assert restarted.start() is None
        wait_loaded(restarted)
        restarted.run_until(lambda restarted=restarted: is_settled(restarted))  # type: ignore[misc]  # binds the loop's variable
        for place in places:
            log = log_of(restarted, *place)
            assert log.last_stable_offset == log.log_end_offset >= 2
            assert bool(read(log, 0, 1000, Isolation.LAST_STABLE).aborted) is not is_commit
