"""List, describe and delete groups."""

import pytest

from tests.groups.classic.bench import GROUP, Asked, GroupBench
from tidelog.controller.errors import ApiError
from tidelog.groups.records import OffsetCommitRecord, OffsetCommitValue
from tidelog.wire.errors import ErrorCode


def bench_with_groups() -> GroupBench:
    """billing is stable, fresh is empty, joining prepares its first rebalance, offsets has offsets only."""
    bench = GroupBench()
    bench.stable(2)
    bench.join(group_id="fresh")
    bench.join(group_id="joining", version=0)
    bench.machine.classic.offsets_only_group("offsets")
    return bench


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ((), (), ["billing", "fresh", "joining", "offsets"]),
        (("Stable",), (), ["billing"]),
        (("stable", " EMPTY "), (), ["billing", "fresh", "offsets"]),
        (("PreparingRebalance",), ("classic",), ["joining"]),
        ((), ("CLASSIC",), ["billing", "fresh", "joining", "offsets"]),
        ((), ("consumer",), []),
        ((), ("nonsense",), []),
        (("Nonsense",), (), []),
    ],
)
def test_groups_by_state_and_type(states: tuple[str, ...], types: tuple[str, ...], found: list[str]) -> None:
    bench = bench_with_groups()
    assert sorted(group.group_id for group in bench.machine.list_groups(states, types)) == found


def test_what_a_list_says_of_a_group() -> None:
    by_id = {group.group_id: group for group in bench_with_groups().machine.list_groups((), ())}
    assert tuple(by_id["billing"]) == ("billing", "consumer", "Stable", "Classic")
    assert tuple(by_id["offsets"]) == ("offsets", "", "Empty", "Classic")


def test_a_stable_group_is_described_with_metadata_and_assignment() -> None:
    bench = GroupBench()
    ids = bench.stable(2)
    described = bench.machine.describe_group(GROUP)
    assert described[:4] == (GROUP, "Stable", "consumer", "range")
    assert described.missing is None
    assert [tuple(member) for member in described.members] == [
        (member_id, None, "app", "/127.0.0.1", b"range metadata", member_id.encode()) for member_id in ids
    ]


def test_a_group_in_a_rebalance_is_described_without_metadata() -> None:
    bench = GroupBench()
    leader, _ = bench.stable(2)
    bench.join(leader)
    described = bench.machine.describe_group(GROUP)
    assert described[:4] == (GROUP, "PreparingRebalance", "consumer", "")
    assert {member.metadata for member in described.members} == {b""}


def test_a_group_that_does_not_exist_is_dead() -> None:
    described = GroupBench().machine.describe_group("nothing")
    assert (described.state, described.missing) == ("Dead", "Group nothing is not found.")


def commit(bench: GroupBench, group_id: str, count: int) -> None:
    for partition in range(count):
        record = OffsetCommitRecord(group_id, "orders", partition, OffsetCommitValue(partition))
        bench.machine.replay(record, partition, -1, -1)


def test_a_group_goes_with_its_offsets_in_one_batch() -> None:
    bench = GroupBench()
    (leader,) = bench.stable()
    commit(bench, GROUP, 3)
    bench.leave((leader, None))
    batches = len(bench.log.batches)
    asked = Asked()
    bench.write(lambda machine: machine.delete_group(GROUP), asked)
    assert asked.response is True
    assert len(bench.log.batches) == batches + 1
    assert [record.value for record in bench.records()[-4:]] == [None] * 4
    assert bench.machine.groups.find(GROUP) is None
    assert not bench.machine.offsets.of_group(GROUP)
    assert bench.restarted().machine.groups.find(GROUP) is None


def test_a_part_of_the_offsets_leaves_the_group() -> None:
    bench = GroupBench()
    commit(bench, GROUP, 5)
    gone = []
    for _ in range(3):
        asked = Asked()
        bench.write(lambda machine: machine.delete_group(GROUP, 2), asked)
        gone.append(asked.response)
    assert gone == [False, False, True]
    assert bench.machine.groups.find(GROUP) is None


def test_who_cannot_be_deleted() -> None:
    bench = bench_with_groups()
    for group_id, code in {
        "nothing": ErrorCode.GROUP_ID_NOT_FOUND,
        "billing": ErrorCode.NON_EMPTY_GROUP,
        "joining": ErrorCode.NON_EMPTY_GROUP,
    }.items():
        with pytest.raises(ApiError) as refused:
            bench.machine.delete_group(group_id)
        assert refused.value.code is code
