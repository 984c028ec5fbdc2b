"""The segments of a log in order: lookups by bisection, neighbours replaced together."""

import pytest

from tests.log.disks import DIRECTORY, simulated_disk
from tidelog.log.file_handles import FileHandles
from tidelog.log.index_cache import IndexCache
from tidelog.log.segment import LogSegment
from tidelog.log.segments import Segments

DISK = simulated_disk()
HANDLES = FileHandles(DISK, 10)
CACHE = IndexCache(1000)


def segment(base_offset: int) -> LogSegment:
    return LogSegment(DISK, HANDLES, CACHE, DIRECTORY, base_offset, 0, 0)


def segments(*base_offsets: int) -> Segments:
    return Segments([segment(base_offset) for base_offset in base_offsets])


def bases(found: list[LogSegment] | Segments) -> list[int]:
    return [one.base_offset for one in found]


def test_active_and_closed() -> None:
    found = segments(5, 10, 20)
    assert (found.active.base_offset, bases(found.closed), len(found)) == (20, [5, 10], 3)


@pytest.mark.parametrize(("offset", "index"), [(0, 0), (4, 0), (5, 0), (9, 0), (10, 1), (19, 1), (20, 2), (10**15, 2)])
def test_the_segment_that_may_hold_an_offset(offset: int, index: int) -> None:
    found = segments(5, 10, 20)
    assert found.floor_index(offset) == index
    assert bases(found.from_offset(offset)) == [5, 10, 20][index:]


def test_what_comes_after() -> None:
    found = segments(5, 10, 20)
    assert [found.base_offset_after(one) for one in found] == [10, 20, None]


def test_append_and_drop() -> None:
    found = segments(5)
    found.append(segment(8))
    found.append(segment(9))
    found.drop_first(2)
    assert bases(found) == [9]
    assert found.floor_index(9) == 0


def test_neighbours_are_replaced_by_fewer() -> None:
    found = segments(0, 10, 20, 30)
    old = [found[1], found[2]]
    found.replace(old, [segment(10)])
    assert bases(found) == [0, 10, 30]
    assert [found.floor_index(offset) for offset in (5, 15, 25, 35)] == [0, 1, 1, 2]


def test_disorder_is_a_programmers_error() -> None:
    with pytest.raises(AssertionError):
        segments(5, 5)
    found = segments(0, 10, 20)
    with pytest.raises(AssertionError):
        found.append(segment(20))
    with pytest.raises(AssertionError):
        found.replace([found[0], found[2]], [segment(0)])
