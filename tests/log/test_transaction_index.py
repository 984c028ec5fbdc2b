"""The transaction index against a plain list."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.log.disks import DIRECTORY, read_file, simulated_disk, write_file
from tidelog.log.errors import CorruptIndex
from tidelog.log.index_cache import IndexCache
from tidelog.log.transaction_index import AbortedTransaction, TransactionIndex

BASE_OFFSET = 1000
PATH = f"{DIRECTORY}/00000000000000001000.txnindex"
# Written by Apache Kafka 4.3: one abort of producer 2003, while a transaction that began at offset 30 was open.
KAFKA_BYTES = bytes.fromhex("0000 00000000000007d3 000000000000001b 0000000000000021 000000000000001e")


def loaded(content: bytes, base_offset: int = 0) -> TransactionIndex:
    disk = simulated_disk()
    write_file(disk, PATH, content)
    index = TransactionIndex(disk, IndexCache(1 << 20), PATH, base_offset)
    assert index.load()
    return index


def test_kafkas_bytes_both_ways() -> None:
    index = loaded(KAFKA_BYTES)
    index.check()
    (transaction,) = index.entries()
    assert transaction == AbortedTransaction(producer_id=2003, first_offset=27, last_offset=33, last_stable_offset=30)
    disk = simulated_disk()
    again = TransactionIndex(disk, IndexCache(0), PATH, 0)
    again.append(transaction)
    again.write_tail()
    assert read_file(disk, PATH) == KAFKA_BYTES


def test_collect_finds_transactions_that_overlap_the_range() -> None:
    index = TransactionIndex(simulated_disk(), IndexCache(1 << 20), PATH, 0)
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
    index = TransactionIndex(simulated_disk(), IndexCache(1 << 20), PATH, 0)
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


class TransactionIndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = simulated_disk()
        self.cache = IndexCache(10_000)
        self.index = TransactionIndex(self.disk, self.cache, PATH, BASE_OFFSET)
        self.entries: list[AbortedTransaction] = []

    @rule(count=st.sampled_from([1, 2, 120, 121, 150]), length=st.integers(1, 20), stable_step=st.integers(0, 30))
    def append(self, count: int, length: int, stable_step: int) -> None:
        for number in range(count):
            last = self.entries[-1] if self.entries else AbortedTransaction(0, 0, BASE_OFFSET, 0)
            last_offset = last.last_offset + 1 + number % 7
            stable = min(last_offset + 1, last.last_stable_offset + stable_step)
            transaction = AbortedTransaction(number, last_offset - length, last_offset, stable)
            self.index.append(transaction)
            self.entries.append(transaction)

    def draw_offset(self, data: st.DataObject) -> int:
        near = data.draw(st.sampled_from(self.entries)).last_offset if self.entries else BASE_OFFSET
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
        self.index = TransactionIndex(self.disk, self.cache, PATH, BASE_OFFSET)
        assert self.index.load() or not self.entries

    @invariant()
    def same_count(self) -> None:
        assert self.index.entry_count == len(self.entries)
        assert self.index.last_offset == (self.entries[-1].last_offset if self.entries else -1)

    def teardown(self) -> None:
        assert list(self.index.entries()) == self.entries
        self.index.check()


TestTransactionIndexAgainstAList = TransactionIndexMachine.TestCase
TestTransactionIndexAgainstAList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
