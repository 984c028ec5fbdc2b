"""SyncGroup: the assignment is durable before anybody hears of it, and nobody waits for ever."""

from tests.groups.classic.bench import BATCH_BYTES_MAX, REBALANCE_MS, GroupBench, Join
from tidelog.coordinator.errors import NotCoordinator
from tidelog.groups.classic.group import ClassicState
from tidelog.wire.errors import ErrorCode


def joined(bench: GroupBench, count: int = 2) -> list[str]:
    """A group that waits for its leader, who is the first."""
    joins: list[Join] = [bench.join_with_id() for _ in range(count)]
    bench.finish_join()
    ids = [join.response.member_id for join in joins]
    assert joins[0].response.leader == ids[0]
    return ids


def test_members_wait_for_the_leader_and_the_leader_for_the_log(bench: GroupBench) -> None:
    leader, follower = joined(bench)
    waiting = bench.sync(follower, 1)
    assert not waiting.is_answered
    bench.is_committing = False
    assigned = bench.sync(leader, 1, {leader: b"one", follower: b"two"})
    bench.runtime.flush()
    assert not waiting.is_answered
    assert not assigned.is_answered
    bench.log.commit()
    assert waiting.response.assignment == b"two"
    assert assigned.response.assignment == b"one"
    assert (waiting.response.protocol_type, waiting.response.protocol_name) == ("consumer", "range")


def test_the_record_holds_what_was_assigned(bench: GroupBench) -> None:
    leader, follower = joined(bench)
    bench.sync(leader, 1, {leader: b"one"})
    value = bench.records()[-1].value
    assert value is not None
    assert (value.protocol_type, value.generation, value.protocol, value.leader) == ("consumer", 1, "range", leader)
    assert [(member.member_id, member.assignment) for member in value.members] == [(leader, b"one"), (follower, b"")]
    assert {member.client_host for member in value.members} == {"/127.0.0.1"}


def test_a_member_that_comes_later_gets_its_assignment_at_once(bench: GroupBench) -> None:
    leader, follower = joined(bench)
    bench.sync(leader, 1, {follower: b"two"})
    assert bench.sync(follower, 1).response.assignment == b"two"
    assert bench.sync(follower, 1).response.assignment == b"two", "and again"


def test_a_member_that_comes_before_the_commit_waits_for_it(bench: GroupBench) -> None:
    leader, follower = joined(bench)
    bench.is_committing = False
    bench.sync(leader, 1, {follower: b"two"})
    late = bench.sync(follower, 1)
    assert not late.is_answered
    bench.commit_all()
    assert late.response.assignment == b"two"


def test_a_rebalance_before_the_commit_takes_nothing_back(bench: GroupBench) -> None:
    """The generation was whole; its members hear of it, and of the next one by their heartbeats."""
    leader, follower = joined(bench)
    waiting = bench.sync(follower, 1)
    bench.is_committing = False
    bench.sync(leader, 1, {follower: b"two"})
    bench.leave((leader, None))
    bench.commit_all()
    assert waiting.response.assignment == b"two"
    bench.is_committing = True
    assert bench.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_those_who_wait_are_told_when_somebody_leaves(bench: GroupBench) -> None:
    leader, *followers = joined(bench, 3)
    waiting = [bench.sync(follower, 1) for follower in followers]
    bench.leave((leader, None))
    assert [sync.code for sync in waiting] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2


def test_one_who_waits_and_is_put_out_is_told(bench: GroupBench) -> None:
    leader, follower = joined(bench)
    waiting = bench.sync(follower, 1)
    bench.leave((follower, None))
    assert waiting.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(bench.group.members) == [leader]


def test_a_sync_that_is_sent_again_replaces_the_one_that_waits(bench: GroupBench) -> None:
    leader, follower = joined(bench)
    earlier, later = bench.sync(follower, 1), bench.sync(follower, 1)
    assert earlier.code is ErrorCode.REBALANCE_IN_PROGRESS
    bench.sync(leader, 1, {follower: b"two"})
    assert later.response.assignment == b"two"


def test_a_leader_that_does_not_assign_is_put_out_after_the_rebalance_time_out(bench: GroupBench) -> None:
    leader, follower = joined(bench)
    waiting = bench.sync(follower, 1)
    for _ in range(REBALANCE_MS // 5000):
        assert not waiting.is_answered
        bench.heartbeat(leader, 1)
        bench.run_for(5000)
    assert waiting.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(bench.group.members) == [follower]


def test_a_member_that_never_syncs_is_put_out_of_a_stable_group_too(bench: GroupBench) -> None:
    leader, silent = joined(bench)
    bench.sync(leader, 1, {leader: b"one"})
    for _ in range(REBALANCE_MS // 5000):
        assert bench.group.state is ClassicState.STABLE
        bench.heartbeat(leader, 1)
        bench.heartbeat(silent, 1)
        bench.run_for(5000)
    assert list(bench.group.members) == [leader]
    assert bench.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_an_assignment_that_does_not_fit_is_an_error_for_all_and_they_begin_again(bench: GroupBench) -> None:
    leader, follower = joined(bench)
    waiting = bench.sync(follower, 1)
    assigned = bench.sync(leader, 1, {leader: b"x" * BATCH_BYTES_MAX})
    assert waiting.code is assigned.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert bench.group.state is ClassicState.PREPARING_REBALANCE
    assert [name for name, _ in bench.events] == ["group_metadata_too_large"]
    again = [bench.join(leader), bench.join(follower)]
    assert [join.response.generation for join in again] == [2, 2]
    assert bench.sync(leader, 2, {leader: b"small"}).response.assignment == b"small"


def test_a_log_that_fails_answers_everybody_once(bench: GroupBench) -> None:
    leader, *followers = joined(bench, 3)
    bench.is_committing = False
    waiting = [bench.sync(followers[0], 1)]
    waiting.append(bench.sync(leader, 1, {}))
    bench.runtime.flush()
    waiting.append(bench.sync(followers[1], 1))
    bench.log.fail_commits(OSError("the disk is gone"))
    assert all(isinstance(sync.error, NotCoordinator) for sync in waiting)
    bench.load()
    bench.is_committing = True
    bench.log.commit()
    assert bench.heartbeat(leader, 1) is ErrorCode.NONE, "what was appended is there after the reload"


def test_a_shard_that_is_given_up_answers_joins_and_syncs(bench: GroupBench) -> None:
    leader, follower = joined(bench)
    sync = bench.sync(follower, 1)
    join = bench.join(group_id="other", version=0)
    bench.runtime.release(0, NotCoordinator("led elsewhere"))
    assert isinstance(sync.error, NotCoordinator)
    assert isinstance(join.error, NotCoordinator)
    assert leader
