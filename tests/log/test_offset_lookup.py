"""Looking offsets up by time and by leader epoch, against what a walk over every record finds."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.harness import SMALL, START_MS, Store, append, batch, log_bytes, with_body
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import end_offset_for_epoch, offset_for_timestamp, offset_of_max_timestamp
from tidelog.log.segment import LOOKUP_BATCH_BYTES_MAX
from tidelog.log.settings import LogSettings
from tidelog.records.batch import read_records
from tidelog.records.compression import CompressionType, compress
from tidelog.records.header import HEADER_SIZE, iterate_headers
from tidelog.records.record import Record

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
    found = offset_of_max_timestamp(log)
    expected = next(((r.timestamp, r.offset, epoch) for r, epoch in everything if r.timestamp == newest), None)
    assert found == expected
    start = data.draw(st.integers(0, log.log_end_offset))
    assert store.wait(lambda done: store.directory.delete_records(log, start, done)) is None
    left = [(r.timestamp, r.offset, epoch) for r, epoch in everything if r.offset >= start]
    newest_left = max((timestamp for timestamp, _, _ in left), default=None)
    assert offset_of_max_timestamp(log) == next((found for found in left if found[0] == newest_left), None)
    for timestamp in (0, *range(START_MS, START_MS + 42)):
        expected = next(
            ((r.timestamp, r.offset, epoch) for r, epoch in everything if r.timestamp >= timestamp and r.offset >= start), None
        )
        assert offset_for_timestamp(log, timestamp) == expected


def test_records_without_a_time_are_found_by_no_time() -> None:
    log = Store().create()
    log.append_as_leader(batch(timestamps=[-1, -1]), 0)
    assert offset_for_timestamp(log, 0) is None
    assert offset_of_max_timestamp(log) is None


@pytest.mark.parametrize(
    ("compression", "body"),
    [
        (CompressionType.NONE, b"nonsense"),
        (CompressionType.ZSTD, compress(CompressionType.ZSTD, bytes(LOOKUP_BATCH_BYTES_MAX + 1))),
    ],
)
def test_a_batch_that_cannot_be_read_is_found_by_its_header(compression: CompressionType, body: bytes) -> None:
    """Nobody reads the records when they are written: a lookup must neither fail on them nor take all memory for them."""
    log = Store(SMALL).create()
    append(log)
    broken = with_body(batch(timestamps=[START_MS + 5]), body, attributes=int(compression))
    log.append_as_leader(broken, 0)
    append(log)
    assert offset_for_timestamp(log, START_MS + 1) == (START_MS + 5, 1, 0)
    assert offset_of_max_timestamp(log) == (START_MS + 5, 1, 0)
    log.raise_start(1)
    assert offset_of_max_timestamp(log) == (START_MS + 5, 1, 0)


def test_a_timestamp_that_does_not_fit_is_not_given_out() -> None:
    log = Store(SMALL).create()
    built = batch(timestamps=[START_MS])
    log.append_as_leader(with_body(built, built[HEADER_SIZE:], base_timestamp=2**63 - 1, max_timestamp=START_MS), 0)
    later = batch(timestamps=[START_MS, START_MS + 5])
    log.append_as_leader(with_body(later, later[HEADER_SIZE:], base_timestamp=2**63 - 1, max_timestamp=START_MS), 0)
    log.raise_start(2)
    assert offset_for_timestamp(log, START_MS) == (START_MS, 2, 0)


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
