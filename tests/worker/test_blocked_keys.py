"""Blocked keys: a message waits exactly while an earlier one of its key does."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.worker.blocked_keys import BlockedKeys, Place

# Whether it is added, the key, the offset, a level and the offset that is asked for.
steps = st.tuples(st.booleans(), st.sampled_from([b"a", b"b"]), st.integers(0, 12), st.integers(0, 3), st.integers(0, 14))


@given(st.lists(steps, min_size=10, max_size=60))
def test_the_blocker_is_the_lowest_that_waits(taken: list[tuple[bool, bytes, int, int, int]]) -> None:
    table = BlockedKeys()
    model: dict[bytes, list[tuple[int, Place]]] = {}
    for number, (is_added, key, offset, level, asked) in enumerate(taken):
        waiting = model.setdefault(key, [])
        if is_added:
            place = Place(level, number)
            table.add(key, offset, place)
            waiting[:] = [(each, place if each == offset else old) for each, old in waiting]
            waiting.append((offset, place))
        else:
            known = [each for each in waiting if each[0] == offset]
            assert table.remove(key, offset) == bool(known)
            if known:
                waiting.remove(known[0])
        lower = sorted(each for each in waiting if each[0] < asked)
        assert table.blocker(key, asked) == (lower[0][1] if lower else None)
        assert table.has(key, asked) == any(each == asked for each, _ in waiting)
        assert len(table) == sum(map(len, model.values()))
