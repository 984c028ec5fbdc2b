"""The offset index against a plain list."""

from bisect import bisect_left, bisect_right

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.log.disks import DIRECTORY, read_file, simulated_disk, write_file
from tidelog.log.errors import CorruptIndex
from tidelog.log.index_cache import IndexCache
from tidelog.log.offset_index import OffsetIndex

BASE_OFFSET = 5_000_000_000
PATH = f"{DIRECTORY}/00000000005000000000.index"


def new_index() -> OffsetIndex:
    return OffsetIndex(simulated_disk(), IndexCache(1 << 20), PATH, BASE_OFFSET)


def test_bytes_are_kafkas() -> None:
    disk = simulated_disk()
    index = OffsetIndex(disk, IndexCache(1 << 20), PATH, BASE_OFFSET)
    index.append(BASE_OFFSET + 0x01020304, 0x0A0B0C0D)
    index.append(BASE_OFFSET + 2**31 - 1, 2**31 - 1)
    index.write_tail()
    assert read_file(disk, PATH) == bytes.fromhex("01020304 0a0b0c0d 7fffffff 7fffffff")


def test_kafkas_bytes_are_read() -> None:
    disk = simulated_disk()
    write_file(disk, PATH, bytes.fromhex("00000009 000000af 0000000e 0000018e 00000018 0000030a"))
    index = OffsetIndex(disk, IndexCache(1 << 20), PATH, BASE_OFFSET)
    index.load()
    index.check()
    assert list(index.entries()) == [(BASE_OFFSET + 9, 175), (BASE_OFFSET + 14, 398), (BASE_OFFSET + 24, 778)]
    assert index.lookup(BASE_OFFSET + 23) == (BASE_OFFSET + 14, 398)


def test_an_entry_for_the_base_offset_itself_may_come_first() -> None:
    index = new_index()
    index.append(BASE_OFFSET, 0)
    index.append(BASE_OFFSET + 5, 70)
    assert index.lookup(BASE_OFFSET + 4) == (BASE_OFFSET, 0)
    assert index.entry_count == 2


def test_entries_out_of_order_are_a_programmers_error() -> None:
    index = new_index()
    index.append(BASE_OFFSET + 5, 70)
    with pytest.raises(AssertionError):
        index.append(BASE_OFFSET + 5, 80)


@pytest.mark.parametrize("content", ["00000005 00000010 00000005 00000020", "00000005 00000010 00000006 00000010"])
def test_check_finds_what_does_not_rise(content: str) -> None:
    disk = simulated_disk()
    write_file(disk, PATH, bytes.fromhex(content))
    index = OffsetIndex(disk, IndexCache(1 << 20), PATH, BASE_OFFSET)
    index.load()
    with pytest.raises(CorruptIndex, match="entry 1"):
        index.check()


class OffsetIndexMachine(RuleBasedStateMachine):
    """Every operation on the index, in any order, does what the same operation does to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = simulated_disk()
        self.cache = IndexCache(20_000)
        self.index = OffsetIndex(self.disk, self.cache, PATH, BASE_OFFSET)
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
        assert self.disk.file_size(PATH) == 8 * len(self.entries)

    @rule()
    def reopen(self) -> None:
        self.index.write_tail()
        self.index = OffsetIndex(self.disk, self.cache, PATH, BASE_OFFSET)
        assert self.index.load()

    @rule()
    def forget_cached(self) -> None:
        self.cache.discard(PATH)

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
