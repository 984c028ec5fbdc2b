"""Shards of the group coordinator in a whole broker: after restarts and crashes, and one that fails by itself."""

from errno import EIO
from typing import Literal

import pytest

from tests.broker.harness import FakeClient, Machine
from tidelog.coordinator.runtime import partition_for
from tidelog.metadata.records import PartitionChangeRecord
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

PARTITIONS = 5
SETTINGS = {"offsets.topic.num.partitions": str(PARTITIONS)}


def commit(client: FakeClient, group: str, offset: int) -> int:
    topics = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}]}]
    response = client.call(ApiKey.OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    code: int = response.topics[0].partitions[0].error_code
    return code


def fetch(client: FakeClient, group: str) -> DecodedMessage:
    response = client.call(
        ApiKey.OFFSET_FETCH, 8, groups=[{"group_id": group, "topics": [{"name": "orders", "partition_indexes": [0]}]}]
    )
    answer: DecodedMessage = response.groups[0]
    return answer


def committed(client: FakeClient, group: str) -> int:
    answer = fetch(client, group)
    assert answer.error_code == ErrorCode.NONE
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def ready() -> tuple[Machine, FakeClient]:
    machine = Machine(SETTINGS)
    client = machine.client()
    client.create_topic()
    client.call(ApiKey.FIND_COORDINATOR, 0, key="group")
    return machine, client


def group_of(partition: int) -> str:
    return next(f"group{number}" for number in range(1000) if partition_for(f"group{number}", PARTITIONS) == partition)


@pytest.mark.parametrize("how", ["stop", "crash", "crash without what was not synced"])
def test_committed_offsets_survive(how: str) -> None:
    machine, client = ready()
    groups = [group_of(partition) for partition in range(PARTITIONS)]
    for number, group in enumerate(groups):
        assert commit(client, group, 10 + number) == ErrorCode.NONE
        assert commit(client, group, 20 + number) == ErrorCode.NONE
    if how == "stop":
        assert machine.restart() is None
    else:
        machine.crash("all" if how == "crash" else "none")
    client = machine.client()
    machine.run_for(1_000)
    assert [committed(client, group) for group in groups] == [20 + number for number in range(PARTITIONS)]
    assert machine.facts("unexpected_error") == []


def test_a_shard_does_not_outlive_its_leader_epoch() -> None:
    """Leadership may have left and returned between two looks at the metadata: what the shard knows may be out of date."""
    machine, client = ready()
    group, broker = group_of(2), machine.broker
    assert commit(client, group, 5) == ErrorCode.NONE
    topic = broker.image.topic("__consumer_offsets")
    assert topic is not None
    before = broker.coordinators.groups.shard(2)
    same_epoch, next_epoch = (
        PartitionChangeRecord(2, topic.topic_id, isr=(1,)),
        PartitionChangeRecord(2, topic.topic_id, leader=1),
    )
    assert machine.wait(lambda done: broker.controller.propose([same_epoch], done)) is None
    assert broker.coordinators.groups.shard(2) is before
    assert machine.wait(lambda done: broker.controller.propose([next_epoch], done)) is None
    machine.run_for(100)
    assert broker.coordinators.groups.shard(2) is not before
    assert committed(client, group) == 5
    assert commit(client, group, 6) == ErrorCode.NONE


def test_a_shard_whose_log_was_still_being_truncated_is_loaded_without_being_asked_for() -> None:
    """Open transactions wait for it to time out or to end."""
    machine = Machine({"transaction.state.log.num.partitions": "1"})
    client = machine.client()
    client.call(ApiKey.FIND_COORDINATOR, 1, key="transaction", key_type=1)
    broker = machine.broker
    topic = broker.image.topic("__transaction_state")
    assert topic is not None
    runtime, log = broker.coordinators.transactions.runtime, broker.partitions.find(topic.name, None, 0).log
    machine.run_until(lambda: runtime.find(0) is not None)
    log.begin_truncation()
    next_epoch = PartitionChangeRecord(0, topic.topic_id, leader=1)
    assert machine.wait(lambda done: broker.controller.propose([next_epoch], done)) is None
    machine.run_for(100)
    assert runtime.find(0) is None
    log.end_truncation()
    machine.run_until(lambda: runtime.find(0) is not None)


def test_before_the_coordinator_was_asked_for_nobody_is_it() -> None:
    machine = Machine(SETTINGS)
    client = machine.client()
    client.create_topic()
    assert fetch(client, "group").error_code == ErrorCode.NOT_COORDINATOR


def test_a_shard_that_fails_is_alone() -> None:
    machine, client = ready()
    sick, well = group_of(0), group_of(1)
    for group in (sick, well):
        assert commit(client, group, 5) == ErrorCode.NONE
    shard = machine.broker.coordinators.groups.shard_of(sick)
    shard.drop(OSError("disk"))
    assert fetch(client, sick).error_code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert commit(client, well, 6) == ErrorCode.NONE
    assert committed(client, well) == 6
    machine.run_until(lambda: shard.machine is not None)
    assert committed(client, sick) == 5


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_disk_that_fails_for_one_shard(operation: Literal["write", "sync"]) -> None:
    machine, client = ready()
    sick, well = group_of(0), group_of(1)
    for group in (sick, well):
        assert commit(client, group, 5) == ErrorCode.NONE
    rule = machine.disk.faults.fail(operation, lambda path: "__consumer_offsets-0/" in path, EIO)
    assert commit(client, sick, 6) == ErrorCode.NOT_COORDINATOR
    assert commit(client, well, 6) == ErrorCode.NONE
    machine.run_for(1_000)
    assert fetch(client, sick).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed(client, well) == 6
    machine.disk.faults.lift(rule)
    machine.crash("none")
    client = machine.client()
    machine.run_for(1_000)
    assert committed(client, sick) in (5, 6), "it was not acknowledged, and may be there"
    assert committed(client, well) == 6
    assert machine.facts("unexpected_error") == []


def test_a_shard_whose_log_is_offline_after_a_start_is_alone() -> None:
    machine, client = ready()
    sick, well = group_of(0), group_of(1)
    for group in (sick, well):
        assert commit(client, group, 5) == ErrorCode.NONE
    machine.executor.crash()
    machine.disk = machine.executor.disk = machine.disk.crash_image(machine.randomness, "all")
    rule = machine.disk.faults.fail("read", lambda path: "__consumer_offsets-0/" in path, EIO)
    machine.start()
    client = machine.client()
    # More than one attempt to take it over.
    machine.run_for(3_000)
    assert ("__consumer_offsets", 0) in machine.broker.directory.offline
    assert fetch(client, sick).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed(client, well) == 5
    machine.disk.faults.lift(rule)
    machine.crash("all")
    client = machine.client()
    machine.run_for(1_000)
    assert committed(client, sick) == 5


def test_on_a_full_disk_positions_are_read_and_commits_are_refused_until_there_is_room() -> None:
    machine, client = ready()
    group, other = group_of(0), group_of(1)
    assert commit(client, group, 10) == ErrorCode.NONE
    assert commit(client, other, 20) == ErrorCode.NONE
    machine.disk.set_free_bytes(0)
    for _ in range(20):
        assert commit(client, group, 11) == ErrorCode.NOT_COORDINATOR
        assert committed(client, group) == 10, "reads go on, and show nothing that was refused"
        assert committed(client, other) == 20
        machine.run_for(100)
    machine.disk.set_free_bytes(None)
    machine.run_until(lambda: commit(client, group, 12) == ErrorCode.NONE)
    assert committed(client, group) == 12
    assert machine.crash() is None
    machine.run_for(1_000)
    assert committed(machine.client(), group) == 12
