import pytest

from tests.groups.shard_bench import topic_id
from tidelog.controller.errors import ApiError
from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.consumer.group import AssignedPartitions, ConsumerGroupMember, MemberState
from tidelog.groups.consumer.rebalance import OwnedPartitions, Reconciliation
from tidelog.wire.errors import ErrorCode

A, B = topic_id("a"), topic_id("b")
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS


def step(
    state: MemberState,
    epoch: int,
    assigned: AssignedPartitions,
    target: Partitions,
    *,
    pending: AssignedPartitions | None = None,
    owned: OwnedPartitions | None = None,
    taken: tuple[tuple[bytes, int], ...] = (),
    subscribed: frozenset[bytes] = frozenset((A, B)),
    has_subscription_changed: bool = False,
    target_epoch: int = 9,
) -> tuple[MemberState, int, int, AssignedPartitions, AssignedPartitions]:
    member = ConsumerGroupMember(
        "m", member_epoch=epoch, previous_member_epoch=epoch - 1, state=state, assigned=assigned, pending_revocation=pending or {}
    )
    after = Reconciliation(
        member,
        target_epoch,
        target,
        owned=owned,
        subscribed_topic_ids=subscribed,
        is_free=lambda topic_id, partition: (topic_id, partition) not in taken,
    ).next(has_subscription_changed=has_subscription_changed)
    return after.state, after.member_epoch, after.previous_member_epoch, after.assigned, after.pending_revocation


def test_already_there() -> None:
    assert step(STABLE, 9, {A: {0: 5}}, {A: (0,)}) == (STABLE, 9, 8, {A: {0: 5}}, {})


def test_what_is_free_is_assigned_in_the_new_epoch() -> None:
    assert step(STABLE, 8, {A: {0: 5}}, {A: (0, 1), B: (2,)}) == (STABLE, 9, 8, {A: {0: 5, 1: 9}, B: {2: 9}}, {})


def test_what_others_have_is_waited_for() -> None:
    after = step(STABLE, 8, {}, {A: (0, 1)}, taken=((A, 1),))
    assert after == (UNRELEASED, 9, 8, {A: {0: 9}}, {})
    assert step(UNRELEASED, 9, {A: {0: 9}}, {A: (0, 1)}) == (STABLE, 9, 9, {A: {0: 9, 1: 9}}, {})


def test_revocation_comes_first_and_in_the_old_epoch() -> None:
    after = step(STABLE, 8, {A: {0: 5, 1: 6}}, {A: (0,), B: (0,)}, owned={A: frozenset((0, 1))})
    assert after == (UNREVOKED, 8, 8, {A: {0: 5}}, {A: {1: 6}})


def test_what_the_member_does_not_own_any_more_needs_no_revocation() -> None:
    after = step(STABLE, 8, {A: {0: 5, 1: 6}}, {A: (0,), B: (0,)}, owned={A: frozenset((0,))})
    assert after == (STABLE, 9, 8, {A: {0: 5}, B: {0: 9}}, {})


@pytest.mark.parametrize("owned", [None, {A: frozenset((1,))}])
def test_revocation_is_waited_for(owned: OwnedPartitions | None) -> None:
    before = (UNREVOKED, 8, 7, {A: {0: 5}}, {A: {1: 6}})
    assert step(UNREVOKED, 8, {A: {0: 5}}, {A: (0,)}, pending={A: {1: 6}}, owned=owned) == before


def test_a_new_target_while_revoking_revokes_more() -> None:
    after = step(UNREVOKED, 8, {A: {0: 5}}, {}, pending={A: {1: 6}}, owned={A: frozenset((0,))})
    assert after == (UNREVOKED, 8, 8, {}, {A: {0: 5}})


def test_a_partition_to_be_revoked_can_come_back() -> None:
    """Kafka's rule: its owner is the member itself, so it is free."""
    assert step(UNREVOKED, 8, {}, {A: (1,)}, pending={A: {1: 6}}, owned={}) == (STABLE, 9, 8, {A: {1: 9}}, {})


def test_a_target_that_is_no_longer_subscribed_to_is_not_followed() -> None:
    assert step(STABLE, 8, {}, {A: (0,), B: (0,)}, subscribed=frozenset((B,))) == (STABLE, 9, 8, {B: {0: 9}}, {})


@pytest.mark.parametrize(
    ("state", "epoch", "assigned", "pending", "owned", "after"),
    [
        (STABLE, 9, {A: {0: 5}, B: {0: 5}}, {}, {A: frozenset((0,))}, (UNREVOKED, 9, 9, {B: {0: 5}}, {A: {0: 5}})),
        (STABLE, 9, {A: {0: 5}, B: {0: 5}}, {}, {}, (STABLE, 9, 9, {B: {0: 5}}, {})),
        (STABLE, 9, {B: {0: 5}}, {}, {}, (STABLE, 9, 8, {B: {0: 5}}, {})),
        (UNREVOKED, 8, {A: {0: 5}}, {A: {1: 6}}, {A: frozenset((0, 1))}, (UNREVOKED, 8, 8, {}, {A: {0: 5, 1: 6}})),
    ],
)
def test_a_changed_subscription_before_there_is_a_new_target(
    state: MemberState,
    epoch: int,
    assigned: AssignedPartitions,
    pending: AssignedPartitions,
    owned: OwnedPartitions,
    after: tuple[object, ...],
) -> None:
    """It is for B alone now."""
    subscribed, target = frozenset((B,)), {A: (0,), B: (0,)}
    stepped = step(
        state, epoch, assigned, target, pending=pending, owned=owned, subscribed=subscribed, has_subscription_changed=True
    )
    assert stepped == after


def test_a_state_that_a_newer_version_wrote() -> None:
    with pytest.raises(ApiError) as refused:
        step(MemberState.UNKNOWN, 8, {A: {0: 5}}, {A: (0,)}, owned={A: frozenset((0,))})
    assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    assert step(MemberState.UNKNOWN, 8, {A: {0: 5}}, {A: (0,)}, owned={}) == (STABLE, 9, 8, {A: {0: 5}}, {})
