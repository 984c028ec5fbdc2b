"""Single batches through the filter, where the whole would hide what happens."""

from tidelog.log.compaction.batch_filter import BatchFilter
from tidelog.log.compaction.transaction_scan import TransactionScan
from tidelog.log.settings import LONG_MAX
from tidelog.records.batch import build_batch
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import read_header
from tidelog.records.record import Record

NOW_MS = 1_000_000


def new_filter(end_offset: int = 1000, retention_ms: int = 500, **offsets: int) -> BatchFilter:
    by_key = {key.encode(): offset for key, offset in offsets.items()}
    return BatchFilter(by_key, end_offset, TransactionScan([]), {}, NOW_MS, retention_ms)


def run(batch_filter: BatchFilter, batch: bytes, is_last: bool = False) -> bytes | None:
    kept = batch_filter.filter_records(read_header(batch), memoryview(batch), is_last)
    return None if kept is None else bytes(kept)


TOMBSTONE = build_batch([Record(10, 7, b"a", None)], base_offset=10)
MARKER = build_end_transaction_marker(
    EndTransactionMarker(ControlType.COMMIT, 0), producer_id=1, producer_epoch=0, timestamp=7, base_offset=10
)


def test_a_tombstone_above_the_map_gets_no_horizon_yet() -> None:
    """The records that it deletes may still be there: it must not begin to age before they are gone."""
    batch_filter = new_filter(end_offset=10)
    assert run(batch_filter, TOMBSTONE) == TOMBSTONE
    assert batch_filter.horizon_ms is None
    batch_filter = new_filter(end_offset=11)
    kept = run(batch_filter, TOMBSTONE)
    assert kept is not None
    assert read_header(kept).delete_horizon_ms == batch_filter.horizon_ms == NOW_MS + 500


def test_a_marker_above_the_map_gets_no_horizon_yet() -> None:
    for end_offset, horizon_ms in ((10, None), (11, NOW_MS + 500)):
        kept, _ = new_filter(end_offset).filter_control(read_header(MARKER), memoryview(MARKER), False)
        assert kept is not None
        assert read_header(kept).delete_horizon_ms == horizon_ms


def test_a_retention_of_forever_still_fits_its_field() -> None:
    kept = run(new_filter(retention_ms=LONG_MAX), TOMBSTONE)
    assert kept is not None
    assert read_header(kept).delete_horizon_ms == LONG_MAX


def test_a_record_without_a_key_goes() -> None:
    batch_filter = new_filter()
    assert run(batch_filter, build_batch([Record(10, 7, None, b"x")], base_offset=10)) is None
    assert (batch_filter.records_read, batch_filter.records_kept) == (1, 0)


def test_log_append_time_stays() -> None:
    batch = build_batch([Record(10, 7, b"a", b"x"), Record(11, 7, b"b", b"x")], base_offset=10, log_append_time_ms=99)
    kept = run(new_filter(a=20), batch)
    assert kept is not None
    header = read_header(kept)
    assert (header.is_log_append_time, header.max_timestamp, header.record_count, header.last_offset) == (True, 99, 1, 11)


def test_an_empty_batch_that_is_no_longer_needed_goes() -> None:
    empty = build_batch([], base_offset=10, last_offset_delta=3, producer_id=1, producer_epoch=0, base_sequence=0)
    assert run(new_filter(), empty) is None
    assert run(new_filter(), empty, is_last=True) == empty
