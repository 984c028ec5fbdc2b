"""Static members come back under a new id: without a rebalance where that is possible, and the old id is fenced."""

import pytest

from tests.groups.classic.bench import BATCH_BYTES_MAX, SESSION_MS, GroupBench
from tidelog.groups.classic.group import ClassicState
from tidelog.wire.errors import ErrorCode


def test_a_restart_in_a_stable_group_is_no_rebalance(bench: GroupBench) -> None:
    leader, follower = bench.stable(2, instances=True)
    join = bench.join(instance="instance-1")
    new_id = join.response.member_id
    assert join.code is ErrorCode.NONE
    assert new_id != follower
    assert join.response.generation == bench.group.generation == 1
    assert join.response.leader == leader
    assert join.response.members == ()
    assert bench.group.state is ClassicState.STABLE
    assert bench.heartbeat(leader, 1, "instance-0") is ErrorCode.NONE
    assert bench.sync(new_id, 1, instance="instance-1").response.assignment == follower.encode(), "what the old one had"
    assert bench.heartbeat(follower, 1, "instance-1") is ErrorCode.FENCED_INSTANCE_ID
    assert bench.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_restarts_is_told_to_skip_the_assignment(bench: GroupBench) -> None:
    bench.stable(2, instances=True)
    join = bench.join(instance="instance-0", version=9)
    assert join.response.leader == join.response.member_id == bench.group.leader_id
    assert join.response.skip_assignment
    assert {member.member_id for member in join.response.members} == set(bench.group.members)
    assert bench.group.state is ClassicState.STABLE


def test_a_leader_of_an_older_version_is_told_that_its_old_self_leads(bench: GroupBench) -> None:
    """It would assign, and so begin a rebalance."""
    leader, _ = bench.stable(2, instances=True)
    join = bench.join(instance="instance-0", version=8)
    assert join.response.leader == leader
    assert not join.response.skip_assignment
    assert join.response.members == ()
    assert bench.group.leader_id == join.response.member_id
    assert bench.restarted().group.leader_id == join.response.member_id


def test_the_new_id_is_heard_of_when_it_is_committed(bench: GroupBench) -> None:
    _, follower = bench.stable(2, instances=True)
    bench.is_committing = False
    join = bench.join(instance="instance-1")
    bench.runtime.flush()
    assert not join.is_answered
    assert follower not in bench.group.members, "replayed already"
    bench.log.commit()
    assert join.code is ErrorCode.NONE
    later = bench.restarted()
    assert later.heartbeat(join.response.member_id, 1, "instance-1") is ErrorCode.NONE
    assert later.heartbeat(follower, 1, "instance-1") is ErrorCode.FENCED_INSTANCE_ID


def test_a_restart_that_changes_the_chosen_protocol_begins_a_rebalance(bench: GroupBench) -> None:
    both = (("range", b""), ("sticky", b""))
    leader, _ = bench.stable(2, instances=True, protocols=both)
    assert bench.group.protocol_name == "range"
    join = bench.join(instance="instance-1", protocols=(("sticky", b""),))
    assert not join.is_answered
    again = bench.join(leader, "instance-0", protocols=both)
    assert join.code is again.code is ErrorCode.NONE
    assert join.response.protocol_name == "sticky"
    assert join.response.generation == 2


def test_a_restart_while_the_leader_assigns_begins_again_and_fences_the_old_one() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 100})
    joins = [bench.join(instance=f"instance-{number}") for number in range(3)]
    bench.run_for(1000)
    ids = [join.response.member_id for join in joins]
    fenced, other = bench.sync(ids[1], 1, instance="instance-1"), bench.sync(ids[2], 1, instance="instance-2")
    join = bench.join(instance="instance-1")
    assert fenced.code is ErrorCode.FENCED_INSTANCE_ID
    assert other.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert not join.is_answered
    assert bench.group.state is ClassicState.PREPARING_REBALANCE


def test_a_restart_while_members_join_takes_the_old_ones_place(bench: GroupBench) -> None:
    leader, _ = bench.stable(2, instances=True)
    waiting = bench.join(leader, "instance-0")
    assert not waiting.is_answered
    restarted = bench.join(instance="instance-1")
    assert waiting.code is restarted.code is ErrorCode.NONE
    assert list(bench.group.static_members.values()) == [leader, restarted.response.member_id]


def test_a_join_that_waits_is_fenced_by_the_next_instance() -> None:
    bench = GroupBench({"group.initial.rebalance.delay.ms": 1000})
    first = bench.join(instance="instance-0")
    second = bench.join(instance="instance-0")
    assert first.code is ErrorCode.FENCED_INSTANCE_ID
    bench.run_for(3000)
    assert second.code is ErrorCode.NONE
    assert list(bench.group.members) == [second.response.member_id]
    assert bench.group.leader_id == second.response.member_id


def test_a_static_member_that_does_not_join_again_stays_until_its_session_ends(bench: GroupBench) -> None:
    leader, absent = bench.stable(2, instances=True, rebalance_ms=5000)
    join = bench.join(leader, "instance-0", rebalance_ms=5000, protocols=(("range", b"new"),))
    bench.run_for(5001)
    assert join.code is ErrorCode.NONE
    assert absent in bench.group.members, "it may come back"
    assert {member.member_id for member in join.response.members} == {leader, absent}


def test_the_session_of_the_new_member_counts(bench: GroupBench) -> None:
    bench.stable(1, instances=True)
    bench.run_for(SESSION_MS - 1000)
    timers = len(bench.machine.environment.timers)
    join = bench.join(instance="instance-0")
    assert len(bench.machine.environment.timers) == timers, "its timer in place of the old one's"
    bench.run_for(2000)
    assert list(bench.group.members) == [join.response.member_id]
    bench.run_for(SESSION_MS)
    assert not bench.group.members


@pytest.mark.parametrize("size", [BATCH_BYTES_MAX, 2 * BATCH_BYTES_MAX])
def test_a_record_that_does_not_fit_leaves_the_old_member(bench: GroupBench, size: int) -> None:
    leader, follower = bench.stable(2, instances=True)
    join = bench.join(instance="instance-1", protocols=(("range", b"x" * size),))
    assert join.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not bench.group.replacements
    assert list(bench.group.members) == [leader, follower]
    assert bench.heartbeat(follower, 1, "instance-1") is ErrorCode.NONE
