"""Who may commit and read offsets of a consumer group."""

import pytest

from tests.groups.consumer.bench import GROUP, ConsumerBench
from tests.groups.shard_bench import topic_id
from tidelog.controller.errors import ApiError
from tidelog.groups.consumer.group import ConsumerGroup, ConsumerGroupMember
from tidelog.groups.records import ClassicMemberMetadata
from tidelog.wire.errors import ErrorCode

ORDERS = topic_id("orders")


def group_with(*, is_classic: bool = False) -> ConsumerGroup:
    """A member in epoch 5: partition 0 since 3, 1 since 5, 2 since 2 and to be given up."""
    group = ConsumerGroup(GROUP)
    group.put_member(
        ConsumerGroupMember(
            "a",
            member_epoch=5,
            classic=ClassicMemberMetadata(1000, ()) if is_classic else None,
            assigned={ORDERS: {0: 3, 1: 5}},
            pending_revocation={ORDERS: {2: 2}},
        )
    )
    return group


def code_of(group: ConsumerGroup, member_id: str, epoch: int, version: int, partition: int | None = None) -> ErrorCode:
    try:
        group.check_offset_commit(member_id, None, epoch, version)
        if partition is not None:
            group.check_partition_commit(member_id, epoch, ORDERS, "orders", partition)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


@pytest.mark.parametrize(
    ("member_id", "epoch", "version", "code"),
    [
        ("a", 5, 9, ErrorCode.NONE),
        ("a", 4, 9, ErrorCode.NONE),  # Each partition decides.
        ("a", 6, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 5, 8, ErrorCode.UNSUPPORTED_VERSION),
        ("x", 5, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits(member_id: str, epoch: int, version: int, code: ErrorCode) -> None:
    assert code_of(group_with(), member_id, epoch, version) is code


@pytest.mark.parametrize(
    ("epoch", "partition", "is_stale"),
    [
        (5, 0, False),
        (5, 9, False),
        (4, 0, False),
        (3, 0, False),
        (2, 0, True),
        (4, 1, True),
        (2, 2, False),
        (1, 2, True),
        (4, 9, True),
    ],
)
def test_a_late_commit_is_for_what_the_member_has_had_since(epoch: int, partition: int, is_stale: bool) -> None:
    expected = ErrorCode.STALE_MEMBER_EPOCH if is_stale else ErrorCode.NONE
    assert code_of(group_with(), "a", epoch, 9, partition) is expected
    expected = ErrorCode.ILLEGAL_GENERATION if is_stale else ErrorCode.NONE
    assert code_of(group_with(is_classic=True), "a", epoch, 5, partition) is expected


def test_a_classic_member_may_use_old_versions() -> None:
    assert code_of(group_with(is_classic=True), "a", 5, 2) is ErrorCode.NONE
    assert code_of(group_with(is_classic=True), "a", 6, 2) is ErrorCode.ILLEGAL_GENERATION


def test_an_empty_group_takes_commits_of_anybody_without_an_epoch() -> None:
    group = ConsumerGroup(GROUP)
    assert code_of(group, "", -1, 9) is ErrorCode.NONE
    assert code_of(group, "a", 1, 9) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        (None, -1, ErrorCode.NONE),
        ("a", 5, ErrorCode.NONE),
        ("a", 4, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 6, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 5, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, 0, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_fetches(member_id: str | None, epoch: int, code: ErrorCode) -> None:
    group = group_with()
    if code is ErrorCode.NONE:
        group.check_offset_fetch(member_id, epoch)
        return
    with pytest.raises(ApiError) as refused:
        group.check_offset_fetch(member_id, epoch)
    assert refused.value.code is code


def test_partitions_keep_the_epoch_at_which_they_were_assigned(bench: ConsumerBench) -> None:
    bench.join("a")
    bench.join("b")
    bench.settle()
    assert bench.group.members["a"].assigned == {ORDERS: {0: 1, 1: 1}}
    assert bench.group.members["b"].assigned == {ORDERS: {2: 2, 3: 2}}
    assert bench.group.empty_since_ms() is None
