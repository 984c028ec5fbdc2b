"""Session time-outs: deadlines that heartbeats move, and one timer for each member."""

from tests.groups.classic.bench import SESSION_MS, GroupBench
from tidelog.groups.classic.group import ClassicState
from tidelog.wire.errors import ErrorCode


def test_a_member_that_is_silent_is_put_out(bench: GroupBench) -> None:
    leader, silent = bench.stable(2)
    bench.run_for(SESSION_MS - 1)
    assert bench.heartbeat(leader, 1) is ErrorCode.NONE
    bench.run_for(2)
    assert list(bench.group.members) == [leader]
    assert bench.group.state is ClassicState.PREPARING_REBALANCE
    assert bench.heartbeat(silent, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_keep_a_member_and_cost_no_timers(bench: GroupBench) -> None:
    (leader,) = bench.stable()
    timers = len(bench.machine.environment.timers)
    for _ in range(50):
        bench.run_for(SESSION_MS // 3)
        assert bench.heartbeat(leader, 1) is ErrorCode.NONE
        assert len(bench.machine.environment.timers) == timers
    bench.run_for(SESSION_MS - 1)
    assert bench.group.members
    bench.run_for(1)
    assert not bench.group.members


def test_a_group_whose_last_member_is_silent_is_empty_and_written_so(bench: GroupBench) -> None:
    bench.stable()
    bench.run_for(SESSION_MS + 1)
    assert bench.group.state is ClassicState.EMPTY
    value = bench.records()[-1].value
    assert value is not None
    assert (value.generation, value.protocol_type, value.protocol, value.leader, value.members) == (2, "consumer", None, None, ())
    assert bench.group.empty_since_ms() == value.current_state_timestamp == bench.group.state_timestamp_ms


def test_a_member_that_waits_is_not_put_out(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    join = bench.join(leader)
    for _ in range(4):
        bench.run_for(SESSION_MS // 2)
        bench.heartbeat(follower, 1)
    assert not join.is_answered
    assert leader in bench.group.members
    bench.join(follower)
    assert join.code is ErrorCode.NONE


def test_a_member_that_waits_for_a_slow_disk_is_not_put_out(bench: GroupBench) -> None:
    join = bench.join_with_id()
    bench.finish_join()
    member_id = join.response.member_id
    bench.is_committing = False
    sync = bench.sync(member_id, 1, {member_id: b"a"})
    bench.run_for(3 * SESSION_MS)
    assert not sync.is_answered
    bench.is_committing = True
    bench.commit_all()
    assert sync.response.assignment == b"a"
    assert member_id in bench.group.members
    bench.run_for(SESSION_MS - 1)
    assert member_id in bench.group.members, "its session begins when it hears from us"
    bench.run_for(SESSION_MS + 1)
    assert member_id not in bench.group.members


def test_a_session_that_becomes_shorter_counts_at_once(bench: GroupBench) -> None:
    (leader,) = bench.stable(session_ms=100_000)
    join = bench.join(leader, session_ms=6_000)
    assert join.code is ErrorCode.NONE
    bench.sync(leader, 2, {})
    bench.run_for(6_001)
    assert not bench.group.members


def test_after_a_restart_sessions_begin_again_and_members_go_on(bench: GroupBench) -> None:
    ids = bench.stable(2)
    later = bench.restarted()
    assert later.group.state is ClassicState.STABLE
    assert list(later.group.members) == ids
    later.run_for(SESSION_MS - 1)
    assert [later.heartbeat(member_id, 1) for member_id in ids] == [ErrorCode.NONE] * 2
    assert later.sync(ids[1], 1).response.assignment == ids[1].encode()
    later.run_for(SESSION_MS + 1)
    assert not later.group.members


def test_a_member_that_does_not_come_back_after_a_restart_is_put_out(bench: GroupBench) -> None:
    leader, silent = bench.stable(2)
    later = bench.restarted()
    later.run_for(SESSION_MS - 1)
    assert silent in later.group.members
    later.heartbeat(leader, 1)
    later.run_for(2)
    assert list(later.group.members) == [leader]


def test_a_member_that_is_gone_leaves_no_timer(bench: GroupBench) -> None:
    before = len(bench.machine.environment.timers)
    (leader,) = bench.stable()
    assert len(bench.machine.environment.timers) == before + 1
    bench.leave((leader, None))
    assert len(bench.machine.environment.timers) == before


def test_a_group_that_is_gone_leaves_no_timer(bench: GroupBench) -> None:
    before = len(bench.machine.environment.timers)
    bench.join()
    bench.write(lambda machine: machine.delete_group("billing"), bench.asked())
    assert bench.machine.groups.find("billing") is None
    assert len(bench.machine.environment.timers) == before
