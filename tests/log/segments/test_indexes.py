"""Tests what all indexes share: the tail, the file, Kafka's zeros, a full disk."""

import errno
from bisect import bisect_left, bisect_right
from pathlib import Path
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.log.disks import DIRECTORY, read_file, simulated_disk, write_file
from tests.memory_size import bytes_each
from tidelog.log.errors import CorruptIndex
from tidelog.log.segments import indexes
from tidelog.log.segments.indexes import (
    NO_TIMESTAMP,
    SPILL_BYTES,
    AbortedTransaction,
    IndexCache,
    OffsetIndex,
    TimeIndex,
    TimeIndexEntry,
    TransactionIndex,
)
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
    with pytest.raises(CorruptIndex, match="37 bytes, which is not a multiple of 8"):
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


# The cache forgets what was unused for longest, and never holds more than it may.


def test_forgets_what_was_unused_for_longest() -> None:
    cache = IndexCache(30)
    for path in ("a", "b", "c"):
        cache.put(path, bytearray(10))
    assert cache.get("a") is not None
    cache.put("d", bytearray(10))
    assert cache.get("b") is None
    assert [path for path in "acd" if cache.get(path) is not None] == ["a", "c", "d"]


def test_appending_to_what_is_held_can_push_out_others_and_itself() -> None:
    cache = IndexCache(10)
    cache.put("a", bytearray(4))
    cache.put("b", bytearray(4))
    cache.extend("b", b"xy")
    assert (cache.get("b"), cache.bytes_held) == (bytearray(b"\0\0\0\0xy"), 10)
    cache.extend("b", b"z")
    assert (cache.get("a"), cache.bytes_held) == (None, 7)
    cache.extend("b", bytes(4))
    assert (cache.get("b"), cache.bytes_held) == (None, 0)


def test_appending_to_what_is_not_held_does_not_hold_it() -> None:
    cache = IndexCache(10)
    cache.extend("a", b"xy")
    assert cache.get("a") is None


def test_content_larger_than_the_cache_pushes_nothing_out() -> None:
    cache = IndexCache(10)
    cache.put("a", bytearray(10))
    cache.put("b", bytearray(11))
    assert cache.get("a") is not None
    assert cache.get("b") is None


operations = st.lists(
    st.tuples(st.sampled_from(["put", "get", "extend", "discard"]), st.sampled_from("abcd"), st.integers(0, 12))
)


@given(operations)
def test_bytes_held_are_counted_and_bounded(steps: list[tuple[str, str, int]]) -> None:
    cache = IndexCache(20)
    contents: dict[str, bytes] = {}
    for operation, path, length in steps:
        if operation == "put":
            contents[path] = b"p" * length
            cache.put(path, bytearray(contents[path]))
        elif operation == "extend":
            contents[path] = contents.get(path, b"") + b"e" * length
            cache.extend(path, b"e" * length)
        elif operation == "discard":
            contents.pop(path, None)
            cache.discard(path)
        held = {name: content for name in "abcd" if (content := cache.get(name)) is not None}
        assert cache.bytes_held == sum(map(len, held.values())) <= 20
        assert all(contents[name] == content for name, content in held.items())


# The offset index against a plain list.


BASE_OFFSET = 5_000_000_000
OFFSET_INDEX_PATH = f"{DIRECTORY}/00000000005000000000.index"


def new_offset_index() -> OffsetIndex:
    return OffsetIndex(simulated_disk(), IndexCache(1 << 20), OFFSET_INDEX_PATH, BASE_OFFSET)


def test_bytes_are_kafkas() -> None:
    disk = simulated_disk()
    index = OffsetIndex(disk, IndexCache(1 << 20), OFFSET_INDEX_PATH, BASE_OFFSET)
    index.append(BASE_OFFSET + 0x01020304, 0x0A0B0C0D)
    index.append(BASE_OFFSET + 2**31 - 1, 2**31 - 1)
    index.write_tail()
    assert read_file(disk, OFFSET_INDEX_PATH) == bytes.fromhex("01020304 0a0b0c0d 7fffffff 7fffffff")


