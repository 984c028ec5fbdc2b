"""The groups that a cleaning makes: neighbours that fit into one segment."""

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.scheduler import Scheduler
from tidelog.log import names
from tidelog.log.compaction.map_keys import GROUP_SEGMENTS_MAX, map_keys
from tidelog.log.compaction.tasks import MapKeysArguments, MapKeysResult, from_json, to_json
from tidelog.records.batch import build_batch
from tidelog.records.record import Record

SEGMENT_BYTES = len(build_batch([Record(0, 1, b"k", b"v")]))


def groups(
    base_offsets: list[int], upper_offset: int, empty: int = -1, segments: int = 10, entries: int = 1, index_bytes: int = 120
) -> list[list[int]]:
    """For segments of one record and ``entries`` index entries, where ``segments`` of them and ten entries fit into one."""
    clock = SimulatedClock(Scheduler())
    disk = SimulatedDisk(clock)
    disk.make_directory("/p")
    for base_offset in base_offsets:
        batch = build_batch([Record(base_offset, 1, b"k", b"v")], base_offset=base_offset) if base_offset != empty else b""
        disk.open(names.segment_path("/p", base_offset, names.LOG_SUFFIX), "create").write(0, [batch])
        disk.open(names.segment_path("/p", base_offset, names.INDEX_SUFFIX), "create").write(0, [bytes(8 * entries)])
        disk.open(names.segment_path("/p", base_offset, names.TIME_INDEX_SUFFIX), "create").write(0, [bytes(12)])
    arguments = MapKeysArguments("/p", base_offsets, 0, upper_offset, [], 1 << 20, segments * SEGMENT_BYTES, index_bytes)
    return from_json(MapKeysResult, map_keys(disk, clock, to_json(arguments))).groups


def test_groups_by_size() -> None:
    assert groups([0, 1, 2, 3, 4], 5) == [[0, 1, 2, 3, 4]]
    assert groups([0, 1, 2, 3, 4], 5, segments=2) == [[0, 1], [2, 3], [4]]
    assert groups([0, 1, 2], 3, segments=0) == [[0], [1], [2]]


def test_groups_by_the_size_of_their_indexes() -> None:
    assert groups([0, 1, 2, 3], 4, entries=5) == [[0, 1, 2], [3]]


def test_a_group_has_so_many_segments_at_most() -> None:
    count = GROUP_SEGMENTS_MAX + 2
    found = groups(list(range(count)), count, segments=count, index_bytes=12 * count)
    assert [len(group) for group in found] == [GROUP_SEGMENTS_MAX, 2]


def test_offsets_of_a_group_fit_into_its_indexes() -> None:
    limit = 2**31
    assert groups([0, 1, 2], limit) == [[0, 1, 2]]
    assert groups([0, 1, 2], limit + 1) == [[0, 1], [2]]


def test_an_empty_segment_is_in_no_group() -> None:
    assert groups([0, 1, 2, 3], 4, empty=2) == [[0, 1], [3]]
