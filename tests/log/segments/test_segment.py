"""One segment: its indexes, its times, its files, and what is left after a failed write or a cut."""

import errno

import pytest

from simulation.disk import SimulatedDisk
from tests.log.disks import DIRECTORY, simulated_disk
from tests.log.harness import BATCH_BYTES, START_MS, batch
from tidelog.log.errors import CorruptLog
from tidelog.log.segments.file_handles import FileHandles
from tidelog.log.segments.indexes import IndexCache
from tidelog.log.segments.segment import RELATIVE_OFFSET_MAX, LogSegment, Segments
from tidelog.log.settings import LogSettings
from tidelog.ports.steps import run_to_end

BASE = 100
INTERVAL_BYTES = 250


class Bench:
    """A disk and what segments share on it."""

    def __init__(self) -> None:
        self.disk: SimulatedDisk = simulated_disk()
        self.handles = FileHandles(self.disk, 100)
        self.cache = IndexCache(1 << 20)

    def segment(self, size: int = 0, base_offset: int = BASE) -> LogSegment:
        return LogSegment(self.disk, self.handles, self.cache, DIRECTORY, base_offset, size, START_MS)

    def filled(self, stamps: list[int]) -> LogSegment:
        """One batch of BATCH_BYTES per timestamp."""
        segment = self.segment()
        segment.create_file()
        for number, stamp in enumerate(stamps):
            add(segment, BASE + number, stamp)
        return segment

    def reopened(self, segment: LogSegment) -> LogSegment:
        """The same files, met by a start that knows nothing but their size."""
        segment.write_indexes()
        self.cache = IndexCache(1 << 20)
        return self.segment(segment.size)


def add(segment: LogSegment, offset: int, stamp: int) -> None:
    data = batch(base_offset=offset, timestamps=[stamp], size=BATCH_BYTES, leader_epoch=4)
    position = segment.write([data[:16], data[16:]], len(data))
    segment.note_batch(position, len(data), offset, stamp, INTERVAL_BYTES)


