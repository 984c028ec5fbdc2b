"""The time index against a plain list."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.log.disks import DIRECTORY, read_file, simulated_disk, write_file
from tidelog.log.errors import CorruptIndex
from tidelog.log.index_cache import IndexCache
from tidelog.log.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset

BASE_OFFSET = 5_000_000_000
PATH = f"{DIRECTORY}/00000000005000000000.timeindex"


def new_index() -> TimeIndex:
    return TimeIndex(simulated_disk(), IndexCache(1 << 20), PATH, BASE_OFFSET)


def test_bytes_are_kafkas_both_ways() -> None:
    disk = simulated_disk()
    index = TimeIndex(disk, IndexCache(1 << 20), PATH, BASE_OFFSET)
    index.maybe_append(0x0000018D_01020304, BASE_OFFSET + 7)
    index.maybe_append(2**62, BASE_OFFSET + 2**31 - 1)
    index.write_tail()
    content = bytes.fromhex("0000018d01020304 00000007 4000000000000000 7fffffff")
    assert read_file(disk, PATH) == content
    again = TimeIndex(disk, IndexCache(1 << 20), PATH, BASE_OFFSET)
    again.load()
    assert list(again.entries()) == [(0x0000018D_01020304, BASE_OFFSET + 7), (2**62, BASE_OFFSET + 2**31 - 1)]
    assert again.last_entry == TimestampOffset(2**62, BASE_OFFSET + 2**31 - 1)


def test_only_a_later_timestamp_is_entered() -> None:
    index = new_index()
    index.maybe_append(NO_TIMESTAMP, BASE_OFFSET)
    assert index.entry_count == 0
    index.maybe_append(50, BASE_OFFSET + 3)
    index.maybe_append(50, BASE_OFFSET + 4)
    index.maybe_append(49, BASE_OFFSET + 5)
    assert list(index.entries()) == [(50, BASE_OFFSET + 3)]


def test_an_empty_index_answers_with_its_base() -> None:
    index = new_index()
    assert index.lookup(10**15) == TimestampOffset(NO_TIMESTAMP, BASE_OFFSET)
    assert index.last_entry == TimestampOffset(NO_TIMESTAMP, BASE_OFFSET)


@pytest.mark.parametrize(
    "content", ["0000000000000005 00000001 0000000000000005 00000002", "0000000000000005 00000002 0000000000000006 00000001"]
)
def test_check_finds_what_does_not_rise(content: str) -> None:
    disk = simulated_disk()
    write_file(disk, PATH, bytes.fromhex(content))
    index = TimeIndex(disk, IndexCache(1 << 20), PATH, BASE_OFFSET)
    index.load()
    with pytest.raises(CorruptIndex, match="entry 1"):
        index.check()


class TimeIndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = simulated_disk()
        self.cache = IndexCache(20_000)
        self.index = TimeIndex(self.disk, self.cache, PATH, BASE_OFFSET)
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
        assert self.disk.file_size(PATH) == 12 * len(self.entries)
        self.index = TimeIndex(self.disk, self.cache, PATH, BASE_OFFSET)
        assert self.index.load()

    @rule()
    def forget_cached(self) -> None:
        self.cache.discard(PATH)

    @invariant()
    def same_end(self) -> None:
        last = self.entries[-1] if self.entries else (NO_TIMESTAMP, BASE_OFFSET)
        assert (self.index.entry_count, self.index.last_entry) == (len(self.entries), last)

    def teardown(self) -> None:
        assert list(self.index.entries()) == self.entries
        self.index.check()


TestTimeIndexAgainstAList = TimeIndexMachine.TestCase
TestTimeIndexAgainstAList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
