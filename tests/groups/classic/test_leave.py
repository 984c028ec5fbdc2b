"""LeaveGroup: several at once, static members by their instance, each with an error of its own."""

from tests.groups.classic.bench import GroupBench
from tidelog.groups.classic.group import ClassicState
from tidelog.wire.errors import ErrorCode


def test_a_member_leaves_and_the_others_rebalance(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    (result,) = bench.leave((leader, None))
    assert result == (leader, None, ErrorCode.NONE)
    assert bench.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    join = bench.join(follower)
    assert join.response.leader == follower
    assert join.response.generation == 2


def test_the_last_one_leaves_an_empty_group(bench: GroupBench) -> None:
    (leader,) = bench.stable()
    bench.is_committing = False
    bench.leave((leader, None))
    bench.commit_all()
    assert bench.group.state is ClassicState.EMPTY
    value = bench.records()[-1].value
    assert value is not None
    assert (value.generation, value.members) == (2, ())


def test_each_has_an_error_of_its_own_and_there_is_one_rebalance(bench: GroupBench) -> None:
    ids = bench.stable(4, instances=True)
    before = bench.machine.classic.rebalances.count
    results = bench.leave(
        (ids[1], "instance-1"),
        ("", "instance-2"),
        ("", "instance-9"),
        ("", None),
        ("nobody", None),
        ("nobody", "instance-3"),
        (ids[1], "instance-1"),
    )
    assert [result.error for result in results] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert [(result.member_id, result.group_instance_id) for result in results[:2]] == [
        (ids[1], "instance-1"),
        ("", "instance-2"),
    ]
    assert list(bench.group.static_members) == ["instance-0", "instance-3"]
    assert bench.machine.classic.rebalances.count == before + 1


def test_nobody_left_nothing_happens(bench: GroupBench) -> None:
    bench.stable()
    bench.leave(("nobody", None))
    assert bench.group.state is ClassicState.STABLE


def test_one_whose_join_waits_is_told(bench: GroupBench) -> None:
    leader, _ = bench.stable(2)
    join = bench.join(leader)
    bench.leave((leader, None))
    assert join.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert join.response.member_id == ""


def test_a_rebalance_goes_on_when_the_one_it_waited_for_leaves(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    join = bench.join(leader)
    bench.leave((follower, None))
    assert join.code is ErrorCode.NONE
    assert len(join.response.members) == 1


def test_an_id_that_is_pending_can_leave(bench: GroupBench) -> None:
    (leader,) = bench.stable()
    pending = bench.join().response.member_id
    join = bench.join(leader)
    assert not join.is_answered
    (result,) = bench.leave((pending, None))
    assert result.error is ErrorCode.NONE
    assert join.code is ErrorCode.NONE
