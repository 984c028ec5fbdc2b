"""The key map: the newest offset wins, its memory is bounded, its file is checked."""

import tracemalloc

import pytest

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.scheduler import Scheduler
from tidelog.log.compaction.key_map import BYTES_PER_KEY, KEY_MAP_FILE, KeyMap, read_key_map, remove_key_map
from tidelog.log.errors import CorruptIndex


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk(SimulatedClock(Scheduler()))
    disk.make_directory("/p")
    return disk


def filled(count: int) -> KeyMap:
    key_map = KeyMap(1 << 30)
    key_map.add_batch(1000, ((number, b"a key longer than its digest %d" % number, False) for number in range(count)))
    return key_map


def test_the_newest_offset_wins_and_null_keys_are_left_out() -> None:
    key_map = KeyMap(1 << 20)
    key_map.add_batch(10, [(0, b"a", False), (1, None, False), (5, b"a", True)])
    key_map.add_batch(20, [(0, b"b", False)])
    assert key_map.offsets == {b"a": 15, b"b": 20}


def test_room_is_counted_in_keys_and_a_first_batch_always_fits() -> None:
    key_map = KeyMap(3 * BYTES_PER_KEY)
    assert key_map.has_room_for(100)
    key_map.add_batch(0, [(0, b"a", False), (1, b"b", False)])
    assert key_map.has_room_for(1)
    assert not key_map.has_room_for(2)


@pytest.mark.parametrize("count", [0, 1, 100, 70_000])
def test_what_is_written_is_read(count: int) -> None:
    disk = new_disk()
    disk.open(f"/p/{KEY_MAP_FILE}", "create").write(0, [bytes(5_000_000)])
    key_map = filled(count)
    key_map.add_batch(5, [(0, b"", False), (1, b"\0", False), (2, b"\0\0", False), (3, b"x" * 15, False)])
    assert key_map.write(disk, "/p") == disk.file_size(f"/p/{KEY_MAP_FILE}")
    assert read_key_map(disk, "/p") == key_map.offsets
    assert len(key_map.offsets) == count + 4
    remove_key_map(disk, "/p")
    remove_key_map(disk, "/p")
    assert disk.list_directory("/p") == []


def test_a_damaged_file_is_refused() -> None:
    disk = new_disk()
    filled(10).write(disk, "/p")
    disk.flip_bit(f"/p/{KEY_MAP_FILE}", 100)
    with pytest.raises(CorruptIndex, match="CRC"):
        read_key_map(disk, "/p")
    disk.open(f"/p/{KEY_MAP_FILE}", "write").truncate(99)
    with pytest.raises(CorruptIndex, match="99 bytes"):
        read_key_map(disk, "/p")


def test_a_key_costs_no_more_memory_than_is_counted() -> None:
    # Just past a doubling of the dictionary, where the old and the new one are both in memory.
    tracemalloc.start()
    key_map = filled(175_000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes / len(key_map.offsets) <= BYTES_PER_KEY
