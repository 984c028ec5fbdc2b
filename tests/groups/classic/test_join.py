"""JoinGroup: ids, protocols, sizes, and when the answer comes."""

import pytest

from tests.groups.classic.bench import GROUP, REBALANCE_MS, SESSION_MS, GroupBench
from tidelog.config.groups import METADATA_BYTES_MAX, METADATA_BYTES_TOTAL_MAX
from tidelog.groups.classic import protocol
from tidelog.groups.classic.group import ClassicState
from tidelog.groups.classic.protocol import NEW_MEMBER_JOIN_MS_MAX
from tidelog.groups.classic.requests import Protocols
from tidelog.groups.records import ConsumerGroupMetadataRecord, ConsumerGroupMetadataValue
from tidelog.wire.errors import ErrorCode


def test_a_new_member_is_given_an_id_and_joins_with_it(bench: GroupBench) -> None:
    first = bench.join(client_id="app")
    assert first.code is ErrorCode.MEMBER_ID_REQUIRED
    member_id = first.response.member_id
    assert member_id.startswith("app-")
    assert len(member_id) == len("app-") + 36
    second = bench.join(member_id)
    assert not second.is_answered, "the initial rebalance has a timer, even without a delay"
    bench.finish_join()
    assert second.response.member_id == member_id
    assert second.response.leader == member_id
    assert second.response.generation == 1
    assert (second.response.protocol_type, second.response.protocol_name) == ("consumer", "range")
    assert [tuple(member) for member in second.response.members] == [(member_id, None, b"range metadata")]


@pytest.mark.parametrize("version", [0, 3])
def test_before_version_4_a_member_joins_at_once(bench: GroupBench, version: int) -> None:
    join = bench.join(version=version)
    bench.finish_join()
    assert join.code is ErrorCode.NONE
    assert join.response.generation == 1


def test_a_static_member_needs_no_second_request(bench: GroupBench) -> None:
    join = bench.join(instance="worker-1")
    bench.finish_join()
    assert join.code is ErrorCode.NONE
    assert join.response.member_id.startswith("worker-1-")


def test_the_leader_hears_of_all_members_and_the_others_of_none() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 100})
    joins = [bench.join_with_id(client_id=name) for name in "abc"]
    bench.run_for(1000)
    assert {join.response.leader for join in joins} == {joins[0].response.member_id}, "who came first"
    assert [len(join.response.members) for join in joins] == [3, 0, 0]
    assert {join.response.generation for join in joins} == {1}


def test_the_first_rebalance_waits_while_members_come() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 3000})
    first = bench.join_with_id()
    bench.run_for(2000)
    second = bench.join_with_id()
    bench.run_for(2000)
    assert not first.is_answered, "another member came within the delay: it begins again"
    bench.run_for(2500)
    assert first.code is second.code is ErrorCode.NONE
    assert first.response.generation == second.response.generation == 1


def test_the_first_rebalance_does_not_wait_longer_than_the_rebalance_time_out() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 3000})
    first = bench.join_with_id(rebalance_ms=7000)
    for _ in range(13):
        bench.run_for(500)
        bench.join_with_id(rebalance_ms=7000)
    assert not first.is_answered
    bench.run_for(600)
    assert first.code is ErrorCode.NONE


def test_a_new_member_of_a_stable_group_waits_for_the_others(bench: GroupBench) -> None:
    (leader,) = bench.stable()
    join = bench.join_with_id()
    assert not join.is_answered
    assert bench.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = bench.join(leader)
    assert again.code is join.code is ErrorCode.NONE
    assert again.response.generation == join.response.generation == 2
    assert len(again.response.members) == 2


def test_who_does_not_join_again_is_put_out_after_the_rebalance_time_out(bench: GroupBench) -> None:
    leader, other = bench.stable(2, session_ms=2 * REBALANCE_MS)
    join = bench.join_with_id(session_ms=2 * REBALANCE_MS)
    again = bench.join(other, session_ms=2 * REBALANCE_MS)
    bench.run_for(REBALANCE_MS - 1)
    assert not join.is_answered
    bench.run_for(2)
    assert join.code is again.code is ErrorCode.NONE
    assert leader not in bench.group.members
    assert join.response.leader == again.response.leader == other, "of those who joined, the one that was there first"


def test_a_follower_that_joins_again_unchanged_goes_on_in_its_generation(bench: GroupBench) -> None:
    _, follower = bench.stable(2)
    generation = bench.group.generation
    again = bench.join(follower)
    assert again.code is ErrorCode.NONE
    assert again.response.generation == generation
    assert again.response.members == ()
    assert bench.group.state is ClassicState.STABLE


def test_a_follower_with_other_metadata_begins_a_rebalance(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    again = bench.join(follower, protocols=(("range", b"other topics"),))
    assert not again.is_answered
    assert bench.heartbeat(leader, bench.group.generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_joins_again_begins_a_rebalance(bench: GroupBench) -> None:
    """Even with nothing new: it has seen partitions come."""
    leader, _ = bench.stable(2)
    assert not bench.join(leader).is_answered
    assert bench.group.state is ClassicState.PREPARING_REBALANCE


def test_an_answer_that_was_lost_is_given_again() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 100})
    joins = [bench.join_with_id() for _ in range(2)]
    bench.run_for(300)
    again = [bench.join(join.response.member_id) for join in joins]
    assert [join.response for join in again] == [join.response for join in joins]
    assert bench.group.state is ClassicState.COMPLETING_REBALANCE


