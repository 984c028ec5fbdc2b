from hypothesis import given
from hypothesis import strategies as st

from tidelog.groups.assignors.simple import assign_simple
from tidelog.groups.assignors.specification import Assignments, MemberSubscription

ORDERS, BILLS = b"orders".ljust(16), b"bills".ljust(16)


def loads(assignments: Assignments) -> tuple[dict[str, int], dict[tuple[bytes, int], int]]:
    by_partition: dict[tuple[bytes, int], int] = {}
    for assigned in assignments.values():
        for topic_id, indexes in assigned.items():
            for index in indexes:
                by_partition[topic_id, index] = by_partition.get((topic_id, index), 0) + 1
    return {member_id: sum(map(len, assigned.values())) for member_id, assigned in assignments.items()}, by_partition


@given(st.integers(1, 25), st.integers(0, 9), st.integers(0, 4), st.integers(1, 25))
def test_loads_differ_by_one_at_most_and_everything_is_assigned(members: int, orders: int, bills: int, later: int) -> None:
    topics = frozenset((ORDERS, BILLS))
    partitions = {ORDERS: tuple(range(orders)), BILLS: tuple(range(bills))}
    first = assign_simple({f"m{number:02}": MemberSubscription(topics) for number in range(members)}, partitions)
    second = assign_simple(
        {f"m{number:02}": MemberSubscription(topics, None, first.get(f"m{number:02}", {})) for number in range(later)}, partitions
    )
    for assignments in (first, second):
        by_member, by_partition = loads(assignments)
        assert len(by_partition) == orders + bills
        if by_partition:
            assert max(by_member.values()) - min(by_member.values()) <= 1
            assert max(by_partition.values()) - min(by_partition.values()) <= 1
    if later == members:
        assert second == first, "everybody keeps what they have"


def test_twenty_members_share_three_partitions() -> None:
    members = {f"m{number}": MemberSubscription(frozenset((ORDERS,))) for number in range(20)}
    by_member, by_partition = loads(assign_simple(members, {ORDERS: (0, 1, 2)}))
    assert set(by_member.values()) == {1}
    assert sorted(by_partition.values()) == [6, 7, 7]


def test_with_different_subscriptions_each_topic_is_shared_by_its_own_subscribers() -> None:
    members = {
        "a": MemberSubscription(frozenset((ORDERS,))),
        "b": MemberSubscription(frozenset((ORDERS, BILLS))),
        "c": MemberSubscription(frozenset()),
    }
    expected = {"a": {ORDERS: (0,)}, "b": {BILLS: (0,), ORDERS: (1,)}, "c": {}}
    assert assign_simple(members, {ORDERS: (0, 1), BILLS: (0,)}) == expected
    assert assign_simple({}, {ORDERS: (0,)}) == {}
