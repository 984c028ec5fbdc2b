"""Replay, restarts and the life of the shard; what a group shows to those who do not know its kind."""

from tests.groups.classic.bench import GROUP, SESSION_MS, GroupBench
from tidelog.controller.errors import ApiError
from tidelog.groups.classic.group import ClassicGroup, ClassicState
from tidelog.groups.group import GroupType
from tidelog.groups.records import GroupMetadataRecord, GroupMetadataValue, MemberMetadata
from tidelog.wire.errors import ErrorCode


def record_of(*members: str, session_ms: int = 10_000, rebalance_ms: int = 30_000) -> GroupMetadataRecord:
    written = tuple(
        MemberMetadata(member, f"{member}-instance", "app", "/host", rebalance_ms, session_ms, b"\x00", member.encode())
        for member in members
    )
    return GroupMetadataRecord(GROUP, GroupMetadataValue("consumer", 7, "range", members[0] if members else None, 1234, written))


def test_a_group_is_as_it_was_last_stable(bench: GroupBench) -> None:
    ids = bench.stable(3)
    bench.join(ids[0])
    bench.leave((ids[2], None))
    assert bench.group.state is ClassicState.PREPARING_REBALANCE
    later = bench.restarted()
    group = later.group
    assert group.state is ClassicState.STABLE
    assert (group.generation, group.protocol_type, group.protocol_name, group.leader_id) == (1, "consumer", "range", ids[0])
    assert {member.member_id: member.assignment for member in group.members.values()} == {i: i.encode() for i in ids}
    assert [later.heartbeat(member_id, 1) for member_id in ids] == [ErrorCode.NONE] * 3


def test_an_empty_group_is_empty_after_a_restart(bench: GroupBench) -> None:
    (leader,) = bench.stable()
    bench.leave((leader, None))
    group = bench.restarted().group
    assert group.state is ClassicState.EMPTY
    assert group.generation == 2
    assert group.protocol_type == "consumer"
    assert group.empty_since_ms() == bench.group.empty_since_ms()


def test_the_newest_record_counts_and_a_tombstone_ends_it(bench: GroupBench) -> None:
    machine = bench.machine
    machine.classic._is_loaded = False
    machine.replay(record_of("a"), 0, -1, -1)
    machine.replay(record_of("b", "c"), 1, -1, -1)
    assert list(bench.group.members) == ["b", "c"]
    assert bench.group.static_members == {"b-instance": "b", "c-instance": "c"}
    machine.replay(GroupMetadataRecord(GROUP, None), 2, -1, -1)
    assert machine.groups.find(GROUP) is None


def test_a_record_without_a_rebalance_time_out_has_the_session_time_out(bench: GroupBench) -> None:
    bench.machine.replay(record_of("a", rebalance_ms=-1), 0, -1, -1)
    assert bench.group.members["a"].rebalance_timeout_ms == 10_000


def test_a_group_that_comes_from_another_protocol_has_sessions(bench: GroupBench) -> None:
    bench.machine.replay(record_of("a", "b"), 0, -1, -1)
    bench.run_for(9_999)
    assert bench.heartbeat("a", 7, "a-instance") is ErrorCode.NONE
    bench.run_for(2)
    assert list(bench.group.members) == ["a"]


def test_a_group_that_is_removed_answers_who_waits(bench: GroupBench) -> None:
    leader, _ = bench.stable(2)
    join = bench.join(leader)
    bench.machine.replay(GroupMetadataRecord(GROUP, None), 9, -1, -1)
    assert join.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(leader, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_group_whose_record_does_not_fit_is_not_there(bench: GroupBench) -> None:
    bench.log.batch_bytes_max = 100
    join = bench.join(version=0)
    assert join.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert bench.machine.groups.find(GROUP) is None
    bench.log.batch_bytes_max = 10_000
    join = bench.join(version=0)
    bench.finish_join()
    assert join.code is ErrorCode.NONE


def test_commits_without_members_make_a_group(bench: GroupBench) -> None:
    group = bench.machine.classic.offsets_only_group("offsets")
    assert bench.machine.classic.offsets_only_group("offsets") is group
    assert (group.type, group.state_name, group.protocol_type, group.has_members) == (GroupType.CLASSIC, "Empty", "", False)
    assert group.empty_since_ms() is None, "its offsets count from their commits"
    group.check_offset_commit("", None, -1, 9)
    group.check_deletion()
    join = bench.join(group_id="offsets", version=0)
    bench.finish_join()
    assert join.code is ErrorCode.NONE
    assert group.protocol_type == "consumer"


def test_rebalances_are_counted_and_timed() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 100})
    ids = [bench.join_with_id() for _ in range(2)]
    bench.run_for(1000)
    members = [join.response.member_id for join in ids]
    bench.sync(members[0], 1, {})
    assert bench.group.rebalances == 1
    first_ms = bench.group.rebalance_ms_last
    assert 200 <= first_ms <= 1000
    bench.sync(members[1], 1)
    bench.join(members[0])
    bench.run_for(5000)
    bench.join(members[1])
    bench.sync(members[0], 2, {})
    assert bench.group.rebalances == 2
    assert bench.group.rebalance_ms_last == 5000
    assert bench.group.rebalance_ms_total == first_ms + 5000
    assert bench.machine.classic.rebalances.count == 2


