from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.balance import (
    BYTES_GAP_MIN,
    Assignment,
    BrokerPlaces,
    PlanImpossible,
    balanced,
    drained,
    with_replication_factor,
)
from tidelog.records.topic_partition import TopicPartition

THREE = BrokerPlaces((1, 2, 3))
TWO_RACKS = BrokerPlaces((1, 2, 3, 4), {1: "a", 2: "a", 3: "b", 4: "b"})
GIB = 1 << 30


def copies(before: Assignment, after: Assignment) -> int:
    return sum(len(set(after[key]) - set(before[key])) for key in before)


def bytes_of(plan: Assignment, sizes: Mapping[TopicPartition, int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for key, replicas in plan.items():
        found.update(dict.fromkeys(replicas, sizes[key]))
    return found


def racks_of(replicas: tuple[int, ...], places: BrokerPlaces) -> set[str | int]:
    return {places.rack(replica) for replica in replicas}


def test_what_is_even_stays() -> None:
    even = {("orders", 0): (1, 2), ("orders", 1): (2, 3), ("orders", 2): (3, 1)}
    assert balanced(even, THREE) == even


def test_a_new_broker_gets_its_share_with_the_fewest_copies() -> None:
    before = {("orders", index): ((1, 2), (2, 1))[index % 2] for index in range(6)}
    after = balanced(before, THREE)
    assert Counter(replica for replicas in after.values() for replica in replicas) == {1: 4, 2: 4, 3: 4}
    assert max(Counter(replicas[0] for replicas in after.values()).values()) == 2
    assert copies(before, after) == 4


def test_leaders_are_evened_out_without_copies() -> None:
    before = {("orders", index): (1, 2, 3) for index in range(3)}
    after = balanced(before, THREE)
    assert sorted(replicas[0] for replicas in after.values()) == [1, 2, 3]
    assert all(sorted(replicas) == [1, 2, 3] for replicas in after.values())


def test_a_broker_that_leaves_keeps_nothing_and_nothing_else_moves() -> None:
    before = {("orders", 0): (1, 2), ("orders", 1): (2, 3), ("orders", 2): (3, 1), ("orders", 3): (1, 2)}
    after = drained(before, THREE, 3)
    assert {frozenset(replicas) for replicas in after.values()} == {frozenset((1, 2))}
    assert (after["orders", 0], after["orders", 3]) == ((1, 2), (1, 2))
    with pytest.raises(PlanImpossible, match=r"orders-0 has 2 replica\(s\), and only 1 other broker\(s\) could hold them"):
        drained(before, BrokerPlaces((1, 2)), 2)


def test_what_a_broker_leaves_goes_where_the_least_is_of_all_and_not_only_of_what_moves() -> None:
    before = {("orders", 0): (3,), **{("busy", index): (1,) for index in range(5)}}
    assert drained(before, THREE, 3)["orders", 0] == (2,)


def test_a_partition_stays_on_as_many_racks_as_it_was_when_its_broker_is_drained() -> None:
    before = {("orders", index): (1 + index % 2, 3 + index % 2) for index in range(8)}
    after = drained(before, TWO_RACKS, 4)
    assert all(racks_of(replicas, TWO_RACKS) == {"a", "b"} for replicas in after.values())
    assert all(4 not in replicas for replicas in after.values())


def test_evening_out_keeps_racks_apart_even_where_that_leaves_brokers_uneven() -> None:
    places = BrokerPlaces((1, 2, 3), {1: "a", 2: "a", 3: "b"})
    before = {("orders", index): (1 + index % 2, 3) for index in range(6)}
    assert copies(before, balanced(before, places)) == 0
    assert copies(before, balanced(before, BrokerPlaces((1, 2, 3)))) == 2, "without racks broker 3 gives some away"


def test_replicas_that_share_a_rack_are_brought_apart() -> None:
    before = {("orders", 0): (1, 2), ("orders", 1): (3, 4)}
    after = balanced(before, TWO_RACKS)
    assert all(racks_of(replicas, TWO_RACKS) == {"a", "b"} for replicas in after.values())
    assert copies(before, after) == 2


def test_bytes_are_evened_out_where_counts_are_even() -> None:
    before: Assignment = {("large", 0): (1,), ("large", 1): (1,), ("small", 0): (2,), ("small", 1): (2,)}
    sizes = {("large", 0): 4 * GIB, ("large", 1): 4 * GIB, ("small", 0): 1 << 20, ("small", 1): 1 << 20}
    after = balanced(before, BrokerPlaces((1, 2), sizes=sizes))
    assert set(bytes_of(after, sizes).values()) == {4 * GIB + (1 << 20)}
    assert copies(before, after) == 2
    light = {key: size * BYTES_GAP_MIN // (9 * GIB) for key, size in sizes.items()}
    assert balanced(before, BrokerPlaces((1, 2), sizes=light)) == before, "so little is not worth a copy"


def test_of_what_may_go_to_a_new_broker_goes_what_evens_out_the_bytes() -> None:
    before: Assignment = {("topic", index): (1,) for index in range(4)}
    sizes = {key: size * GIB for key, size in zip(before, (1, 5, 2, 4), strict=True)}
    after = balanced(before, BrokerPlaces((1, 2), sizes=sizes))
    assert set(bytes_of(after, sizes).values()) == {6 * GIB}
    assert copies(before, after) == 2


def test_replicas_are_added_up_to_a_factor_and_to_other_racks_first() -> None:
    before = {("__consumer_offsets", 0): (1,), ("orders", 0): (1,)}
    assert with_replication_factor(before, ["__consumer_offsets"], 3, THREE) == {
        ("__consumer_offsets", 0): (1, 2, 3),
        ("orders", 0): (1,),
    }
    assert with_replication_factor({("orders", 0): (1,)}, ["orders"], 2, TWO_RACKS) == {("orders", 0): (1, 3)}
    with pytest.raises(PlanImpossible, match="4 replicas need 4 brokers, and there are 3"):
        with_replication_factor(before, ["orders"], 4, THREE)


def test_what_an_exchange_makes_movable_is_moved_by_the_same_plan() -> None:
    sizes = {("topic", index): size * GIB for index, size in enumerate((18, 19, 16, 1, 0, 7))}
    places = BrokerPlaces(range(1, 7), {1: "a", 2: "b", 3: "c", 5: "a", 6: "a"}, sizes)
    held = [(1, 2), (1, 2), (1, 3), (1, 3), (2, 5), (1, 2)]
    after = balanced({("topic", index): replicas for index, replicas in enumerate(held)}, places)
    assert balanced(after, places) == after


@given(st.data())
def test_every_plan_is_sound_and_a_second_one_has_nothing_to_do(data: st.DataObject) -> None:
    brokers = range(1, data.draw(st.integers(2, 6)) + 1)
    racks = {broker: data.draw(st.sampled_from(("a", "b", "c", None))) for broker in brokers}
    factor = data.draw(st.integers(1, len(brokers)))
    held = st.permutations(brokers).map(lambda order: tuple(order[:factor]))
    before = dict(enumerate(data.draw(st.lists(held, min_size=1, max_size=12))))
    assignment = {("topic", index): replicas for index, replicas in before.items()}
    sizes = {key: data.draw(st.integers(0, 20)) * GIB for key in assignment}
    places = BrokerPlaces(brokers, racks, sizes)
    after = balanced(assignment, places)
    most_racks = min(factor, places.rack_count(brokers))
    for key, replicas in after.items():
        assert len(set(replicas)) == len(replicas) == len(assignment[key])
        assert places.rack_count(replicas) == most_racks
    assert balanced(after, places) == after
    leaving = data.draw(st.sampled_from(brokers))
    if factor < len(brokers):
        emptied = drained(after, places, leaving)
        others = [broker for broker in brokers if broker != leaving]
        for key, replicas in emptied.items():
            assert leaving not in replicas
            assert set(after[key]) - {leaving} <= set(replicas)
            assert places.rack_count(replicas) == min(factor, places.rack_count(others))