def test_other_metadata_while_the_leader_assigns_begins_again() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 100})
    first, second = (bench.join_with_id() for _ in range(2))
    bench.run_for(300)
    waiting = bench.sync(second.response.member_id, 1)
    bench.join(first.response.member_id, protocols=(("range", b"new"),))
    assert waiting.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_join_that_is_sent_again_replaces_the_one_that_waits(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    earlier = bench.join(leader)
    later = bench.join(leader)
    assert earlier.code is ErrorCode.REBALANCE_IN_PROGRESS, "on one connection nothing after it could be answered otherwise"
    assert not later.is_answered, "the follower has not joined"
    bench.join(follower)
    assert later.code is ErrorCode.NONE


def test_the_most_wanted_protocol_of_those_that_all_have() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 100})
    both = (("sticky", b"s"), ("range", b"r"))
    joins = [
        bench.join_with_id(protocols=(("roundrobin", b""), ("range", b""), ("sticky", b""))),
        bench.join_with_id(protocols=both),
        bench.join_with_id(protocols=both),
    ]
    bench.run_for(300)
    assert {join.response.protocol_name for join in joins} == {"sticky"}


def test_a_new_member_that_waits_too_long_is_put_out(bench: GroupBench) -> None:
    (leader,) = bench.stable(rebalance_ms=2 * NEW_MEMBER_JOIN_MS_MAX)
    join = bench.join_with_id()
    for _ in range(NEW_MEMBER_JOIN_MS_MAX // 5000):
        assert not join.is_answered
        bench.run_for(5000)
        bench.heartbeat(leader, bench.group.generation)
    assert join.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(bench.group.members) == [leader]


# -- ids that are pending ----------------------------------------------------------------------------------------------------


def test_an_id_that_nobody_joins_with_is_forgotten_after_the_session_time_out(bench: GroupBench) -> None:
    member_id = bench.join().response.member_id
    bench.run_for(SESSION_MS + 1)
    assert bench.join(member_id).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert not bench.group.pending_members


def test_a_rebalance_waits_for_an_id_that_is_pending(bench: GroupBench) -> None:
    (leader,) = bench.stable()
    bench.join()
    join = bench.join(leader)
    assert not join.is_answered, "the new member is about to come"
    bench.run_for(SESSION_MS + 1)
    assert join.code is ErrorCode.NONE


def test_ids_that_are_pending_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PENDING_MEMBERS_MAX", 3)
    bench = GroupBench()
    ids = [bench.join().response.member_id for _ in range(5)]
    assert list(bench.group.pending_members) == ids[2:]
    assert bench.join(ids[0]).code is ErrorCode.UNKNOWN_MEMBER_ID
    join = bench.join(ids[4])
    bench.finish_join()
    assert join.code is ErrorCode.NONE


def test_a_long_client_id_does_not_make_an_id_that_no_record_holds(bench: GroupBench) -> None:
    join = bench.join_with_id(client_id="x" * 32_767)
    bench.finish_join()
    bench.sync(join.response.member_id, 1, {join.response.member_id: b"a"})
    assert bench.group.state is ClassicState.STABLE


# -- sizes -------------------------------------------------------------------------------------------------------------------


def test_a_group_that_is_full_takes_nobody() -> None:
    bench = GroupBench({"group.max.size": 2, "group.initial.rebalance.delay.ms": 100})
    joins = [bench.join_with_id() for _ in range(2)]
    late = bench.join()
    assert late.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert late.response.member_id == ""
    bench.run_for(300)
    assert all(join.code is ErrorCode.NONE for join in joins)
    assert bench.join().code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.join(joins[0].response.member_id).code is ErrorCode.NONE, "who is in it may join again"


def test_a_pending_id_that_finds_the_group_full_is_not_waited_for() -> None:
    bench = GroupBench({"group.max.size": 1})
    (leader,) = bench.stable()
    bench.leave((leader, None))
    first, second = bench.join(), bench.join()
    joined = bench.join(first.response.member_id)
    assert bench.join(second.response.member_id).code is ErrorCode.GROUP_MAX_SIZE_REACHED
    bench.finish_join()
    assert joined.code is ErrorCode.NONE
    assert not bench.group.pending_members


def test_a_limit_that_was_lowered_puts_out_who_comes_last() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 100})
    joins = [bench.join_with_id() for _ in range(3)]
    bench.run_for(300)
    ids = [join.response.member_id for join in joins]
    bench.sync(ids[0], 1, dict.fromkeys(ids, b"a"))
    later = bench.restarted({"group.max.size": 2})
    assert later.group.state is ClassicState.PREPARING_REBALANCE
    again = [later.join(member_id) for member_id in ids]
    assert [join.code for join in again] == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert list(later.group.members) == ids[:2]


