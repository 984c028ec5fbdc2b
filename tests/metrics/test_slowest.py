from hypothesis import given
from hypothesis import strategies as st

from tidelog.metrics.slowest import Slowest

NOTES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1000)), max_size=80)


def note_all(slowest: Slowest[int], notes: list[tuple[int, int]]) -> None:
    for key, value in notes:
        if value > slowest.threshold:
            slowest.note(key, value)


@given(NOTES)
def test_the_worst_value_of_the_worst_keys(notes: list[tuple[int, int]]) -> None:
    slowest: Slowest[int] = Slowest(3)
    note_all(slowest, notes)
    worst: dict[int, int] = {}
    for key, value in notes:
        worst[key] = max(value, worst.get(key, 0))
    expected = sorted(worst.values(), reverse=True)[:3]
    found = slowest.found()
    assert [value for _, value in found] == expected
    assert all(worst[key] == value for key, value in found)


def test_a_window_is_remembered_for_one_more() -> None:
    slowest: Slowest[str] = Slowest(2)
    slowest.note("old", 100)
    slowest.turn()
    slowest.note("new", 1)
    assert slowest.found() == [("old", 100), ("new", 1)]
    slowest.turn()
    assert slowest.found() == [("new", 1)]
    slowest.turn()
    assert slowest.found() == []


def test_after_a_turn_everything_is_noted_again() -> None:
    slowest: Slowest[str] = Slowest(1)
    slowest.note("a", 100)
    assert slowest.threshold == 100
    slowest.turn()
    assert slowest.threshold < 0