def test_kafkas_bytes_are_read() -> None:
    disk = simulated_disk()
    write_file(disk, OFFSET_INDEX_PATH, bytes.fromhex("00000009 000000af 0000000e 0000018e 00000018 0000030a"))
    index = OffsetIndex(disk, IndexCache(1 << 20), OFFSET_INDEX_PATH, BASE_OFFSET)
    index.load()
    index.check()
    assert list(index.entries()) == [(BASE_OFFSET + 9, 175), (BASE_OFFSET + 14, 398), (BASE_OFFSET + 24, 778)]
    assert index.lookup(BASE_OFFSET + 23) == (BASE_OFFSET + 14, 398)


def test_an_entry_for_the_base_offset_itself_may_come_first() -> None:
    index = new_offset_index()
    index.append(BASE_OFFSET, 0)
    index.append(BASE_OFFSET + 5, 70)
    assert index.lookup(BASE_OFFSET + 4) == (BASE_OFFSET, 0)
    assert index.entry_count == 2


def test_entries_out_of_order_are_a_programmers_error() -> None:
    index = new_offset_index()
    index.append(BASE_OFFSET + 5, 70)
    with pytest.raises(AssertionError):
        index.append(BASE_OFFSET + 5, 80)


@pytest.mark.parametrize("content", ["00000005 00000010 00000005 00000020", "00000005 00000010 00000006 00000010"])
def test_check_finds_offsets_that_do_not_rise(content: str) -> None:
    disk = simulated_disk()
    write_file(disk, OFFSET_INDEX_PATH, bytes.fromhex(content))
    index = OffsetIndex(disk, IndexCache(1 << 20), OFFSET_INDEX_PATH, BASE_OFFSET)
    index.load()
    with pytest.raises(CorruptIndex, match="entry 1"):
        index.check()


