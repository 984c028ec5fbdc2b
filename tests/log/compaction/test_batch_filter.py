"""Single batches through the filter, where the whole would hide what happens."""

from hypothesis import given
from hypothesis import strategies as st

from tests.log.harness import with_body
from tidelog.log.compaction.batch_filter import BatchFilter, TransactionScan, emptied, keep_records, with_horizon
from tidelog.log.settings import LONG_MAX
from tidelog.records.batch import build_batch, read_records
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import HEADER_SIZE, BatchHeader, crc_is_valid, read_header
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


# Rebuilt batches: what stays reads as before, and the header says so.


contents = st.lists(
    st.tuples(st.integers(0, 1 << 41), st.binary(max_size=200), st.none() | st.binary(max_size=20_000)), min_size=1, max_size=8
)


def read_back(batch: bytes) -> tuple[BatchHeader, list[Record]]:
    header = read_header(batch)
    assert header.size == len(batch)
    assert crc_is_valid(batch, 0, header)
    return header, list(read_records(batch, 0, header, size_max=1 << 20, count_max=100))


@given(contents, st.sampled_from(CompressionType), st.none() | st.integers(0, 1 << 41), st.none() | st.just(77), st.data())
def test_the_records_that_stay_read_as_before(
    content: list[tuple[int, bytes, bytes | None]],
    compression: CompressionType,
    horizon_ms: int | None,
    log_append_time_ms: int | None,
    data: st.DataObject,
) -> None:
    records = [Record(100 + 3 * number, *fields, (("h", b"v"),)) for number, fields in enumerate(content)]
    batch = build_batch(
        records,
        base_offset=99,
        leader_epoch=4,
        compression=compression,
        producer_id=5,
        producer_epoch=6,
        base_sequence=7,
        transactional=True,
        delete_horizon_ms=horizon_ms,
        log_append_time_ms=log_append_time_ms,
        last_offset_delta=50,
    )
    kept = data.draw(st.sets(st.integers(0, len(records) - 1), min_size=1))
    old, before = read_back(batch)
    wanted = [before[index] for index in sorted(kept)]
    new_horizon_ms = 1_700_000_000_000
    for rebuilt, expected_horizon_ms in (
        (keep_records(old, memoryview(batch), kept), horizon_ms),
        (with_horizon(old, memoryview(batch), kept, new_horizon_ms), new_horizon_ms),
    ):
        header, found = read_back(rebuilt)
        assert found == wanted
        assert header.max_timestamp == max(record.timestamp for record in wanted)
        assert header.delete_horizon_ms == expected_horizon_ms
        assert (header.compression, header.is_log_append_time) == (compression, log_append_time_ms is not None)
        assert without_content(header) == without_content(old)


def test_an_emptied_batch_keeps_its_ends() -> None:
    batch = build_batch([Record(11, 5, b"k", b"v"), Record(13, 6, b"k", b"w")], base_offset=10, producer_id=1, base_sequence=9)
    old = read_header(batch)
    header, records = read_back(emptied(old))
    assert records == []
    assert without_content(header) == without_content(old)
    assert (header.max_timestamp, header.last_sequence) == (6, 12)


def without_content(header: BatchHeader) -> tuple[object, ...]:
    return (
        header.base_offset,
        header.last_offset_delta,
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_transactional,
        header.is_control,
    )


def test_timestamps_that_do_not_fit_do_not_stop_compaction() -> None:
    built = build_batch([Record(0, 0, b"a", b"1"), Record(1, 5, b"b", None), Record(2, -7, b"c", b"1")])
    for base_timestamp, expected in ((2**63 - 1, 2**63 - 1), (-(2**63), -1)):
        batch = with_body(built, built[HEADER_SIZE:], base_timestamp=base_timestamp, max_timestamp=1)
        header = read_header(batch)
        assert read_back(keep_records(header, memoryview(batch), {1, 2}))[0].max_timestamp == expected
        rebuilt, records = read_back(with_horizon(header, memoryview(batch), {1, 2}, 1_700_000_000_000))
        assert rebuilt.max_timestamp == expected
        assert [record.key for record in records] == [b"b", b"c"]
