"""The order of keys: a message waits exactly while an earlier one of its key does, and leaves in the order of the source."""

from hypothesis import given
from hypothesis import strategies as st

from tests.worker.fakes import work_item
from tidelog.worker.dispatch import Lane
from tidelog.worker.failures import ScheduledRetry
from tidelog.worker.key_order import BlockedKeys, ParkedMessages

# Whether it is added, the key, the offset, a level and the offset that is asked for.
steps = st.tuples(st.booleans(), st.sampled_from([b"a", b"b"]), st.integers(0, 12), st.integers(0, 3), st.integers(0, 14))


@given(st.lists(steps, min_size=10, max_size=60))
def test_the_blocker_is_the_lowest_that_waits(taken: list[tuple[bool, bytes, int, int, int]]) -> None:
    table = BlockedKeys()
    model: dict[bytes, list[tuple[int, ScheduledRetry]]] = {}
    for number, (is_added, key, offset, level, asked) in enumerate(taken):
        waiting = model.setdefault(key, [])
        if is_added:
            retry = ScheduledRetry(level, number)
            table.add(key, offset, retry)
            waiting[:] = [(each, retry if each == offset else old) for each, old in waiting]
            waiting.append((offset, retry))
        else:
            known = [each for each in waiting if each[0] == offset]
            assert table.remove(key, offset) == bool(known)
            if known:
                waiting.remove(known[0])
        lower = sorted(each for each in waiting if each[0] < asked)
        assert table.blocker(key, asked) == (lower[0][1] if lower else None)
        assert table.has(key, asked) == any(each == asked for each, _ in waiting)
        assert len(table) == sum(map(len, model.values()))


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 20))), st.integers(0, 20) | st.none())
def test_parked_messages_leave_in_the_order_of_the_source(arrivals: list[tuple[bytes, int]], up_to: int | None) -> None:
    parking = ParkedMessages()
    for key, offset in arrivals:
        parking.add(key, work_item(Lane(), offset, key=key))
    mine = sorted(offset for key, offset in arrivals if key == b"a")
    assert [parking.has(b"a", offset) for offset in range(22)] == [offset in mine for offset in range(22)]
    taken = [each.source_offset for each in parking.take(b"a", up_to)]
    assert taken == [offset for offset in mine if up_to is None or offset <= up_to]
    assert len(parking) == len(arrivals) - len(taken)
    assert [each.source_offset for each in parking.take(b"a", None)] == mine[len(taken) :]
