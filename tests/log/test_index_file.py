"""What all indexes share: the tail, the file, Kafka's zeros, a full disk."""

import errno
from pathlib import Path

import pytest

from tests.log.disks import DIRECTORY, bytes_each, read_file, simulated_disk, write_file
from tidelog.log.errors import CorruptIndex
from tidelog.log.index_cache import IndexCache
from tidelog.log.index_file import SPILL_BYTES
from tidelog.log.offset_index import OffsetIndex
from tidelog.log.time_index import TimeIndex
from tidelog.log.transaction_index import AbortedTransaction, TransactionIndex
from tidelog.ports.disk import Disk
from tidelog.ports.real_disk import RealDisk

PATH = f"{DIRECTORY}/00000000000000000100.index"
SPILL_ENTRIES = SPILL_BYTES // 8


def offset_index(disk: Disk, cache: IndexCache | None = None, path: str = PATH) -> OffsetIndex:
    return OffsetIndex(disk, IndexCache(1 << 20) if cache is None else cache, path, 100)


def fill(index: OffsetIndex, count: int) -> list[tuple[int, int]]:
    entries = [(101 + 10 * number, 1000 * (number + 1)) for number in range(count)]
    for entry in entries:
        index.append(*entry)
    return entries


def test_an_index_without_entries_has_no_file_until_it_is_closed() -> None:
    disk = simulated_disk()
    index = offset_index(disk)
    assert index.lookup(500) == (100, 0)
    assert not disk.exists(PATH)
    index.write_tail()
    index.sync()
    assert read_file(disk, PATH) == b""


def test_the_tail_goes_to_the_file_when_it_passes_a_page() -> None:
    disk = simulated_disk()
    index = offset_index(disk)
    fill(index, SPILL_ENTRIES - 1)
    assert not disk.exists(PATH)
    index.append(100_000, 10_000_000)
    assert disk.file_size(PATH) == SPILL_BYTES


def test_other_indexes_spill_whole_entries_too() -> None:
    disk = simulated_disk()
    time_index = TimeIndex(disk, IndexCache(0), f"{DIRECTORY}/x.timeindex", 0)
    transaction_index = TransactionIndex(disk, IndexCache(0), f"{DIRECTORY}/x.txnindex", 0)
    for number in range(1, 1001):
        time_index.maybe_append(number, number)
        transaction_index.append(AbortedTransaction(1, number, number, number))
    assert disk.file_size(f"{DIRECTORY}/x.timeindex") == 1000 // 341 * 341 * 12
    assert disk.file_size(f"{DIRECTORY}/x.txnindex") == 1000 // 121 * 121 * 34


def test_what_was_written_is_durable_after_sync() -> None:
    disk = simulated_disk()
    index = offset_index(disk)
    entries = fill(index, 700)
    index.write_tail()
    index.sync()
    disk.sync_directory(DIRECTORY)
    after = offset_index(disk.crash_image(keep="none"))
    assert after.load()
    assert list(after.entries()) == entries
    assert (after.entry_count, after.last_offset, after.last_position) == (700, *entries[-1])


def test_loading_reads_only_the_end_of_the_file() -> None:
    disk = simulated_disk()
    cache = IndexCache(1 << 20)
    entries = fill(writer := offset_index(disk), 700)
    writer.write_tail()
    index = offset_index(disk, cache)
    assert index.load()
    assert (index.entry_count, index.last_offset, index.last_position) == (700, *entries[-1])
    assert cache.bytes_held == 0
    assert index.lookup(entries[3][0]) == entries[3]
    assert cache.bytes_held == 700 * 8


def test_loading_without_a_file_gives_an_empty_index() -> None:
    index = offset_index(simulated_disk())
    fill(index, 3)
    assert not index.load()
    assert (index.entry_count, index.last_offset, index.last_position, list(index.entries())) == (0, 100, 0, [])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 62, 127, 128])
def test_zeros_that_kafka_preallocated_are_no_entries(tmp_path: Path, count: int) -> None:
    path = str(tmp_path / "x.index")
    disk = RealDisk()
    entries = fill(writer := offset_index(disk, path=path), count)
    writer.write_tail()
    disk.open(path, "write").truncate(1024)
    index = offset_index(disk, path=path)
    index.load()
    index.check()
    assert list(index.entries()) == entries
    index.append(5000, 500_000)
    index.write_tail()
    assert disk.file_size(path) == 8 * (count + 1)
    assert index.lookup(9999) == (5000, 500_000)


def test_zeros_after_entries_of_a_time_index() -> None:
    disk = simulated_disk()
    path = f"{DIRECTORY}/x.timeindex"
    writer = TimeIndex(disk, IndexCache(0), path, 100)
    writer.maybe_append(0, 100)
    writer.maybe_append(7, 130)
    writer.write_tail()
    disk.open(path, "write").truncate(1020)
    index = TimeIndex(disk, IndexCache(0), path, 100)
    index.load()
    assert list(index.entries()) == [(0, 100), (7, 130)]


