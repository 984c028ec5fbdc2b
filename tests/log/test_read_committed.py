"""Reading what is committed: the list of aborted transactions leaves a client with exactly the committed records."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.harness import SMALL, Store, append, batch, end_transaction, headers_in, log_bytes
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, read
from tidelog.log.transaction_index import AbortedTransaction
from tidelog.records.batch import read_records
from tidelog.records.control import ControlType
from tidelog.records.header import iterate_headers

Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "write", "write", "commit", "abort", "plain", "roll"]), st.integers(0, 3)), max_size=60
)


class History(NamedTuple):
    aborted_offsets: set[int]
    open_offsets: set[int]


def live_through(log: PartitionLog, steps: list[Step]) -> History:
    """Write the steps and remember, by plain bookkeeping, which offsets belong to aborted and to open transactions."""
    sequences = dict.fromkeys(range(4), 0)
    written: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for action, producer in steps:
        if action == "write":
            count = 1 + producer % 2
            data = batch(count, producer_id=producer, sequence=sequences[producer], transactional=True)
            result = log.append_as_leader(data, 0)
            sequences[producer] += count
            written.setdefault(producer, []).extend(range(result.first_offset, result.last_offset + 1))
        elif action == "plain":
            append(log)
        elif action == "roll":
            log.roll()
        else:
            end_transaction(log, producer, ControlType.COMMIT if action == "commit" else ControlType.ABORT)
            offsets = written.pop(producer, [])
            aborted.update(offsets if action == "abort" else [])
    return History(aborted, {offset for offsets in written.values() for offset in offsets})


def read_committed(log: PartitionLog, bytes_max: int, from_offset: int) -> list[int]:
    """As a Kafka client does it: it drops the batches of a producer from the first offset of one of its aborted transactions on
    until it meets that producer's abort marker."""
    kept: list[int] = []
    offset = from_offset
    while True:
        found = read(log, offset, bytes_max, Isolation.LAST_STABLE)
        if found.records is None:
            return kept
        data = found.records.file.read(found.records.position, found.records.length)
        pending = sorted(found.aborted, key=lambda transaction: transaction.first_offset)
        dropping: set[int] = set()
        for position, header in iterate_headers(data):
            while pending and pending[0].first_offset <= header.last_offset:
                dropping.add(pending.pop(0).producer_id)
            if header.is_control:
                dropping.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropping):
                records = read_records(data, position, header, size_max=1 << 20, count_max=1000)
                kept += [record.offset for record in records if record.offset >= offset]
            offset = header.next_offset


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 40), st.sampled_from([1, 300, 1 << 20]), st.booleans())
def test_committed_readers_get_exactly_the_committed_records(steps: list[Step], start: int, bytes_max: int, reopen: bool) -> None:
    store = Store(SMALL)
    log = store.create()
    history = live_through(log, steps)
    store.commit(log)
    if reopen:
        store.crash()
        log = store.log()
        log.advance_high_watermark(log.log_end_offset)
    stable = min(history.open_offsets, default=log.log_end_offset)
    assert log.last_stable_offset == stable
    markers = {header.base_offset for header in headers_in(log_bytes(log)) if header.is_control}
    start = min(start, log.log_end_offset)
    expected = [offset for offset in range(start, stable) if offset not in history.aborted_offsets | markers]
    assert read_committed(log, bytes_max, start) == expected


def test_the_aborted_list_covers_transactions_whose_marker_is_segments_away() -> None:
    log = Store(SMALL).create()
    log.append_as_leader(batch(2, producer_id=7, sequence=0, transactional=True), 0)
    for _ in range(30):
        append(log)
    marker = end_transaction(log, 7, ControlType.ABORT)
    log.advance_high_watermark(log.log_end_offset)
    entry = AbortedTransaction(7, 0, marker, marker + 1)
    for offset in range(marker):
        assert read(log, offset, 1 << 20, Isolation.LAST_STABLE).aborted == [entry]
    assert read(log, 0, 1 << 20, Isolation.HIGH_WATERMARK).aborted == []


def test_a_transaction_that_begins_with_the_last_record_of_a_segment_is_listed() -> None:
    log = Store(SMALL).create()
    append(log)
    first = log.append_as_leader(batch(1, producer_id=7, sequence=0, transactional=True), 0).first_offset
    log.roll()
    end_transaction(log, 7, ControlType.ABORT)
    log.advance_high_watermark(log.log_end_offset)
    assert [entry.first_offset for entry in read(log, 0, 1 << 20, Isolation.LAST_STABLE).aborted] == [first]


def test_transactions_that_end_before_the_read_are_not_listed() -> None:
    log = Store(SMALL).create()
    for _ in range(3):
        log.append_as_leader(batch(1, producer_id=7, sequence=log.log_end_offset // 2, transactional=True), 0)
        end_transaction(log, 7, ControlType.ABORT)
    log.advance_high_watermark(log.log_end_offset)
    assert [entry.first_offset for entry in read(log, 0, 1 << 20, Isolation.LAST_STABLE).aborted] == [0, 2, 4]
    assert [entry.first_offset for entry in read(log, 4, 1 << 20, Isolation.LAST_STABLE).aborted] == [4]
