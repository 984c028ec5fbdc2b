"""Reading by offset: what a slice holds, where it ends, and how far each kind of reader may see."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.harness import (
    BATCH_BYTES,
    SMALL,
    START_MS,
    Store,
    append,
    batch,
    end_transaction,
    headers_in,
    log_bytes,
    read_offsets,
    slice_bytes,
    with_body,
)
from tidelog.log import reading
from tidelog.log.append_check import AppendOrigin
from tidelog.log.errors import LogOffline, OffsetOutOfRange
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, end_offset_for_epoch, offset_for_timestamp, offset_of_max_timestamp, position_of, read
from tidelog.log.segments import segment as segment_module
from tidelog.log.segments.indexes import AbortedTransaction
from tidelog.log.segments.segment import LOOKUP_BATCH_BYTES_MAX
from tidelog.log.settings import LogSettings
from tidelog.ports.steps import run_to_end
from tidelog.records.batch import read_records
from tidelog.records.compression import CompressionType, compress
from tidelog.records.control import ControlType
from tidelog.records.header import HEADER_SIZE, iterate_headers
from tidelog.records.record import Record


def three_segments(store: Store) -> PartitionLog:
    """Batches of one to three records, offsets 0 to 59, in several segments."""
    log = store.create()
    while log.log_end_offset < 60:
        append(log, 1 + log.log_end_offset % 3)
    assert len(log.segments) >= 3
    return log


# -- slices ------------------------------------------------------------------------------------------------------------------


def test_every_offset_is_found_in_the_batch_that_holds_it() -> None:
    store = Store(SMALL)
    log = three_segments(store)
    for reopened in (False, True):
        if reopened:
            store.restart()
            log = store.log()
        for offset in range(log.log_end_offset):
            first = headers_in(slice_bytes(log, offset, 1))[0]
            assert first.base_offset <= offset <= first.last_offset


def test_a_reader_that_follows_the_slices_sees_every_record_once() -> None:
    log = three_segments(Store(SMALL))
    for bytes_max in (1, 150, 777, 1 << 20):
        assert read_offsets(log, bytes_max=bytes_max) == list(range(log.log_end_offset))


def test_byte_limits_cut_anywhere_but_the_first_batch_is_whole() -> None:
    log = Store().create()
    for _ in range(10):
        append(log)
    assert len(slice_bytes(log, 3, 250)) == 250
    assert len(slice_bytes(log, 3, 99)) == BATCH_BYTES
    assert len(slice_bytes(log, 3, 0)) == BATCH_BYTES
    assert len(slice_bytes(log, 8, 10_000)) == 2 * BATCH_BYTES
    assert read(log, 3, 99, Isolation.LOG_END, at_least_one=False).records is None
    found = read(log, 3, 100, Isolation.LOG_END, at_least_one=False).records
    assert found is not None
    assert found.length == BATCH_BYTES


def test_a_slice_stays_within_its_segment() -> None:
    log = Store(SMALL).create()
    for _ in range(25):
        append(log)
    assert len(slice_bytes(log, 8, 10_000)) == 2 * BATCH_BYTES
    assert headers_in(slice_bytes(log, 10, 10_000))[0].base_offset == 10


def test_a_slice_outlives_its_segment() -> None:
    store = Store(SMALL)
    log = store.create()
    for _ in range(25):
        append(log)
    store.commit(log)
    found = read(log, 0, 10_000, Isolation.LOG_END).records
    assert found is not None
    before = found.file.read(found.position, found.length)
    store.wait(lambda done: store.directory.delete_records(log, 25, done))
    store.settle(120_000)
    assert not store.disk.exists(found.file.path)
    assert found.file.read(found.position, found.length) == before


def test_gaps_are_stepped_over() -> None:
    """Between batches, inside one, at a segment's end, and across a segment that holds nothing any more."""
    store = Store(SMALL)
    log = store.create()
    kept = [0, 1, 5, 6, 20, 21, 35, 50]
    for offset in kept:
        log.append_as_follower(batch(base_offset=offset, leader_epoch=0, size=300))
    log.append_as_follower(batch(3, base_offset=60, leader_epoch=0))
    assert len(log.segments) > 2
    everything = [*kept, 60, 61, 62]
    assert read_offsets(log) == everything
    for offset in range(63):
        first = headers_in(slice_bytes(log, offset, 1))[0]
        assert first.last_offset >= offset
        assert first.base_offset <= min(known for known in everything if known >= offset)
    log.advance_high_watermark(30)
    assert read_offsets(log, Isolation.HIGH_WATERMARK) == [0, 1, 5, 6, 20, 21]
    assert read(log, 22, 100, Isolation.HIGH_WATERMARK).records is None


# -- bounds ------------------------------------------------------------------------------------------------------------------


