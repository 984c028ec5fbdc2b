"""Markers on their way: partitions that are offline, deleted or made again, coordinators that are gone, many partitions."""

import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import (
    ID,
    ORDERS,
    OTHER,
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
from tidelog.coordinator.errors import NotCoordinator
from tidelog.coordinator.shard import ShardState
from tidelog.log.errors import InvalidProducerEpoch
from tidelog.log.time_budget import BUDGET_MS_MAX
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.end_transaction import (
    MARKERS_PER_SLICE,
    RETRY_MS_MAX,
    MarkersToWrite,
    OnMarkerWritten,
    TransactionMarker,
    transaction_marker,
)
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


def write_marker(
    machine: Machine,
    place: TopicPartition,
    producer: tuple[int, int],
    *,
    is_commit: bool = False,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> Exception | None:
    said: list[Exception | None] = []
    marker = transaction_marker(
        *producer, is_commit=is_commit, coordinator_epoch=coordinator_epoch, transaction_version=transaction_version
    )
    markers = MarkersToWrite(marker, [place], lambda _, error: said.append(error), is_retried=False)
    machine.broker.coordinators.markers.send(markers)
    machine.run_until(lambda: bool(said))
    return said[0]


def send(machine: Machine, partitions: list[TopicPartition], on_written: OnMarkerWritten, producer_id: int = 1) -> MarkersToWrite:
    marker = transaction_marker(producer_id, 0, is_commit=True, coordinator_epoch=0, transaction_version=0)
    markers = MarkersToWrite(marker, partitions, on_written)
    machine.broker.coordinators.markers.send(markers)
    return markers


# -- partitions that cannot take their marker --------------------------------------------------------------------------------


def test_an_offline_partition_gets_its_marker_after_a_restart_and_others_at_once(producer: TransactionalProducer) -> None:
    machine = producer.machine
    producer.write(ORDERS, OTHER)
    log_of(machine).go_offline("the disk is broken")
    assert producer.end() is ErrorCode.NONE
    machine.run_for(20_000)
    assert is_prepared(machine)
    assert not is_open(machine, *OTHER)
    assert len(machine.facts("transaction_marker_delayed")) == 1
    # With growing pauses, and without end.
    assert 6 <= machine.broker.coordinators.markers.retries < 20
    assert machine.crash("none") is None
    wait_loaded(machine)
    machine.run_until(lambda: is_settled(machine))
    assert [committed_offsets(machine.client(), *place) for place in (ORDERS, OTHER)] == [[0], [0]]


def test_a_full_disk_delays_markers(producer: TransactionalProducer) -> None:
    machine = producer.machine
    producer.write(ORDERS)
    go_on = stop_markers(machine)
    assert producer.end() is ErrorCode.NONE
    machine.disk.set_free_bytes(0)
    go_on()
    machine.run_for(1_000)
    assert is_prepared(machine)
    machine.disk.set_free_bytes(None)
    producer.settle()
    assert committed_offsets(machine.client()) == [0]


def test_a_deleted_partition_needs_none(producer: TransactionalProducer) -> None:
    machine = producer.machine
    producer.client.create_topic("gone")
    producer.write(ORDERS, ("gone", 0))
    producer.client.call(ApiKey.DELETE_TOPICS, 5, topic_names=["gone"], timeout_ms=1000)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert committed_offsets(machine.client()) == [0]
    assert machine.facts("transaction_marker_delayed") == machine.facts("transaction_marker_refused") == []


def test_a_topic_that_is_deleted_while_its_marker_is_retried_ends_it(producer: TransactionalProducer) -> None:
    producer.client.create_topic("gone")
    producer.write(ORDERS, ("gone", 0))
    log_of(producer.machine, "gone").go_offline("the disk is broken")
    assert producer.end() is ErrorCode.NONE
    producer.machine.run_for(500)
    assert is_prepared(producer.machine)
    producer.client.call(ApiKey.DELETE_TOPICS, 5, topic_names=["gone"], timeout_ms=1000)
    producer.settle()


def test_a_topic_that_was_made_again_takes_the_marker_without_harm(producer: TransactionalProducer) -> None:
    machine = producer.machine
    producer.client.create_topic("again")
    producer.write(ORDERS, ("again", 0))
    producer.client.call(ApiKey.DELETE_TOPICS, 5, topic_names=["again"], timeout_ms=1000)
    machine.run_for(1_000)
    producer.client.create_topic("again")
    assert producer.client.append("again").error is ErrorCode.NONE
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert committed_offsets(machine.client(), "again") == [0]
    assert log_of(machine, "again").last_stable_offset == 2


# -- coordinators ------------------------------------------------------------------------------------------------------------


def test_a_coordinator_that_is_gone_sends_no_more(producer: TransactionalProducer) -> None:
    machine = producer.machine
    producer.write(ORDERS, OTHER)
    go_on = stop_markers(machine)
    assert producer.end() is ErrorCode.NONE
    transactions = machine.broker.coordinators.transactions
    shard = transactions.shard_of(ID)
    transactions.runtime.release(int(shard.name.rpartition("-")[2]), NotCoordinator("led elsewhere"))
    go_on()
    machine.run_for(2 * RETRY_MS_MAX)
    assert markers_in(machine) == markers_in(machine, *OTHER) == []
    # It leads again.
    wait_loaded(machine)
    machine.run_until(lambda: is_settled(machine))
    assert [markers_in(machine, *place) for place in (ORDERS, OTHER)] == [[True], [True]]


def test_a_coordinator_that_is_gone_stops_trying_again(producer: TransactionalProducer) -> None:
    machine = producer.machine
    producer.write(ORDERS)
    log_of(machine).go_offline("the disk is broken")
    assert producer.end() is ErrorCode.NONE
    machine.run_until(lambda: machine.broker.coordinators.markers.retries > 0)
    transactions = machine.broker.coordinators.transactions
    shard = transactions.shard_of(ID)
    transactions.runtime.release(int(shard.name.rpartition("-")[2]), NotCoordinator("led elsewhere"))
    retries = machine.broker.coordinators.markers.retries
    machine.run_for(2 * RETRY_MS_MAX)
    assert machine.broker.coordinators.markers.retries == retries


def test_a_coordinator_that_is_gone_hears_no_more(machine: Machine) -> None:
    """A marker that was written is not taken back, but it is the next coordinator's to ask about."""
    marked: list[tuple[str, int]] = []
    markers = send(machine, [ORDERS], lambda place, _: marked.append(place))
    machine.run_until(lambda: log_of(machine).log_end_offset == 1)
    assert marked == []
    markers.cancel()
    machine.run_until(lambda: log_of(machine).high_watermark == 1)
    assert marked == []


def test_a_shard_that_is_reloaded_sends_all_markers_again(producer: TransactionalProducer) -> None:
    """Half of them were written before, and one more of each does no harm."""
    machine = producer.machine
    producer.write(ORDERS, OTHER)
    log_of(machine, *OTHER).go_offline("the disk is broken")
    assert producer.end() is ErrorCode.NONE
    machine.run_until(lambda: machine.broker.coordinators.markers.retries > 0)
    machine.broker.coordinators.transactions.shard_of(ID).drop(OSError("a failed append"))
    wait_loaded(machine)
    machine.run_for(1_000)
    assert is_prepared(machine)
    assert markers_in(machine) == [True, True]
    assert committed_offsets(machine.client()) == [0]
    assert producer.add(ORDERS) == {ORDERS: ErrorCode.CONCURRENT_TRANSACTIONS}


def test_a_later_coordinator_epoch_is_waited_for_while_the_transaction_is_open(producer: TransactionalProducer) -> None:
    """Taken for the end, it would leave the partition with a transaction that nobody knows of."""
    machine = producer.machine
    producer.write(ORDERS)
    owner = producer.producer_id, producer.epoch
    assert write_marker(machine, ORDERS, owner, coordinator_epoch=7) is None
    producer.write(ORDERS)
    assert producer.end() is ErrorCode.NONE
    machine.run_for(10_000)
    assert is_prepared(machine)
    assert is_open(machine)
    assert write_marker(machine, ORDERS, owner, is_commit=True, coordinator_epoch=7) is None
    machine.run_for(2 * RETRY_MS_MAX)
    assert is_settled(machine)
    assert len(machine.facts("transaction_marker_refused")) == 1
    assert committed_offsets(machine.client()) == [2]


def test_a_partition_that_has_heard_of_a_later_epoch_needs_no_marker(producer: TransactionalProducer) -> None:
    machine = producer.machine
    producer.write(ORDERS)
    assert write_marker(machine, ORDERS, (producer.producer_id, producer.epoch + 1)) is None
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert committed_offsets(machine.client()) == []
    assert len(machine.facts("transaction_marker_refused")) == 1


def test_a_late_marker_of_version_2_does_not_end_the_next_transaction(machine: Machine) -> None:
    producer = TransactionalProducer(machine, is_v2=True).started()
    producer.write(ORDERS)
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    owner = producer.producer_id, producer.epoch
    # While nothing is open it is the repetition of what was written.
    assert write_marker(machine, ORDERS, owner, is_commit=True, transaction_version=2) is None
    producer.write(ORDERS)
    assert isinstance(write_marker(machine, ORDERS, owner, transaction_version=2), InvalidProducerEpoch)
    assert is_open(machine)


# -- __consumer_offsets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epoch", "coordinator_epoch"), [(-1, 9), (0, 2)])
def test_a_marker_that_is_refused_does_not_cost_a_group_its_shard(
    producer: TransactionalProducer, epoch: int, coordinator_epoch: int
) -> None:
    machine = producer.machine
    groups = machine.broker.coordinators.groups
    index = int(groups.shard_of("g").name.rpartition("-")[2])
    place = "__consumer_offsets", index
    assert producer.add_offsets() is ErrorCode.NONE
    assert producer.commit_offset(3) is ErrorCode.NONE
    owner = producer.producer_id, producer.epoch
    assert write_marker(machine, place, owner, coordinator_epoch=5) is None
    error = write_marker(machine, place, (owner[0], owner[1] + epoch), coordinator_epoch=coordinator_epoch)
    assert error is not None
    assert not isinstance(error, NotCoordinator)
    assert groups.shard(index).state is ShardState.ACTIVE
    assert groups.shard(index).drops == 0


def test_a_group_shard_that_is_being_loaded_gets_its_marker_later(producer: TransactionalProducer) -> None:
    machine = producer.machine
    assert producer.add_offsets() is ErrorCode.NONE
    assert producer.commit_offset(3) is ErrorCode.NONE
    shard = machine.broker.coordinators.groups.shard_of("g")
    shard.drop(OSError("a failed append"))
    assert producer.end() is ErrorCode.NONE
    producer.settle()
    assert machine.broker.coordinators.markers.retries > 0
    machine.run_until(lambda: shard.machine is not None)
    assert shard.machine is not None
    assert shard.machine.offsets.of_group("g")["orders"][0].offset == 3


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
def test_partitions_of_internal_topics_that_do_not_exist_need_none(machine: Machine, topic: str) -> None:
    marked: list[tuple[str, int]] = []
    send(machine, [(topic, 99)], lambda place, _: marked.append(place))
    machine.run_for(100)
    assert marked == [(topic, 99)]


def test_no_marker_comes_between_a_coordinator_and_its_log(machine: Machine) -> None:
    """Whoever asks, and whatever an old record says."""
    marked: list[tuple[str, int]] = []
    before = [log_of(machine, "__transaction_state", index).log_end_offset for index in (0, 1)]
    send(machine, [("__transaction_state", 0), ("__transaction_state", 1)], lambda place, _: marked.append(place))
    machine.run_for(100)
    assert marked == [("__transaction_state", 0), ("__transaction_state", 1)]
    assert [log_of(machine, "__transaction_state", index).log_end_offset for index in (0, 1)] == before


# -- many --------------------------------------------------------------------------------------------------------------------


def test_decisions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = transactional_machine(partitions=100)
    written: list[int] = []

    def write(_self: object, _partition: TopicPartition, marker: TransactionMarker, _done: object) -> None:
        written.append(marker.producer_id)

    monkeypatch.setattr(PartitionMarkerWriter, "write", write)
    for producer_id, count in ((1, 100), (2, 3)):
        send(machine, [("orders", index) for index in range(count)], lambda *_: None, producer_id)
    machine.run_until(lambda: len(written) == 103)
    assert written[:7] == [1, 2, 1, 2, 1, 2, 1]


def test_a_slice_ends_by_its_count_and_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = transactional_machine(partitions=100)
    sender = machine.broker.coordinators.markers
    written = 0

    def count(*_: object) -> None:
        nonlocal written
        written += 1

    monkeypatch.setattr(PartitionMarkerWriter, "write", count)
    send(machine, [("orders", index) for index in range(100)], lambda *_: None)
    sender._run()
    assert written == MARKERS_PER_SLICE

    def slow(*_: object) -> None:
        nonlocal written
        written += 1
        machine.scheduler.now_us += BUDGET_MS_MAX * 1000

    monkeypatch.setattr(PartitionMarkerWriter, "write", slow)
    sender._run()
    assert written == MARKERS_PER_SLICE + 1
