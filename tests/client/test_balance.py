from collections import Counter

import pytest

from tidelog.client.balance import PlanImpossible, balanced, with_replication_factor


def test_what_is_even_stays() -> None:
    even = {("orders", 0): (1, 2), ("orders", 1): (2, 3), ("orders", 2): (3, 1)}
    assert balanced(even, (1, 2, 3)) == even


def test_a_new_broker_gets_its_share_with_the_fewest_copies() -> None:
    before = {("orders", index): ((1, 2), (2, 1))[index % 2] for index in range(6)}
    after = balanced(before, (1, 2, 3))
    assert Counter(replica for replicas in after.values() for replica in replicas) == {1: 4, 2: 4, 3: 4}
    assert max(Counter(replicas[0] for replicas in after.values()).values()) == 2
    assert sum(len(set(after[key]) - set(before[key])) for key in before) == 4


def test_leaders_are_evened_out_without_copies() -> None:
    before = {("orders", index): (1, 2, 3) for index in range(3)}
    after = balanced(before, (1, 2, 3))
    assert sorted(replicas[0] for replicas in after.values()) == [1, 2, 3]
    assert all(sorted(replicas) == [1, 2, 3] for replicas in after.values())


def test_a_broker_that_leaves_keeps_nothing() -> None:
    before = {("orders", 0): (1, 2), ("orders", 1): (2, 3), ("orders", 2): (3, 1)}
    after = balanced(before, (1, 2, 3), leaving=(3,))
    assert {frozenset(replicas) for replicas in after.values()} == {frozenset((1, 2))}
    with pytest.raises(PlanImpossible, match=r"orders-0 has 2 replica\(s\), and only 1 other broker\(s\) could hold them"):
        balanced(before, (1, 2), leaving=(2,))


def test_replicas_are_added_up_to_a_factor() -> None:
    before = {("__consumer_offsets", 0): (1,), ("orders", 0): (1,)}
    assert with_replication_factor(before, ["__consumer_offsets"], 3, (1, 2, 3)) == {
        ("__consumer_offsets", 0): (1, 2, 3),
        ("orders", 0): (1,),
    }
    with pytest.raises(PlanImpossible, match="4 replicas need 4 brokers, and there are 3"):
        with_replication_factor(before, ["orders"], 4, (1, 2, 3))
