"""Parking: by key, in the order of the source, taken up to an offset."""

from hypothesis import given
from hypothesis import strategies as st

from tests.worker.fakes import job
from tidelog.worker.job import Lane
from tidelog.worker.parking import Parking


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 20))), st.integers(0, 20) | st.none())
def test_jobs_leave_in_the_order_of_the_source(arrivals: list[tuple[bytes, int]], up_to: int | None) -> None:
    parking = Parking()
    for key, offset in arrivals:
        parking.add(key, job(Lane(), offset, key=key))
    mine = sorted(offset for key, offset in arrivals if key == b"a")
    assert [parking.has(b"a", offset) for offset in range(22)] == [offset in mine for offset in range(22)]
    taken = [each.origin for each in parking.take(b"a", up_to)]
    assert taken == [offset for offset in mine if up_to is None or offset <= up_to]
    assert len(parking) == len(arrivals) - len(taken)
    assert [each.origin for each in parking.take(b"a", None)] == mine[len(taken) :]