def test_nobody_sees_more_than_their_bound() -> None:
    store = Store(SMALL)
    log = store.create()
    for _ in range(30):
        append(log)
    log.append_as_leader(batch(producer_id=7, sequence=0, transactional=True, size=BATCH_BYTES), 0)
    for _ in range(9):
        append(log)
    for high_watermark in (0, 1, 5, 10, 15, 20, 30, 31, 35, 40):
        log.advance_high_watermark(high_watermark)
        stable = min(high_watermark, 30)
        assert read_offsets(log, Isolation.HIGH_WATERMARK) == list(range(high_watermark))
        assert read_offsets(log, Isolation.LAST_STABLE) == list(range(stable))
        assert read_offsets(log, Isolation.LOG_END) == list(range(40))
        assert read(log, 0, 1, Isolation.HIGH_WATERMARK).bound_offset == high_watermark
        assert read(log, 0, 1, Isolation.LAST_STABLE).bound_offset == stable
        assert read(log, high_watermark, 1, Isolation.HIGH_WATERMARK) == (None, high_watermark, [])


def test_a_bound_inside_a_batch_hides_the_whole_batch() -> None:
    log = Store().create()
    append(log, 3)
    append(log, 3)
    log.advance_high_watermark(5)
    assert read_offsets(log, Isolation.HIGH_WATERMARK) == [0, 1, 2]
    assert read(log, 4, 100, Isolation.HIGH_WATERMARK).records is None


def test_the_position_of_the_durable_end_holds_after_a_roll() -> None:
    store = Store(SMALL)
    log = store.create()
    for _ in range(5):
        append(log)
    store.commit(log)
    log.roll()
    append(log)
    assert read_offsets(log, Isolation.HIGH_WATERMARK) == list(range(5))
    assert position_of(log, 6) == (6, 5, BATCH_BYTES)
    assert position_of(log, 2) == (2, 0, 2 * BATCH_BYTES)


def test_offsets_out_of_range() -> None:
    store = Store(SMALL)
    log = store.create()
    for _ in range(25):
        append(log)
    store.commit(log)
    assert store.wait(lambda done: store.directory.delete_records(log, 12, done)) is None
    for isolation in Isolation:
        for offset in (-1, 0, 11, 26):
            with pytest.raises(OffsetOutOfRange, match=f"offset {offset} is out of range: .* from 12 up to, not including, 25"):
                read(log, offset, 100, isolation)
        assert read(log, 25, 100, isolation).records is None
        assert headers_in(slice_bytes(log, 12, 100, isolation))[0].base_offset == 12


def test_an_empty_log_has_nothing_to_read() -> None:
    log = Store().create()
    assert read(log, 0, 100, Isolation.LOG_END) == (None, 0, [])
    with pytest.raises(OffsetOutOfRange):
        read(log, 1, 100, Isolation.LOG_END)


def test_an_offline_log_is_not_read() -> None:
    log = Store().create()
    append(log)
    log.go_offline("broken")
    for call in (
        lambda: read(log, 0, 1, Isolation.LOG_END),
        lambda: run_to_end(offset_for_timestamp(log, 0)),
        lambda: run_to_end(offset_of_max_timestamp(log)),
        lambda: end_offset_for_epoch(log, 0),
    ):
        with pytest.raises(LogOffline, match="broken"):
            call()


# Reading what is committed: the list of aborted transactions leaves a client with exactly the committed records.


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
@given(STEPS, st.integers(0, 40), st.sampled_from([1, 300, 1 << 20]), st.booleans(), st.sampled_from([0, 1, 2, 100]))
def test_committed_readers_get_exactly_the_committed_records(
    steps: list[Step], start: int, bytes_max: int, reopen: bool, aborted_max: int
) -> None:
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "ABORTED_MAX", aborted_max)
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


@pytest.mark.pure_python
def test_what_a_read_would_wait_for_is_known_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(SMALL)
    log = three_segments(store)
    cached: set[str] = set()
    monkeypatch.setattr(segment_module, "is_range_cached", lambda file, position, length: file.path in cached)
    store.commit(log)
    store.crash()
    log = store.log()
    for offset in (0, 25):
        segment = log.segments[log.segments.floor_index(offset)]
        index_files = reading.cold_read(log, offset)
        assert index_files is not None
        index_files()
        cached.update(store.paths("index"))
        batch_read = reading.cold_read(log, offset)
        assert batch_read is not None
        batch_read()
        cached.add(segment.path)
        assert reading.cold_read(log, offset) is None
        cached.clear()
    assert reading.cold_read(log, log.log_end_offset) is None, "there is nothing to read"
    append(log)
    assert reading.cold_read(log, log.log_end_offset - 1) is None, "what was just written is in the page cache"


def test_a_slice_ends_early_rather_than_with_too_many_aborted_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ABORTED_MAX", 2)
    log = Store().create()
    for number in range(6):
        log.append_as_leader(batch(1, producer_id=7, sequence=number, transactional=True), 0)
        end_transaction(log, 7, ControlType.ABORT)
    log.advance_high_watermark(log.log_end_offset)
    found = read(log, 0, 1 << 20, Isolation.LAST_STABLE)
    assert [entry.first_offset for entry in found.aborted] == [0, 2, 4]
    data = slice_bytes(log, 0, 1 << 20, Isolation.LAST_STABLE)
    assert [header.base_offset for header in headers_in(data)] == [0, 1, 2, 3, 4]