def _commit_code(group: ClassicGroup, member_id: str, instance: str | None, generation: int) -> ErrorCode:
    try:
        group.check_offset_commit(member_id, instance, generation, 9)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


def test_who_may_commit_offsets(bench: GroupBench) -> None:
    leader, _ = bench.stable(2, instances=True)
    group = bench.group
    assert _commit_code(group, leader, None, 1) is ErrorCode.NONE
    assert _commit_code(group, leader, "instance-0", 1) is ErrorCode.NONE
    assert _commit_code(group, leader, None, 2) is ErrorCode.ILLEGAL_GENERATION
    assert _commit_code(group, leader, None, -1) is ErrorCode.ILLEGAL_GENERATION
    assert _commit_code(group, leader, "instance-1", 1) is ErrorCode.FENCED_INSTANCE_ID
    assert _commit_code(group, leader, "instance-9", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert _commit_code(group, "nobody", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert _commit_code(group, "", None, -1) is ErrorCode.UNKNOWN_MEMBER_ID, "the group is not empty"
    bench.join(leader, "instance-0")
    assert group.state_name == "PreparingRebalance"
    assert _commit_code(group, leader, None, 1) is ErrorCode.NONE, "before they give up their partitions members commit"
    bench.join(instance="instance-1")
    assert group.state_name == "CompletingRebalance"
    assert _commit_code(group, leader, None, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    bench.leave(("", "instance-0"), ("", "instance-1"))
    assert _commit_code(group, "", None, -1) is ErrorCode.NONE
    assert _commit_code(group, leader, None, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_what_a_group_is_subscribed_to(bench: GroupBench) -> None:
    subscription = b"\x00\x03\x00\x00\x00\x02\x00\x06orders\x00\x05bills" + b"\xff\xff\xff\xff"
    (leader,) = bench.stable(protocols=(("range", subscription),))
    assert [bench.group.is_subscribed_to(topic) for topic in ("orders", "bills", "other")] == [True, True, False]
    assert [bench.group.may_read(topic) for topic in ("orders", "bills", "other")] == [True, True, False]
    bench.join(leader, protocols=(("range", b"\x00\x00\x00\x00\x00\x01\x00\x05other"),))
    assert bench.group.may_read("orders"), "a rebalance is not over"
    assert [bench.group.is_subscribed_to(topic) for topic in ("orders", "other")] == [False, True]
    bench.join(leader, protocols=(("range", b"?"),))
    assert bench.group.is_subscribed_to("anything"), "nobody knows"
    bench.leave((leader, None))
    assert not bench.group.is_subscribed_to("orders")
    assert not bench.group.may_read("orders")


def test_subscriptions_are_those_of_the_protocol_that_is_used() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 100})
    orders, bills = (b"\x00\x00\x00\x00\x00\x01" + name for name in (b"\x00\x06orders", b"\x00\x05bills"))
    both = (("sticky", bills), ("range", orders))
    first, second = bench.join_with_id(protocols=both), bench.join_with_id(protocols=(("range", orders),))
    bench.run_for(1000)
    leader = first.response.member_id
    bench.sync(leader, 1, {})
    bench.leave((second.response.member_id, None))
    bench.join()
    again = bench.join(leader, protocols=both)
    assert bench.group.is_subscribed_to("orders")
    bench.run_for(SESSION_MS + 1)
    assert again.response.protocol_name == "sticky", "nobody came with the id that was pending"
    assert [bench.group.is_subscribed_to(topic) for topic in ("orders", "bills")] == [False, True]


def test_another_protocol_type_is_subscribed_to_nothing(bench: GroupBench) -> None:
    bench.stable(protocol_type="connect")
    assert not bench.group.is_subscribed_to("orders")
    assert bench.group.may_read("orders"), "nobody knows"