def test_as_many_groups_as_there_may_be() -> None:
    bench = GroupBench({"tidelog.groups.max": 1})
    bench.join(group_id="one")
    refused = bench.join(group_id="two")
    assert getattr(refused.error, "code", None) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.join(group_id="one").code is ErrorCode.MEMBER_ID_REQUIRED


def large(size: int) -> Protocols:
    return (("range", bytes(size - len("range"))),)


def test_the_metadata_of_a_group_is_bounded() -> None:
    bench = GroupBench({METADATA_BYTES_MAX: 1_000})
    (leader,) = bench.stable()
    assert getattr(bench.join(protocols=large(1_001)).error, "code", None) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert getattr(bench.join(leader, protocols=large(1_001)).error, "code", None) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.group.state is ClassicState.STABLE, "who is refused changes nothing"
    assigned = len(bench.group.members[leader].assignment)
    bench.join(leader, protocols=large(1_000 - assigned))
    assert bench.group.metadata_bytes == 1_000, "what it sent before does not count any more"


def test_the_metadata_of_all_groups_is_bounded() -> None:
    bench = GroupBench({METADATA_BYTES_TOTAL_MAX: 1_000})
    first = bench.join(version=0, protocols=large(600), group_id="one")
    refused = bench.join(version=0, protocols=large(401), group_id="two")
    assert getattr(refused.error, "code", None) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.machine.groups.find("two") is None
    bench.finish_join()
    bench.leave((first.response.member_id, None), group_id="one")
    assert bench.metadata_budget.bytes_held == 0
    assert bench.join(version=0, protocols=large(1_000), group_id="two").error is None
    bench.shard.drop(RuntimeError("the leader changed"))
    assert bench.metadata_budget.bytes_held == 0


def test_assignments_count_as_metadata_does() -> None:
    bench = GroupBench({METADATA_BYTES_MAX: 1_000, METADATA_BYTES_TOTAL_MAX: 1_500})
    (leader,) = bench.stable()
    bench.join(leader)
    generation = bench.group.generation
    refused = bench.sync(leader, generation, {leader: bytes(1_000)})
    assert getattr(refused.error, "code", None) is ErrorCode.GROUP_MAX_SIZE_REACHED
    bench.metadata_budget.hold(1_000)
    refused = bench.sync(leader, generation, {leader: bytes(900)})
    assert getattr(refused.error, "code", None) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.metadata_budget.hold(-1_000)
    bench.sync(leader, generation, {leader: bytes(500)})
    assert len(bench.group.members[leader].assignment) == 500
    assert bench.metadata_budget.bytes_held == bench.group.metadata_bytes > 500
    assert bench.restarted().group.metadata_bytes > 500
    bench.leave((leader, None))
    assert bench.metadata_budget.bytes_held == bench.group.metadata_bytes == 0


def test_an_empty_group_of_the_other_protocol_becomes_a_classic_one(bench: GroupBench) -> None:
    record = ConsumerGroupMetadataRecord(GROUP, ConsumerGroupMetadataValue(3))
    bench.machine.replay(record, 0, -1, -1)
    assert bench.join("somebody").code is ErrorCode.UNKNOWN_MEMBER_ID
    join = bench.join(version=0)
    bench.finish_join()
    assert join.code is ErrorCode.NONE
    bench.sync(join.response.member_id, 1, {})
    assert bench.group.state is ClassicState.STABLE
    written = bench.records()
    assert ConsumerGroupMetadataRecord(GROUP, None) in written
    assert bench.restarted().group.state is ClassicState.STABLE


# -- what is written ---------------------------------------------------------------------------------------------------------


def test_a_new_group_is_written_as_empty(bench: GroupBench) -> None:
    bench.join()
    (record,) = bench.records()
    assert record.group == GROUP
    assert record.value is not None
    assert (record.value.protocol_type, record.value.generation, record.value.protocol, record.value.leader) == (
        "",
        0,
        None,
        None,
    )
    assert record.value.members == ()


def test_a_request_that_is_refused_makes_no_group(bench: GroupBench) -> None:
    bench.join(protocols=())
    bench.join("nobody")
    assert bench.records() == []
    assert bench.machine.groups.find(GROUP) is None


def test_many_members_that_join_at_once_cost_as_many_answers_and_few_bytes() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 100})
    count = 200
    joins = [bench.join_with_id() for _ in range(count)]
    bench.run_for(1000)
    assert sum(len(join.response.members) for join in joins) == count, "only the leader is sent the members"
    ids = [join.response.member_id for join in joins]
    syncs = [bench.sync(member_id, 1) for member_id in ids[1:]]
    before = len(bench.log.data)
    syncs.append(bench.sync(ids[0], 1, dict.fromkeys(ids, b"assignment")))
    assert all(sync.response.assignment == b"assignment" for sync in syncs)
    assert len(bench.records()) == 2, "one record when the group was made, one with the assignment of all"
    assert len(bench.log.data) - before < count * 250