# Looking offsets up by time and by leader epoch, against what a walk over every record finds.


# -- by time -----------------------------------------------------------------------------------------------------------------

# In order, as most logs are, and in any order.
DISORDERED = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), max_size=40)
STAMPS = st.one_of(DISORDERED.map(sorted), DISORDERED)


def records_of(log: PartitionLog) -> Iterator[tuple[Record, int]]:
    """Every record in the files and its leader epoch."""
    data = log_bytes(log)
    for position, header in iterate_headers(data):
        for record in read_records(data, position, header, size_max=1 << 20, count_max=1 << 20):
            yield record, header.leader_epoch


@settings(max_examples=60, deadline=None)
@given(STAMPS, st.sampled_from(["live", "restart", "crash"]), st.data())
def test_timestamps_are_found_as_a_walk_finds_them(stamps: list[list[int]], how: str, data: st.DataObject) -> None:
    store = Store(LogSettings(segment_bytes=1000, segment_ms=2**60, index_interval_bytes=150))
    log = store.create()
    for number, group in enumerate(stamps):
        log.append_as_leader(batch(timestamps=[START_MS + stamp for stamp in group]), number // 10)
    store.commit(log)
    if how != "live":
        store.restart() if how == "restart" else store.crash()
        log = store.log()
        log.advance_high_watermark(log.log_end_offset)
    everything = list(records_of(log))
    newest = max((record.timestamp for record, _ in everything), default=None)
    found = run_to_end(offset_of_max_timestamp(log))
    expected = next(((r.timestamp, r.offset, epoch) for r, epoch in everything if r.timestamp == newest), None)
    assert found == expected
    start = data.draw(st.integers(0, log.log_end_offset))
    assert store.wait(lambda done: store.directory.delete_records(log, start, done)) is None
    left = [(r.timestamp, r.offset, epoch) for r, epoch in everything if r.offset >= start]
    newest_left = max((timestamp for timestamp, _, _ in left), default=None)
    assert run_to_end(offset_of_max_timestamp(log)) == next((found for found in left if found[0] == newest_left), None)
    for timestamp in (0, *range(START_MS, START_MS + 42)):
        expected = next(
            ((r.timestamp, r.offset, epoch) for r, epoch in everything if r.timestamp >= timestamp and r.offset >= start), None
        )
        assert run_to_end(offset_for_timestamp(log, timestamp)) == expected


def test_records_without_a_time_are_found_by_no_time() -> None:
    log = Store().create()
    log.append_as_leader(batch(timestamps=[-1, -1]), 0)
    assert run_to_end(offset_for_timestamp(log, 0)) is None
    assert run_to_end(offset_of_max_timestamp(log)) is None


@pytest.mark.parametrize(
    ("compression", "body"),
    [
        (CompressionType.NONE, b"nonsense"),
        (CompressionType.ZSTD, compress(CompressionType.ZSTD, bytes(LOOKUP_BATCH_BYTES_MAX + 1))),
    ],
)
def test_a_batch_that_cannot_be_read_is_found_by_its_header(compression: CompressionType, body: bytes) -> None:
    """Nobody reads the records of a leader when they are written: a lookup must neither fail on them nor take all memory."""
    log = Store(SMALL).create()
    append(log)
    broken = with_body(batch(timestamps=[START_MS + 5]), body, attributes=int(compression))
    log.append_as_leader(broken, 0, AppendOrigin.COORDINATOR)
    append(log)
    assert run_to_end(offset_for_timestamp(log, START_MS + 1)) == (START_MS + 5, 1, 0)
    assert run_to_end(offset_of_max_timestamp(log)) == (START_MS + 5, 1, 0)
    log.raise_start(1)
    assert run_to_end(offset_of_max_timestamp(log)) == (START_MS + 5, 1, 0)


def test_a_timestamp_that_does_not_fit_is_not_given_out() -> None:
    log = Store(SMALL).create()
    built = batch(timestamps=[START_MS])
    log.append_as_leader(
        with_body(built, built[HEADER_SIZE:], base_timestamp=2**63 - 1, max_timestamp=START_MS), 0, AppendOrigin.COORDINATOR
    )
    later = batch(timestamps=[START_MS, START_MS + 5])
    log.append_as_leader(
        with_body(later, later[HEADER_SIZE:], base_timestamp=2**63 - 1, max_timestamp=START_MS), 0, AppendOrigin.COORDINATOR
    )
    log.raise_start(2)
    assert run_to_end(offset_for_timestamp(log, START_MS)) == (START_MS, 2, 0)


# -- by epoch ----------------------------------------------------------------------------------------------------------------


def test_where_an_epoch_ended() -> None:
    store = Store(SMALL)
    log = store.create()
    for epoch in (0, 0, 2, 2, 2, 5):
        append(log, 2, leader_epoch=epoch)
    store.commit(log)
    for _ in range(2):
        found = [end_offset_for_epoch(log, epoch) for epoch in (0, 1, 2, 3, 4, 5)]
        assert found == [(0, 4), (0, 4), (2, 10), (2, 10), (2, 10), (5, 12)]
        store.crash()
        log = store.log()