def test_files_are_named_by_the_base_offset() -> None:
    bench = Bench()
    segment = bench.filled([1, 2, 3, 4, 5])
    segment.close_for_appends()
    assert bench.disk.list_directory(DIRECTORY) == [f"{BASE:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]


def test_index_entries_come_at_their_interval_and_lead_to_their_batch() -> None:
    segment = Bench().filled([START_MS] * 10)
    assert list(segment.offset_index.entries()) == [(103, 300), (106, 600), (109, 900)]
    for offset in range(BASE, BASE + 10):
        found = segment.find_batch(offset)
        assert found is not None
        assert (found[0], found[1].base_offset) == ((offset - BASE) * BATCH_BYTES, offset)
    assert segment.find_batch(BASE + 10) is None
    first = segment.find_batch(0)
    assert first is not None
    assert first[0] == 0


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize(
    ("stamps", "newest", "offset"),
    [
        ([5, 9, 7], 9, 101),
        ([9, 9, 7, 1, 1, 1, 1, 1], 9, 100),
        (list(range(1, 12)), 11, 110),
        ([1, 1, 1, 1, 1, 1, 50, 2, 2], 50, 106),
        ([-1, -1], -1, 100),
    ],
)
def test_the_newest_timestamp_is_known_and_where(reopen: bool, stamps: list[int], newest: int, offset: int) -> None:
    bench = Bench()
    segment = bench.filled(stamps)
    if reopen:
        segment = bench.reopened(segment)
    assert (segment.max_timestamp, segment.max_timestamp_offset) == (newest, offset)


def test_a_failed_read_does_not_make_the_newest_timestamp_older() -> None:
    bench = Bench()
    segment = bench.reopened(bench.filled([5, 9, 7]))
    bench.disk.faults.fail("read", lambda path: path == segment.path, errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        _ = segment.max_timestamp
    assert (segment.max_timestamp, segment.max_timestamp_offset) == (9, 101)


def test_a_closed_segments_age_is_known_by_its_index_alone() -> None:
    bench = Bench()
    segment = bench.filled([3, 2, 9, 1])
    segment.close_for_appends()
    assert segment.time_index.last_entry == (9, 102)


def test_appending_goes_on_after_a_reopening() -> None:
    bench = Bench()
    segment = bench.reopened(bench.filled([10, 20, 30, 5]))
    assert segment.next_offset() == BASE + 4
    for number in range(4, 10):
        add(segment, BASE + number, number)
    assert segment.max_timestamp == 30
    for offset in range(BASE, BASE + 10):
        found = segment.find_batch(offset)
        assert found is not None
        assert found[1].base_offset == offset


@pytest.mark.parametrize("room", [0, 1, 99])
def test_a_failed_write_moves_nothing_and_is_cut_off(room: int) -> None:
    bench = Bench()
    segment = bench.filled([1, 2])
    bench.disk.set_free_bytes(room)
    with pytest.raises(OSError, match="No space left"):
        segment.write([batch(size=BATCH_BYTES)], BATCH_BYTES)
    assert segment.size == 200
    segment.cut()
    assert bench.disk.file_size(segment.path) == 200


def test_an_unsynced_file_is_not_let_go() -> None:
    """The kernel reports a lost write only through a descriptor that was open when it was lost."""
    bench = Bench()
    bench.handles = FileHandles(bench.disk, 1)
    segment = bench.filled([1])
    held = segment.dirty_file
    assert held is not None
    bench.handles.create(f"{DIRECTORY}/another")
    add(segment, BASE + 1, 2)
    assert segment.file() is held


def test_truncation_takes_the_indexes_along() -> None:
    bench = Bench()
    segment = bench.filled([10, 20, 30, 40, 50, 60, 70, 80, 90])
    segment.truncate_to(400, BASE + 4)
    assert (segment.size, bench.disk.file_size(segment.path)) == (400, 400)
    assert (segment.max_timestamp, segment.max_timestamp_offset) == (40, 103)
    assert [offset for offset, _ in segment.offset_index.entries()] == [103]
    assert segment.find_batch(BASE + 4) is None
    segment.truncate_to(0, BASE)
    assert (segment.max_timestamp, segment.next_offset()) == (-1, BASE)
    add(segment, BASE, 7)
    assert segment.max_timestamp == 7


def test_a_segment_is_renamed_and_removed_with_all_its_files() -> None:
    bench = Bench()
    segment = bench.filled([1, 2, 3, 4, 5])
    segment.close_for_appends()
    names = bench.disk.list_directory(DIRECTORY)
    segment.rename(".deleted")
    assert bench.disk.list_directory(DIRECTORY) == [f"{name}.deleted" for name in names]
    assert segment.find_batch(BASE + 2) is not None
    segment.rename("")
    assert bench.disk.list_directory(DIRECTORY) == names
    segment.remove()
    assert bench.disk.list_directory(DIRECTORY) == []


def test_damage_met_by_a_read_names_the_byte() -> None:
    bench = Bench()
    segment = bench.filled([1, 2, 3])
    bench.disk.flip_bit(segment.path, 116, 4)
    with pytest.raises(CorruptLog) as caught:
        segment.find_batch(BASE + 2)
    assert (caught.value.path, caught.value.position) == (segment.path, 100)


def test_a_file_that_became_shorter_is_corrupt_not_empty() -> None:
    bench = Bench()
    segment = bench.filled([1, 2, 3])
    bench.disk.open(segment.path, "write").truncate(150)
    with pytest.raises(CorruptLog):
        run_to_end(segment.find_timestamp(3, BASE))


def should_roll(segment: LogSegment, settings: LogSettings, **changed: int) -> bool:
    measures = {"jitter_ms": 0, "size": 100, "last_offset": BASE + 10, "timestamp": START_MS, "now_ms": START_MS} | changed
    return segment.should_roll(settings, **measures)


def test_when_a_segment_is_full() -> None:
    segment = Bench().filled([START_MS] * 5)
    assert not should_roll(segment, LogSettings(segment_bytes=600))
    assert should_roll(segment, LogSettings(segment_bytes=599))
    assert not should_roll(segment, LogSettings(segment_ms=1000), timestamp=START_MS + 1000)
    assert should_roll(segment, LogSettings(segment_ms=1000), timestamp=START_MS + 1001)
    assert should_roll(segment, LogSettings(segment_ms=1000), timestamp=START_MS + 901, jitter_ms=100)
    assert not should_roll(segment, LogSettings(), last_offset=BASE + RELATIVE_OFFSET_MAX)
    assert should_roll(segment, LogSettings(), last_offset=BASE + RELATIVE_OFFSET_MAX + 1)


def test_an_empty_segment_takes_anything_that_its_offsets_can_reach() -> None:
    segment = Bench().filled([])
    assert not should_roll(segment, LogSettings(segment_bytes=10, segment_ms=1), size=10**6, timestamp=START_MS + 10**9)
    assert should_roll(segment, LogSettings(), last_offset=BASE + RELATIVE_OFFSET_MAX + 1)


def test_a_late_record_does_not_roll() -> None:
    segment = Bench().filled([START_MS])
    assert not should_roll(segment, LogSettings(segment_ms=1000), timestamp=START_MS - 10**9)


def test_indexes_that_found_no_room_stay_whole_in_memory() -> None:
    bench = Bench()
    segment = bench.filled([1, 2, 3, 4, 5, 6, 7, 8])
    entries = list(segment.offset_index.entries())
    rule = bench.disk.faults.fail("write", lambda path: path.endswith("index"), errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        segment.close_for_appends()
    assert list(segment.offset_index.entries()) == entries
    bench.disk.faults.lift(rule)
    segment.write_indexes()
    assert list(bench.reopened(segment).offset_index.entries()) == entries


# The segments of a log in order: lookups by bisection, neighbours replaced together.


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
