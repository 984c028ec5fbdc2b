from hypothesis import given
from hypothesis import strategies as st

from tests.groups.assignors.strategies import TOPICS, check, groups, patient
from tidelog.groups.assignors.range import assign_range
from tidelog.groups.assignors.specification import MemberSubscription

A, B = TOPICS[:2]


def test_neighbours_stay_together_and_topics_are_cut_alike() -> None:
    members = {"m1": MemberSubscription(frozenset((A, B))), "m0": MemberSubscription(frozenset((A, B)))}
    assert assign_range(members, {A: 3, B: 3}) == {"m0": {A: (0, 1), B: (0, 1)}, "m1": {A: (2,), B: (2,)}}


def test_static_members_come_first_by_their_instance() -> None:
    members = {
        "a": MemberSubscription(frozenset((A,))),
        "z": MemberSubscription(frozenset((A,)), "i0"),
        "y": MemberSubscription(frozenset((A,)), "i1"),
    }
    assert assign_range(members, {A: 4}) == {"z": {A: (0, 1)}, "y": {A: (2,)}, "a": {A: (3,)}}


def test_more_members_than_partitions() -> None:
    members = {name: MemberSubscription(frozenset((A,))) for name in "abc"}
    assert assign_range(members, {A: 2}) == {"a": {A: (0,)}, "b": {A: (1,)}, "c": {}}


@patient
@given(st.booleans().flatmap(lambda homogeneous: groups(homogeneous=homogeneous)))
def test_whole_even_per_topic_and_in_ranges(group: tuple[dict[str, MemberSubscription], dict[bytes, int]]) -> None:
    members, counts = group
    assignments = assign_range(members, counts)
    check(members, counts, assignments)
    for topic_id in TOPICS:
        shares = [assignments[name].get(topic_id, ()) for name, member in members.items() if topic_id in member.topic_ids]
        for share in shares:
            assert list(share) == list(range(share[0], share[0] + len(share))) if share else True
        if shares:
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert assign_range(dict(reversed(members.items())), counts) == assignments
