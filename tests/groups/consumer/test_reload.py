"""After a restart: the same state from the log, and members that go on."""

from typing import Any

from tests.groups.consumer.bench import GROUP, REBALANCE_MS, SESSION_MS, ConsumerBench
from tests.groups.shard_bench import topic_id
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.consumer.group import ConsumerGroup, ConsumerGroupMember, MemberState, replay_consumer_group
from tidelog.groups.group import GroupTable
from tidelog.groups.records import (
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataRecord,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataRecord,
    ConsumerGroupPartitionMetadataValue,
    TopicPartitions,
)

ORDERS = topic_id("orders")
DURABLE = (
    "group_epoch",
    "metadata_hash",
    "assignment_epoch",
    "assignment_timestamp",
    "members",
    "static_members",
    "target",
    "owners",
    "resolved_regexes",
)


def state(bench: ConsumerBench) -> dict[str, Any]:
    return {name: getattr(bench.group, name) for name in DURABLE}


def test_everything_is_there_again_and_nobody_notices() -> None:
    bench = ConsumerBench({"orders": 4, "prices": 2})
    bench.join("a", ["orders"], rack_id="east")
    bench.join("b", ["orders"], instance_id="i-b", server_assignor="uniform")
    bench.join("c", None, subscribed_topic_regex="pri.*")
    bench.settle()
    before = state(bench)
    bench.restart()
    assert state(bench) == before
    for member in bench.members.values():
        response = member.heartbeat()
        assert (response.assignment, response.member_epoch) == (None, before["group_epoch"])
    assert bench.group.group_epoch == before["group_epoch"]


def test_in_the_middle_of_a_rebalance(bench: ConsumerBench) -> None:
    first, second = bench.join("a"), bench.join("b")
    first.heartbeat()
    assert bench.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    before = state(bench)
    bench.restart()
    assert state(bench) == before
    bench.settle()
    assert (first.indexes(), second.indexes()) == ([0, 1], [2, 3])


def test_time_outs_begin_again(bench: ConsumerBench) -> None:
    first, second = bench.join("a"), bench.join("b")
    first.heartbeat()
    bench.run_for(20_000)
    bench.restart()
    bench.run_for(REBALANCE_MS - 1000)
    second.heartbeat()
    assert sorted(bench.group.members) == ["a", "b"]
    bench.run_for(2000)
    assert list(bench.group.members) == ["b"], "it had time to give up since the restart, and did not"
    bench.run_for(SESSION_MS)
    assert bench.group.members == {}


def test_a_group_is_deleted_and_stays_so(bench: ConsumerBench) -> None:
    bench.join("a", None, subscribed_topic_regex="or.*")
    bench.members["a"].leave()
    bench.call(lambda _: CoordinatorResult(bench.group.tombstones()))
    assert bench.machine.groups.find(GROUP) is None
    bench.restart()
    assert bench.machine.groups.find(GROUP) is None
    member = bench.join("b")
    assert (member.epoch, member.indexes()) == (1, [0, 1, 2, 3])


def test_a_group_is_deleted_with_all_that_it_has() -> None:
    """As when it becomes a classic group, with its members."""
    bench = ConsumerBench({"orders": 2})
    bench.join("a", None, subscribed_topic_regex="or.*")
    bench.join("b", instance_id="i")
    bench.call(lambda _: CoordinatorResult(bench.group.tombstones()))
    live = {}
    for record in bench.records():
        live[(type(record), *record[:-1])] = record.value
    assert [key for key, value in live.items() if value is not None] == []


def test_records_that_compaction_left_behind() -> None:
    """The record by which ``a`` gave up a partition is gone, for a later one has taken its place behind that of ``b``."""
    groups = GroupTable(10)

    def current(member_id: str, epoch: int, *partitions: int) -> ConsumerGroupCurrentMemberAssignmentRecord:
        topics = (TopicPartitions(ORDERS, partitions, (epoch,) * len(partitions)),) if partitions else ()
        value = ConsumerGroupCurrentMemberAssignmentValue(epoch, epoch - 1, 0, topics, ())
        return ConsumerGroupCurrentMemberAssignmentRecord(GROUP, member_id, value)

    for record in (
        ConsumerGroupMemberMetadataRecord(GROUP, "gone", None),
        ConsumerGroupMetadataRecord("gone", None),
        current("a", 1, 0, 1),
        current("b", 2, 1),
        current("a", 3, 0),
        ConsumerGroupMetadataRecord(GROUP, ConsumerGroupMetadataValue(3)),
    ):
        replay_consumer_group(groups, record)
    group = groups.find(GROUP)
    assert isinstance(group, ConsumerGroup)
    assert group.owners == {(ORDERS, 0): "a", (ORDERS, 1): "b"}
    assert len(groups) == 1


def test_records_of_before_kafka_4_3_have_no_assignment_epochs() -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(7, 6, 9, (TopicPartitions(ORDERS, (2, 3)),), ())
    member = ConsumerGroupMember("a").with_current_assignment(value)
    assert member.assigned == {ORDERS: {2: 7, 3: 7}}
    assert member.state is MemberState.UNKNOWN


def test_the_partition_metadata_of_before_kafka_4_1_is_deleted(bench: ConsumerBench) -> None:
    member = bench.join("a")
    old = ConsumerGroupPartitionMetadataRecord(GROUP, ConsumerGroupPartitionMetadataValue(()))
    bench.call(lambda machine: CoordinatorResult([old]))
    bench.restart()
    member.heartbeat()
    assert bench.records()[-1] == ConsumerGroupPartitionMetadataRecord(GROUP, None)
    assert not bench.group.has_partition_metadata_record
