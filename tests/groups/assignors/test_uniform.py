from hypothesis import given
from hypothesis import strategies as st

from tests.groups.assignors.strategies import TOPICS, check, flat, groups, load, loads, moved, patient, with_assignment
from tidelog.groups.assignors.specification import Assignments, MemberSubscription
from tidelog.groups.assignors.uniform import assign_uniform

A, B = TOPICS[:2]


def test_neighbouring_partitions_go_to_different_members() -> None:
    members = {"a": MemberSubscription(frozenset((A, B))), "b": MemberSubscription(frozenset((A, B)))}
    assert assign_uniform(members, {A: 2, B: 2}) == {"a": {A: (0,), B: (0,)}, "b": {A: (1,), B: (1,)}}


def test_who_has_one_more_keeps_it() -> None:
    members = {
        "a": MemberSubscription(frozenset((A,)), assigned={A: (0,)}),
        "b": MemberSubscription(frozenset((A,)), assigned={A: (1, 2)}),
    }
    assert assign_uniform(members, {A: 3}) == {"a": {A: (0,)}, "b": {A: (1, 2)}}


def test_a_new_member_takes_only_what_is_due_to_it() -> None:
    members = {
        "a": MemberSubscription(frozenset((A,)), assigned={A: (0, 1, 2)}),
        "b": MemberSubscription(frozenset((A,)), assigned={A: (3, 4, 5)}),
        "c": MemberSubscription(frozenset((A,))),
    }
    assert assign_uniform(members, {A: 6}) == {"a": {A: (0, 1)}, "b": {A: (3, 4)}, "c": {A: (2, 5)}}


def test_more_members_than_partitions() -> None:
    members = {name: MemberSubscription(frozenset((A,))) for name in "abc"}
    assert assign_uniform(members, {A: 1}) == {"a": {A: (0,)}, "b": {}, "c": {}}


def test_what_is_gone_or_held_twice_is_not_kept() -> None:
    members = {
        "a": MemberSubscription(frozenset((A,)), assigned={A: (0, 7), B: (0,)}),
        "b": MemberSubscription(frozenset((A,)), assigned={A: (0, 1)}),
    }
    assert assign_uniform(members, {A: 2, B: 1}) == {"a": {A: (0,)}, "b": {A: (1,)}}


def test_nobody() -> None:
    assert assign_uniform({}, {A: 1}) == {}


def test_partitions_that_only_one_can_have_are_made_up_for_by_a_chain() -> None:
    """``a`` shares a topic with ``b`` and ``b`` one with ``c``; their counts differ by one each, and still can be evened out."""
    c_topic = TOPICS[2]
    members = {
        "a": MemberSubscription(frozenset((A,)), assigned={A: (0, 1, 2)}),
        "b": MemberSubscription(frozenset((A, B)), assigned={B: (0, 1)}),
        "c": MemberSubscription(frozenset((B, c_topic)), assigned={c_topic: (0,)}),
    }
    assignments = assign_uniform(members, {A: 3, B: 2, c_topic: 1})
    assert loads(assignments) == [2, 2, 2]


@patient
@given(groups(homogeneous=True))
def test_homogeneous_is_whole_and_even(group: tuple[dict[str, MemberSubscription], dict[bytes, int]]) -> None:
    members, counts = group
    assignments = assign_uniform(members, counts)
    check(members, counts, assignments)
    assert loads(assignments)[-1] - loads(assignments)[0] <= 1


@patient
@given(groups(homogeneous=False, members_max=4))
def test_heterogeneous_is_whole_and_as_even_as_can_be(group: tuple[dict[str, MemberSubscription], dict[bytes, int]]) -> None:
    members, counts = group
    counts = {topic_id: min(count, 4) for topic_id, count in counts.items()}
    assignments = assign_uniform(members, counts)
    check(members, counts, assignments)
    assert loads(assignments) == best_loads(members, counts)


def best_loads(members: dict[str, MemberSubscription], counts: dict[bytes, int]) -> list[int]:
    """The most even counts: of all that can be reached by giving out topic after topic."""
    names = sorted(members)
    reachable: set[tuple[int, ...]] = {(0,) * len(names)}
    for topic_id in sorted({topic_id for member in members.values() for topic_id in member.topic_ids}):
        able = [index for index, name in enumerate(names) if topic_id in members[name].topic_ids]
        for _ in range(counts[topic_id]):
            reachable = {(*loads[:index], loads[index] + 1, *loads[index + 1 :]) for loads in reachable for index in able}
    return sorted(min(reachable, key=lambda loads: (sum(load * load for load in loads), sorted(loads))))


@st.composite
def changes(draw: st.DrawFn, homogeneous: bool) -> tuple[dict[str, MemberSubscription], dict[bytes, int], Assignments]:
    """A group with its assignment, and then: members that left or came, topics that grew."""
    members, counts = draw(groups(homogeneous=homogeneous))
    before = assign_uniform(members, counts)
    leaving = draw(st.sets(st.sampled_from(sorted(members)), max_size=len(members) - 1))
    topics = next(iter(members.values())).topic_ids
    for name in draw(st.sets(st.sampled_from(["new-1", "new-2"]))):
        members[name] = MemberSubscription(topics)
    for name in leaving:
        del members[name]
    for topic_id in draw(st.sets(st.sampled_from(TOPICS))):
        counts[topic_id] += 1
    return with_assignment(members, before), counts, {name: before.get(name, {}) for name in members}


@patient
@given(changes(homogeneous=True))
def test_homogeneous_moves_no_more_than_it_must(
    change: tuple[dict[str, MemberSubscription], dict[bytes, int], Assignments],
) -> None:
    members, counts, before = change
    after = assign_uniform(members, counts)
    check(members, counts, after)
    quota, extra = divmod(len(flat(after)), len(members))
    over = sorted((load(before, name) - quota for name in members), reverse=True)
    must_move = sum(max(0, above - (index < extra)) for index, above in enumerate(over))
    assert moved(before, after) == must_move


@patient
@given(st.booleans().flatmap(changes))
def test_a_result_is_kept_when_nothing_changes(
    change: tuple[dict[str, MemberSubscription], dict[bytes, int], Assignments],
) -> None:
    members, counts, _ = change
    after = assign_uniform(members, counts)
    check(members, counts, after)
    assert assign_uniform(with_assignment(members, after), counts) == after


@patient
@given(changes(homogeneous=False))
def test_heterogeneous_moves_nothing_when_that_is_as_even(
    change: tuple[dict[str, MemberSubscription], dict[bytes, int], Assignments],
) -> None:
    """Members and topics that nobody shares anything with come and go."""
    members, counts, _ = change
    before = assign_uniform(members, counts)
    alone = bytes(16)
    members = with_assignment(members, before)
    members["alone"] = MemberSubscription(frozenset((alone,)))
    counts[alone] = 3
    after = assign_uniform(members, counts)
    assert after.pop("alone") == {alone: (0, 1, 2)}
    assert after == before


@patient
@given(changes(homogeneous=False))
def test_the_order_of_the_input_does_not_matter(
    change: tuple[dict[str, MemberSubscription], dict[bytes, int], Assignments],
) -> None:
    members, counts, _ = change
    backwards = dict(reversed(members.items()))
    assert assign_uniform(members, counts) == assign_uniform(backwards, dict(reversed(counts.items())))
