"""Reading by offset: what a slice holds, where it ends, and how far each kind of reader may see."""

import pytest

from tests.log.harness import BATCH_BYTES, SMALL, Store, append, batch, headers_in, read_offsets, slice_bytes
from tidelog.log.errors import LogOffline, OffsetOutOfRange
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, end_offset_for_epoch, offset_for_timestamp, offset_of_max_timestamp, position_of, read


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
        lambda: offset_for_timestamp(log, 0),
        lambda: offset_of_max_timestamp(log),
        lambda: end_offset_for_epoch(log, 0),
    ):
        with pytest.raises(LogOffline, match="broken"):
            call()
