"""A set of offsets as intervals does what a set does."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidelog.deadletters.intervals import OffsetIntervals

OFFSETS = st.integers(0, 40)


def made_of(offsets: list[int]) -> OffsetIntervals:
    intervals = OffsetIntervals()
    for offset in offsets:
        intervals.add(offset)
    return intervals


@given(st.lists(OFFSETS), OFFSETS, OFFSETS)
def test_it_is_a_set(offsets: list[int], start: int, end: int) -> None:
    intervals, model = OffsetIntervals(), set[int]()
    for offset in offsets:
        assert intervals.add(offset) is (offset not in model)
        model.add(offset)
    assert {offset for offset in range(42) if offset in intervals} == model
    assert {offset for first, last in intervals for offset in range(first, last)} == model
    assert intervals.count(start, end) == len(model & set(range(start, end)))
    assert intervals.first_missing(start) == next(offset for offset in range(start, 100) if offset not in model)


@given(st.lists(OFFSETS))
def test_intervals_are_in_order_and_never_touch(offsets: list[int]) -> None:
    found = list(made_of(offsets))
    assert len(made_of(offsets)) == len(found)
    assert all(first < last for first, last in found)
    assert all(left[1] < right[0] for left, right in pairwise(found))


def test_a_run_is_one_interval() -> None:
    assert list(made_of([5, 3, 4, 9, 6, 8, 7])) == [(3, 10)]