def test_part_of_an_entry_at_the_end_is_left_out_and_reported() -> None:
    disk = simulated_disk()
    entries = fill(writer := offset_index(disk), 5)
    writer.write_tail()
    disk.open(PATH, "write").truncate(37)
    index = offset_index(disk)
    index.load()
    assert list(index.entries()) == entries[:4]
    with pytest.raises(CorruptIndex, match="37 bytes, which is no multiple of 8"):
        index.check()


def test_a_file_that_shrank_behind_our_back_is_reported() -> None:
    disk = simulated_disk()
    fill(index := offset_index(disk), 700)
    index.write_tail()
    disk.open(PATH, "write").truncate(80)
    with pytest.raises(CorruptIndex, match="80 bytes where 5600 were written"):
        index.lookup(200)


def test_a_full_disk_does_not_fail_an_append_but_does_fail_closing() -> None:
    disk = simulated_disk()
    index = offset_index(disk)
    disk.set_free_bytes(0)
    entries = fill(index, SPILL_ENTRIES + 5)
    assert index.lookup(entries[2][0] + 1) == entries[2]
    with pytest.raises(OSError, match="No space left") as caught:
        index.write_tail()
    assert caught.value.errno == errno.ENOSPC
    assert list(index.entries()) == entries
    disk.set_free_bytes(1 << 20)
    index.write_tail()
    assert disk.file_size(PATH) == 8 * len(entries)
    assert index.lookup(entries[2][0] + 1) == entries[2]


def test_lookups_see_what_was_spilled_after_the_file_was_cached() -> None:
    disk = simulated_disk()
    index = offset_index(disk)
    entries = fill(index, SPILL_ENTRIES)
    assert index.lookup(entries[1][0]) == entries[1]
    for number in range(SPILL_ENTRIES):
        index.append(50_000 + number, 5_000_000 + number)
    assert index.lookup(50_007) == (50_007, 5_000_007)
    assert index.entry_count == 2 * SPILL_ENTRIES


def test_renaming_takes_the_file_and_the_tail_along() -> None:
    disk = simulated_disk()
    index = offset_index(disk)
    entries = fill(index, SPILL_ENTRIES + 3)
    index.lookup(entries[0][0])
    index.rename(PATH + ".swap")
    assert not disk.exists(PATH)
    assert list(index.entries()) == entries
    index.write_tail()
    assert disk.file_size(PATH + ".swap") == 8 * len(entries)


def test_renaming_over_a_file_that_was_cached_forgets_its_content() -> None:
    disk = simulated_disk()
    cache = IndexCache(1 << 20)
    old = offset_index(disk, cache)
    entries = fill(old, SPILL_ENTRIES)
    old.lookup(entries[0][0])
    cleaned = offset_index(disk, cache, PATH + ".cleaned")
    cleaned.append(107, 9)
    cleaned.append(109, 10)
    cleaned.write_tail()
    cleaned.rename(PATH)
    assert cleaned.lookup(108) == (107, 9)


def test_an_index_follows_its_directory() -> None:
    disk = simulated_disk()
    index = offset_index(disk)
    entries = fill(index, SPILL_ENTRIES)
    disk.rename(DIRECTORY, "/doomed")
    index.relocate("/doomed/00000000000000000100.index")
    assert index.lookup(entries[5][0]) == entries[5]


def test_removing_and_resetting_leave_an_empty_index() -> None:
    disk = simulated_disk()
    for empty in (OffsetIndex.remove, OffsetIndex.reset):
        index = offset_index(disk)
        entries = fill(index, SPILL_ENTRIES + 1)
        index.lookup(entries[0][0])
        empty(index)
        assert (index.entry_count, index.lookup(10**6), list(index.entries())) == (0, (100, 0), [])
        assert disk.exists(PATH) == (empty is OffsetIndex.reset)
        index.append(105, 55)
        index.write_tail()
        assert disk.file_size(PATH) == 8
        index.remove()
        index.remove()


def test_a_transaction_index_has_a_file_only_when_it_has_entries() -> None:
    disk = simulated_disk()
    path = f"{DIRECTORY}/x.txnindex"
    index = TransactionIndex(disk, IndexCache(0), path, 100)
    index.write_tail()
    index.sync()
    assert not disk.exists(path)
    index.append(AbortedTransaction(1, 100, 110, 111))
    index.write_tail()
    index.sync()
    assert disk.file_size(path) == 34


def test_a_damaged_entry_is_reported_with_its_number() -> None:
    disk = simulated_disk()
    entries = fill(writer := offset_index(disk), 20)
    writer.write_tail()
    damaged = bytearray(read_file(disk, PATH))
    damaged[8 * 7 : 8 * 7 + 4] = bytes(4)
    write_file(disk, PATH, bytes(damaged))
    index = offset_index(disk)
    index.load()
    with pytest.raises(CorruptIndex, match=rf"entry 7 \(offset 100, position 8000\) .* entry 6 \(offset {entries[6][0]}"):
        index.check()


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex, TransactionIndex])
def test_an_idle_index_costs_next_to_nothing(kind: type[OffsetIndex | TimeIndex | TransactionIndex]) -> None:
    disk, cache = simulated_disk(), IndexCache(1 << 20)
    assert bytes_each(lambda number: kind(disk, cache, f"/data/orders-{number}/00000000000000000000.timeindex", 0)) < 300