class OffsetIndexMachine(RuleBasedStateMachine):
    """Every operation on the index, in any order, does what the same operation does to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = simulated_disk()
        self.cache = IndexCache(20_000)
        self.index = OffsetIndex(self.disk, self.cache, OFFSET_INDEX_PATH, BASE_OFFSET)
        self.entries: list[tuple[int, int]] = []

    @rule(count=st.sampled_from([1, 2, 3, 511, 512, 700]), step=st.integers(1, 1000))
    def append(self, count: int, step: int) -> None:
        offset, position = self.entries[-1] if self.entries else (BASE_OFFSET, 0)
        for number in range(1, count + 1):
            entry = offset + number * step, position + number * 4096
            self.index.append(*entry)
            self.entries.append(entry)

    def draw_offset(self, data: st.DataObject) -> int:
        near = st.integers(-2, 2)
        if self.entries:
            return data.draw(st.sampled_from(self.entries))[0] + data.draw(near)
        return BASE_OFFSET + data.draw(near)

    @rule(data=st.data())
    def lookup(self, data: st.DataObject) -> None:
        offset = self.draw_offset(data)
        count = bisect_right(self.entries, (offset, 2**63))
        assert self.index.lookup(offset) == (self.entries[count - 1] if count else (BASE_OFFSET, 0))

    @rule(data=st.data())
    def first_offset_at(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(self.entries))[1] + data.draw(st.integers(-1, 1)) if self.entries else 0
        expected = next((offset for offset, at in self.entries if at >= position), None)
        assert self.index.first_offset_at(position) == expected

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = self.draw_offset(data)
        self.index.truncate_to(offset)
        del self.entries[bisect_left(self.entries, (offset, -1)) :]

    @rule()
    def write_tail(self) -> None:
        self.index.write_tail()
        assert self.disk.file_size(OFFSET_INDEX_PATH) == 8 * len(self.entries)

    @rule()
    def reopen(self) -> None:
        self.index.write_tail()
        self.index = OffsetIndex(self.disk, self.cache, OFFSET_INDEX_PATH, BASE_OFFSET)
        assert self.index.load()

    @rule()
    def forget_cached(self) -> None:
        self.cache.discard(OFFSET_INDEX_PATH)

    @rule()
    def reset(self) -> None:
        self.index.reset()
        self.entries = []

    @invariant()
    def same_end(self) -> None:
        last = self.entries[-1] if self.entries else (BASE_OFFSET, 0)
        assert (self.index.entry_count, self.index.last_offset, self.index.last_position) == (len(self.entries), *last)

    def teardown(self) -> None:
        assert list(self.index.entries()) == self.entries
        self.index.check()


TestOffsetIndexAgainstAList = OffsetIndexMachine.TestCase
TestOffsetIndexAgainstAList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# The time index against a plain list.


TIME_INDEX_PATH = f"{DIRECTORY}/00000000005000000000.timeindex"


def new_time_index() -> TimeIndex:
    return TimeIndex(simulated_disk(), IndexCache(1 << 20), TIME_INDEX_PATH, BASE_OFFSET)


def test_bytes_are_kafkas_both_ways() -> None:
    disk = simulated_disk()
    index = TimeIndex(disk, IndexCache(1 << 20), TIME_INDEX_PATH, BASE_OFFSET)
    index.maybe_append(0x0000018D_01020304, BASE_OFFSET + 7)
    index.maybe_append(2**62, BASE_OFFSET + 2**31 - 1)
    index.write_tail()
    content = bytes.fromhex("0000018d01020304 00000007 4000000000000000 7fffffff")
    assert read_file(disk, TIME_INDEX_PATH) == content
    again = TimeIndex(disk, IndexCache(1 << 20), TIME_INDEX_PATH, BASE_OFFSET)
    again.load()
    assert list(again.entries()) == [(0x0000018D_01020304, BASE_OFFSET + 7), (2**62, BASE_OFFSET + 2**31 - 1)]
    assert again.last_entry == TimeIndexEntry(2**62, BASE_OFFSET + 2**31 - 1)


def test_only_a_later_timestamp_is_entered() -> None:
    index = new_time_index()
    index.maybe_append(NO_TIMESTAMP, BASE_OFFSET)
    assert index.entry_count == 0
    index.maybe_append(50, BASE_OFFSET + 3)
    index.maybe_append(50, BASE_OFFSET + 4)
    index.maybe_append(49, BASE_OFFSET + 5)
    assert list(index.entries()) == [(50, BASE_OFFSET + 3)]


def test_an_empty_index_answers_with_its_base() -> None:
    index = new_time_index()
    assert index.lookup(10**15) == TimeIndexEntry(NO_TIMESTAMP, BASE_OFFSET)
    assert index.last_entry == TimeIndexEntry(NO_TIMESTAMP, BASE_OFFSET)


@pytest.mark.parametrize(
    "content", ["0000000000000005 00000001 0000000000000005 00000002", "0000000000000005 00000002 0000000000000006 00000001"]
)
def test_check_finds_times_that_do_not_rise(content: str) -> None:
    disk = simulated_disk()
    write_file(disk, TIME_INDEX_PATH, bytes.fromhex(content))
    index = TimeIndex(disk, IndexCache(1 << 20), TIME_INDEX_PATH, BASE_OFFSET)
    index.load()
    with pytest.raises(CorruptIndex, match="entry 1"):
        index.check()


class TimeIndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = simulated_disk()
        self.cache = IndexCache(20_000)
        self.index = TimeIndex(self.disk, self.cache, TIME_INDEX_PATH, BASE_OFFSET)
        self.entries: list[tuple[int, int]] = []

    @rule(count=st.sampled_from([1, 2, 3, 340, 341, 500]), time_step=st.integers(-3, 5), offset_step=st.integers(0, 3))
    def append(self, count: int, time_step: int, offset_step: int) -> None:
        timestamp, offset = self.entries[-1] if self.entries else (1000, BASE_OFFSET)
        for number in range(1, count + 1):
            entry = timestamp + number * time_step, offset + number * offset_step
            self.index.maybe_append(*entry)
            if entry[0] > (self.entries[-1][0] if self.entries else NO_TIMESTAMP):
                self.entries.append(entry)

    @rule(data=st.data())
    def lookup(self, data: st.DataObject) -> None:
        near = data.draw(st.sampled_from(self.entries))[0] if self.entries else 1000
        timestamp = near + data.draw(st.integers(-2, 2))
        expected = [entry for entry in self.entries if entry[0] <= timestamp]
        assert self.index.lookup(timestamp) == (expected[-1] if expected else (NO_TIMESTAMP, BASE_OFFSET))

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        near = data.draw(st.sampled_from(self.entries))[1] if self.entries else BASE_OFFSET
        offset = near + data.draw(st.integers(-2, 2))
        self.index.truncate_to(offset)
        self.entries = [entry for entry in self.entries if entry[1] < offset]

    @rule()
    def reopen(self) -> None:
        self.index.write_tail()
        assert self.disk.file_size(TIME_INDEX_PATH) == 12 * len(self.entries)
        self.index = TimeIndex(self.disk, self.cache, TIME_INDEX_PATH, BASE_OFFSET)
        assert self.index.load()

    @rule()
    def forget_cached(self) -> None:
        self.cache.discard(TIME_INDEX_PATH)

    @invariant()
    def same_end(self) -> None:
        last = self.entries[-1] if self.entries else (NO_TIMESTAMP, BASE_OFFSET)
        assert (self.index.entry_count, self.index.last_entry) == (len(self.entries), last)

    def teardown(self) -> None:
        assert list(self.index.entries()) == self.entries
        self.index.check()


TestTimeIndexAgainstAList = TimeIndexMachine.TestCase
TestTimeIndexAgainstAList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# The transaction index against a plain list.


TRANSACTION_BASE_OFFSET = 1000
TRANSACTION_INDEX_PATH = f"{DIRECTORY}/00000000000000001000.txnindex"
# Written by Apache Kafka 4.3: one abort of producer 2003, while a transaction that began at offset 30 was open.
KAFKA_BYTES = bytes.fromhex("0000 00000000000007d3 000000000000001b 0000000000000021 000000000000001e")


def loaded(content: bytes, base_offset: int = 0) -> TransactionIndex:
    disk = simulated_disk()
    write_file(disk, TRANSACTION_INDEX_PATH, content)
    index = TransactionIndex(disk, IndexCache(1 << 20), TRANSACTION_INDEX_PATH, base_offset)
    assert index.load()
    return index


def test_kafkas_bytes_both_ways() -> None:
    index = loaded(KAFKA_BYTES)
    index.check()
    (transaction,) = index.entries()
    assert transaction == AbortedTransaction(producer_id=2003, first_offset=27, last_offset=33, last_stable_offset=30)
    disk = simulated_disk()
    again = TransactionIndex(disk, IndexCache(0), TRANSACTION_INDEX_PATH, 0)
    again.append(transaction)
    again.write_tail()
    assert read_file(disk, TRANSACTION_INDEX_PATH) == KAFKA_BYTES


def test_collect_finds_transactions_that_overlap_the_range() -> None:
    index = TransactionIndex(simulated_disk(), IndexCache(1 << 20), TRANSACTION_INDEX_PATH, 0)
    early = AbortedTransaction(1, 0, 10, 5)
    middle = AbortedTransaction(2, 5, 20, 21)
    late = AbortedTransaction(1, 25, 30, 31)
    for transaction in (early, middle, late):
        index.append(transaction)
    assert index.collect(0, 100) == [early, middle, late]
    assert index.collect(10, 100) == [early, middle, late]
    assert index.collect(11, 25) == [middle]
    assert index.collect(11, 26) == [middle, late]
    assert index.collect(30, 100) == [late]
    assert index.collect(31, 100) == []
    assert index.collect(0, 5) == [early]
    assert index.collect(0, 0) == []


def test_collect_tells_whether_later_segments_matter() -> None:
    index = TransactionIndex(simulated_disk(), IndexCache(1 << 20), TRANSACTION_INDEX_PATH, 0)
    index.append(AbortedTransaction(1, 0, 10, 5))
    found: list[AbortedTransaction] = []
    # The transaction open at 5 may be aborted in a later segment and matters to a reader of offset 5, but not below it.
    assert not index.collect_into(found, 0, 6)
    assert index.collect_into(found, 0, 5)
    assert not index.collect_into(found, 11, 12)
    assert found == [AbortedTransaction(1, 0, 10, 5)] * 2


@pytest.mark.parametrize(
    ("content", "base_offset", "problem"),
    [
        (KAFKA_BYTES[:33], 0, "33 bytes"),
        (b"\0\1" + KAFKA_BYTES[2:], 0, "version 1"),
        (KAFKA_BYTES * 2, 0, "entry 1 does not come after"),
        (KAFKA_BYTES, 34, "entry 0 does not come after"),
        (KAFKA_BYTES[:10] + KAFKA_BYTES[18:26] + KAFKA_BYTES[10:18] + KAFKA_BYTES[26:], 0, "ends before it begins"),
    ],
)
def test_check_finds_damage(content: bytes, base_offset: int, problem: str) -> None:
    with pytest.raises(CorruptIndex, match=problem):
        loaded(content, base_offset).check()


def test_a_search_skips_what_began_later_although_the_last_stable_offset_stands_still() -> None:
    """While one transaction stays open, each of its producers' many aborted ones says that something earlier may be unstable."""
    index = TransactionIndex(simulated_disk(), IndexCache(1 << 24), TRANSACTION_INDEX_PATH, 0)
    for number in range(100_000):
        index.append(AbortedTransaction(number, 2 * number, 2 * number + 1, 0))
    for _ in range(3):
        began = thread_time()
        assert len(index.collect(0, 100)) == 50
        spent_ms = (thread_time() - began) * 1000
    # To look at each of them takes 45 ms.
    assert spent_ms < 15
    index.truncate_to(20)
    for number in range(10, 5_000):
        index.append(AbortedTransaction(number, 0, 2 * number + 1, 0))
    assert len(index.collect(0, 1)) == 1 + 4_990, "what was remembered of the old entries is forgotten"


class TransactionIndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Several blocks with few entries.
        self.block_entries, indexes.BLOCK_ENTRIES = indexes.BLOCK_ENTRIES, 64
        self.disk = simulated_disk()
        self.cache = IndexCache(10_000)
        self.index = TransactionIndex(self.disk, self.cache, TRANSACTION_INDEX_PATH, TRANSACTION_BASE_OFFSET)
        self.entries: list[AbortedTransaction] = []

    @rule(count=st.sampled_from([1, 2, 120, 121, 150]), length=st.integers(1, 20), stable_step=st.integers(0, 30))
    def append(self, count: int, length: int, stable_step: int) -> None:
        for number in range(count):
            last = self.entries[-1] if self.entries else AbortedTransaction(0, 0, TRANSACTION_BASE_OFFSET, 0)
            last_offset = last.last_offset + 1 + number % 7
            stable = min(last_offset + 1, last.last_stable_offset + stable_step)
            transaction = AbortedTransaction(number, last_offset - length, last_offset, stable)
            self.index.append(transaction)
            self.entries.append(transaction)

    def draw_offset(self, data: st.DataObject) -> int:
        near = data.draw(st.sampled_from(self.entries)).last_offset if self.entries else TRANSACTION_BASE_OFFSET
        return near + data.draw(st.integers(-2, 2))

    @rule(data=st.data())
    def collect(self, data: st.DataObject) -> None:
        first_offset, upper_bound = self.draw_offset(data), self.draw_offset(data)
        expected, complete = [], False
        for entry in self.entries:
            if entry.last_offset >= first_offset:
                if entry.first_offset < upper_bound:
                    expected.append(entry)
                if entry.last_stable_offset >= upper_bound:
                    complete = True
                    break
        found: list[AbortedTransaction] = []
        assert self.index.collect_into(found, first_offset, upper_bound) == complete
        assert found == expected == self.index.collect(first_offset, upper_bound)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = self.draw_offset(data)
        self.index.truncate_to(offset)
        self.entries = [entry for entry in self.entries if entry.last_offset < offset]

    @rule()
    def reopen(self) -> None:
        self.index.write_tail()
        self.index = TransactionIndex(self.disk, self.cache, TRANSACTION_INDEX_PATH, TRANSACTION_BASE_OFFSET)
        assert self.index.load() or not self.entries

    @invariant()
    def same_count(self) -> None:
        assert self.index.entry_count == len(self.entries)
        assert self.index.last_offset == (self.entries[-1].last_offset if self.entries else -1)

    def teardown(self) -> None:
        indexes.BLOCK_ENTRIES = self.block_entries
        assert list(self.index.entries()) == self.entries
        self.index.check()


TestTransactionIndexAgainstAList = TransactionIndexMachine.TestCase
TestTransactionIndexAgainstAList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
