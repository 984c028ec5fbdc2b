"""Producers that do not wait for the disk, and a disk that is behind."""

import pytest

from tests.broker.harness import FakeClient, Machine, produce_request
from tests.log.harness import batch
from tidelog.wire.produce import encode_produce_request
from tidelog.wire.protocol import ApiKey


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.client().create_topic()
    machine.run_for(1_000)
    machine.broker.backlog.bytes_max = 100
    return machine


def send(client: FakeClient, acks: int, topic: str = "orders", timeout_ms: int = 30_000) -> None:
    request = produce_request(topic, batch(10), acks=acks, timeout_ms=timeout_ms)
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, request))


@pytest.mark.parametrize("acks", [0, 1])
def test_they_are_answered_when_the_disk_has_caught_up(machine: Machine, acks: int) -> None:
    client, resumed = machine.client(), []
    client.session._resume = lambda: resumed.append(True)
    partition = machine.broker.partitions.find("orders", None, 0)
    send(client, acks)
    assert client.session.in_flight == 1
    assert client.replies == []
    machine.run_until(lambda: client.session.in_flight == 0)
    assert partition.log.durable.offset == 10
    assert len(client.replies) == acks
    assert resumed == [True]
    assert machine.broker.backlog.held == 1


def test_a_disk_that_keeps_up_lets_nobody_wait(machine: Machine) -> None:
    machine.broker.backlog.bytes_max = 1 << 20
    client = machine.client()
    for _ in range(20):
        send(client, 1)
    assert len(client.replies) == 20
    assert 0 < machine.broker.partitions.appends.unsynced_bytes < 1 << 20
    # Two passes later nothing is left of it.
    for _ in range(2):
        client.append()
    assert machine.broker.partitions.appends.unsynced_bytes < 200


def test_what_is_written_while_a_pass_runs_is_not_covered_by_it(machine: Machine) -> None:
    machine.broker.backlog.bytes_max = 1 << 20
    appends, partition = machine.broker.partitions.appends, machine.broker.partitions.find("orders", None, 0)
    appends.pass_ended()
    appends.pass_ended()
    appends.appended(partition, 1_000)
    appends.pass_ended()
    assert appends.unsynced_bytes == 1_000
    appends.appended(partition, 10)
    assert appends.unsynced_bytes == 1_010
    appends.pass_ended()
    assert appends.unsynced_bytes == 10


def test_nobody_waits_longer_than_it_said(machine: Machine) -> None:
    """It asked for the page cache only, and has that."""
    client = machine.client()
    machine.broker.directory.commit._in_flight = True  # A pass that does not end.
    send(client, 1, timeout_ms=500)
    began_ms = machine.clock.monotonic_ms()
    machine.run_until(lambda: bool(client.replies))
    assert machine.clock.monotonic_ms() - began_ms == 500


def test_relaxed_topics_neither_count_nor_wait(machine: Machine) -> None:
    client = machine.client()
    client.create_topic("relaxed", flush_messages="1000")
    client.replies.clear()
    send(client, 1, "relaxed")
    assert len(client.replies) == 1
    assert machine.broker.backlog.held == 0


def test_acks_all_waits_by_itself(machine: Machine) -> None:
    client = machine.client()
    send(client, -1)
    machine.run_until(lambda: bool(client.replies))
    assert machine.broker.backlog.held == 0
