"""Appending as a leader: what the log gives out and what it refuses, and the watermarks."""

import pytest
from fastcrc.crc32 import iscsi as crc32c

from tests.log.harness import (
    SMALL,
    START_MS,
    Store,
    append,
    base_offsets,
    batch,
    end_transaction,
    log_headers,
    read_offsets,
    state_of,
)
from tidelog.log.append_check import AppendOrigin
from tidelog.log.errors import (
    CorruptRecord,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    LogError,
    LogOffline,
    OutOfOrderSequence,
    RecordTooLarge,
    StaleLeaderEpoch,
)
from tidelog.log.partition_log import LAST_OFFSET_MAX
from tidelog.log.segments.segment import RELATIVE_OFFSET_MAX
from tidelog.log.settings import DirectoryOptions, LogSettings
from tidelog.records.batch import read_records
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType
from tidelog.records.header import BATCH_LENGTH_MIN, CHECKSUMMED_HEADER, MAGIC, PREFIX_MAGIC_CRC, iterate_headers

# -- offsets and stamps ------------------------------------------------------------------------------------------------------


def test_offsets_follow_each_other_and_are_stamped_into_the_batches() -> None:
    log = Store().create()
    assert log.append_as_leader(batch(3), 0) == (0, 2, -1, False)
    assert log.append_as_leader(batch(2, compression=CompressionType.ZSTD), 4) == (3, 4, -1, False)
    headers = log_headers(log)
    assert [(header.base_offset, header.last_offset, header.leader_epoch) for header in headers] == [(0, 2, 0), (3, 4, 4)]
    assert (log.log_end_offset, log.durable.offset, log.high_watermark) == (5, 0, 0)


def test_several_batches_in_one_append() -> None:
    log = Store().create()
    append(log)
    assert log.append_as_leader(batch(2) + batch(5) + batch(1), 0, AppendOrigin.COORDINATOR) == (1, 8, -1, False)
    assert [header.base_offset for header in log_headers(log)] == [0, 1, 3, 8]


def test_any_buffer_is_taken_and_left_as_it_was() -> None:
    log = Store().create()
    append(log)
    data = batch(2)
    mutable = bytearray(data)
    log.append_as_leader(mutable, 0)
    log.append_as_leader(memoryview(data), 0)
    assert mutable == data
    assert read_offsets(log) == [0, 1, 2, 3, 4]


def test_log_append_time_replaces_the_timestamps_and_the_crc() -> None:
    store = Store(LogSettings(log_append_time=True))
    log = store.create()
    store.pass_time(5000)
    log.append_as_leader(batch(timestamps=[5, 7], compression=CompressionType.GZIP), 0)
    result = log.append_as_leader(batch(timestamps=[9]), 0)
    assert result.append_time_ms == START_MS + 5000
    headers = log_headers(log)  # checks the CRCs
    assert [(header.is_log_append_time, header.max_timestamp) for header in headers] == [(True, START_MS + 5000)] * 2
    data = log.segments.active.file().read(0, log.size)
    records = [
        record
        for position, header in iterate_headers(data)
        for record in read_records(data, position, header, size_max=1000, count_max=10)
    ]
    assert [(record.offset, record.timestamp) for record in records] == [(offset, START_MS + 5000) for offset in range(3)]


# -- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidRecord),
        (b"garbage", CorruptRecord),
        (batch(size=100)[:-1], CorruptRecord),
        (batch(size=100) + batch(size=100), InvalidRecord),
        (batch(size=2000), RecordTooLarge),
        (batch(producer_id=7, producer_epoch=1, sequence=9), OutOfOrderSequence),
        (batch(producer_id=7, producer_epoch=0, sequence=2), InvalidProducerEpoch),
        (batch(producer_id=8, sequence=5), InvalidTransactionState),
    ],
)
def test_a_refused_append_leaves_nothing_behind(data: bytes, error: type[LogError]) -> None:
    log = Store(LogSettings(message_bytes_max=1000)).create()
    log.append_as_leader(batch(2, producer_id=7, producer_epoch=1, sequence=0), 0)
    log.append_as_leader(batch(5, producer_id=8, sequence=0, transactional=True), 0)
    before = state_of(log)
    with pytest.raises(error):
        log.append_as_leader(data, 3)
    assert state_of(log) == before
    assert append(log).first_offset == 7


def test_a_leader_of_an_older_epoch_is_fenced() -> None:
    log = Store().create()
    append(log, leader_epoch=5)
    with pytest.raises(StaleLeaderEpoch, match="epoch 5, but the append came with epoch 4"):
        append(log, leader_epoch=4)
    append(log, leader_epoch=5)
    append(log, leader_epoch=7)
    assert log.epochs.latest_epoch == 7
    assert log.epochs.end_offset_for(5, log.log_end_offset) == (5, 2)


# -- producers ---------------------------------------------------------------------------------------------------------------


def test_a_resent_batch_is_answered_with_its_first_offsets() -> None:
    store = Store()
    log = store.create()
    append(log)
    sent = [batch(3, producer_id=7, sequence=3 * number) for number in range(6)]
    for data in sent:
        log.append_as_leader(data, 0)
    size = log.size
    assert log.append_as_leader(sent[-1], 0) == (16, 18, -1, True)
    assert log.append_as_leader(sent[1], 0) == (4, 6, -1, True)
    with pytest.raises(OutOfOrderSequence):
        log.append_as_leader(sent[0], 0)
    assert (log.size, log.log_end_offset) == (size, 19)
    store.commit(log)
    store.crash()
    assert store.log().append_as_leader(sent[-1], 0) == (16, 18, -1, True)


def test_sequences_of_the_coordinators_own_writes_are_not_checked() -> None:
    log = Store().create()
    for _ in range(2):
        log.append_as_leader(batch(producer_id=7, sequence=40), 0, AppendOrigin.COORDINATOR)
    assert log.log_end_offset == 2


@pytest.mark.parametrize("log_append_time", [False, True])
def test_producers_rebuilt_from_the_log_are_those_that_lived_through_it(log_append_time: bool) -> None:
    store = Store(LogSettings(log_append_time=log_append_time))
    log = store.create()
    store.pass_time(1000)
    log.append_as_leader(batch(2, producer_id=7, sequence=0, transactional=True), 0)
    log.append_as_leader(batch(1, producer_id=8, sequence=0, transactional=True), 0)
    end_transaction(log, 7, ControlType.ABORT)
    store.commit(log)
    lived = log.producers.describe()
    store.crash()
    assert store.log().producers.describe() == lived


# -- watermarks --------------------------------------------------------------------------------------------------------------


def test_the_high_watermark_never_moves_back_nor_past_the_end() -> None:
    log = Store().create()
    append(log, 5)
    log.advance_high_watermark(3)
    log.advance_high_watermark(2)
    assert log.high_watermark == 3
    log.advance_high_watermark(99)
    assert log.high_watermark == 5


def test_the_last_stable_offset_waits_for_every_open_transaction_and_its_marker() -> None:
    log = Store().create()
    append(log, 2)
    log.append_as_leader(batch(2, producer_id=7, sequence=0, transactional=True), 0)
    log.append_as_leader(batch(2, producer_id=8, sequence=0, transactional=True), 0)
    log.advance_high_watermark(6)
    assert log.last_stable_offset == 2
    end_transaction(log, 7, ControlType.COMMIT)
    assert log.last_stable_offset == 2  # its marker is above the high watermark and could be lost
    log.advance_high_watermark(7)
    assert log.last_stable_offset == 4
    end_transaction(log, 8, ControlType.ABORT)
    log.advance_high_watermark(8)
    assert log.last_stable_offset == 8


# Appending what a leader sent: its bytes and its gaps are kept, and what is there already or damaged is refused.


def test_a_follower_keeps_the_leaders_bytes_and_gaps() -> None:
    log = Store().create()
    data = batch(2, base_offset=3, leader_epoch=1) + batch(1, base_offset=9, leader_epoch=4)
    log.append_as_follower(data)
    assert log.segments.active.file().read(0, 1000) == data
    assert (log.log_end_offset, log.epochs.latest_epoch) == (10, 4)
    assert read_offsets(log) == [3, 4, 9]


def test_a_fetch_may_cut_its_last_batch_off() -> None:
    log = Store().create()
    whole, cut = batch(2, base_offset=0, leader_epoch=0), batch(3, base_offset=2, leader_epoch=0)
    for length in (1, 11, 12, 60, len(cut) - 1):
        log.append_as_follower(whole + cut[:length])
        assert log.log_end_offset == 2
        log = Store().create()
    with pytest.raises(InvalidRecord):
        log.append_as_follower(cut[:-1])


def test_a_follower_refuses_what_it_has_and_what_is_damaged() -> None:
    log = Store().create()
    log.append_as_follower(batch(5, base_offset=0, leader_epoch=0))
    before = state_of(log)
    with pytest.raises(InvalidRecord, match="offset 4 is below our log end 5"):
        log.append_as_follower(batch(2, base_offset=4, leader_epoch=0))
    with pytest.raises(InvalidRecord, match="offset 5 is below our log end 6"):
        log.append_as_follower(batch(1, base_offset=5, leader_epoch=0) * 2)
    with pytest.raises(CorruptRecord):
        log.append_as_follower(batch(1, base_offset=5, leader_epoch=0)[:-1] + b"x")
    assert state_of(log) == before


def test_a_follower_learns_of_producers_and_aborts() -> None:
    leader, follower = Store().create(), Store().create()
    leader.append_as_leader(batch(2, producer_id=7, sequence=0, transactional=True), 0)
    end_transaction(leader, 7, ControlType.ABORT)
    leader.append_as_leader(batch(1, producer_id=7, sequence=2, transactional=True), 0)
    follower.append_as_follower(leader.segments.active.file().read(0, leader.size))
    assert follower.producers.describe() == leader.producers.describe()
    assert list(follower.segments.active.transaction_index.entries()) == list(leader.segments.active.transaction_index.entries())


# The offsets that batches go into the log under: how far one write may reach, and what a leader's batches must look like.


COUNT_MAX = 2**31 - 1


def claiming(record_count: int, base_offset: int = 0, last_offset_delta: int | None = None) -> bytes:
    """A few bytes that say that they are so many records, compressed, so that nobody looks; the checksum is right."""
    delta = record_count - 1 if last_offset_delta is None else last_offset_delta
    body = bytes(10)
    checksummed = CHECKSUMMED_HEADER.pack(CompressionType.GZIP, delta, START_MS, START_MS, -1, -1, -1, record_count)
    crc = crc32c(body, crc32c(checksummed))
    return PREFIX_MAGIC_CRC.pack(base_offset, BATCH_LENGTH_MIN + len(body), 0, MAGIC, crc) + checksummed + body


def test_one_batch_may_claim_all_that_a_segment_can_index() -> None:
    log = Store().create()
    append(log)
    assert log.append_as_leader(claiming(COUNT_MAX), 0, AppendOrigin.COORDINATOR).last_offset == COUNT_MAX
    append(log)
    assert all(
        header.last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX
        for segment, header in zip(log.segments, log_headers(log), strict=False)
    )


@pytest.mark.parametrize("count", [3, 80])
def test_batches_that_no_index_can_span_are_refused_before_a_byte_is_written(count: int) -> None:
    """Written and then not indexed, their offsets were given out again, and the next start found two batches of one offset."""
    store = Store()
    log = store.create()
    append(log)
    with pytest.raises(InvalidRecord):
        log.append_as_leader(claiming(COUNT_MAX) * count, 0, AppendOrigin.COORDINATOR)
    assert append(log).first_offset == 1
    store.commit(log)
    store.crash()
    assert [header.base_offset for header in log_headers(store.log())] == [0, 1]


def test_offsets_end_before_they_no_longer_fit() -> None:
    log = Store().create()
    log.append_as_follower(batch(base_offset=LAST_OFFSET_MAX - 1))
    with pytest.raises(InvalidRecord):
        log.append_as_leader(claiming(2), 0)
    assert append(log).last_offset == LAST_OFFSET_MAX
    with pytest.raises(InvalidRecord):
        append(log)


def test_a_leaders_batch_that_ends_before_it_begins_is_refused() -> None:
    log = Store().create()
    with pytest.raises(InvalidRecord):
        log.append_as_follower(claiming(1, 5, last_offset_delta=-3))


def test_a_batch_that_was_written_but_cannot_be_noted_takes_the_log_offline() -> None:
    """Its offset must not be given out again: two batches of one offset are what a restart takes for corruption."""
    store = Store(LogSettings(index_interval_bytes=100))
    log = store.create()
    for _ in range(10):
        append(log)
    store.commit(log)
    assert store.wait(lambda done: store.directory.truncate(log, 5, done)) is None
    store.commit(log)
    store.disk.faults.fail("read", lambda path: path.endswith(".log"), times=1)
    for _ in range(2):
        with pytest.raises(LogOffline):
            append(log)
    store.crash("all")
    assert [header.base_offset for header in log_headers(store.log())] == [0, 1, 2, 3, 4, 5]


# When a log begins another segment: by size, by time, by full indexes, by offsets too far apart, and when asked to.


def test_rolls_when_a_batch_would_pass_segment_bytes() -> None:
    log = Store(SMALL).create()
    for _ in range(25):
        append(log)
    assert base_offsets(log) == [0, 10, 20]
    assert [segment.size for segment in log.segments] == [1000, 1000, 500]
    append(log, size=501)
    assert base_offsets(log)[-1] == 25


def test_a_batch_larger_than_a_segment_has_one_for_itself() -> None:
    log = Store(SMALL).create()
    append(log, size=5000)
    append(log)
    append(log, size=5000)
    assert base_offsets(log) == [0, 1, 2]
    assert read_offsets(log) == [0, 1, 2]


def test_rolls_by_the_time_between_records() -> None:
    log = Store(LogSettings(segment_ms=1000)).create()
    for late_ms in (0, 1000, 1001, 1500, 2002):
        log.append_as_leader(batch(timestamps=[START_MS + late_ms]), 0)
    assert base_offsets(log) == [0, 2, 4]


def test_rolls_by_the_clock_when_records_have_no_time() -> None:
    store = Store(LogSettings(segment_ms=1000))
    log = store.create()
    for _ in range(4):
        log.append_as_leader(batch(timestamps=[-1]), 0)
        store.pass_time(600)
    assert base_offsets(log) == [0, 2]


def test_an_old_segment_rolls_by_its_first_record_after_a_restart() -> None:
    store = Store(LogSettings(segment_ms=1000))
    store.create().append_as_leader(batch(timestamps=[START_MS]), 0)
    store.restart()
    store.log().append_as_leader(batch(timestamps=[START_MS + 1001]), 0)
    assert base_offsets(store.log()) == [0, 1]


def test_jitter_makes_logs_roll_apart_and_never_late() -> None:
    store = Store(LogSettings(segment_ms=100_000, segment_jitter_ms=50_000))
    rolled_at = []
    for partition in range(8):
        log = store.create(partition=partition)
        log.append_as_leader(batch(timestamps=[START_MS]), 0)
        late_ms = next(
            late_ms
            for late_ms in range(0, 200_000, 100)
            if log.append_as_leader(batch(timestamps=[START_MS + late_ms]), 0) and len(log.segments) == 2
        )
        rolled_at.append(late_ms)
    assert all(50_000 <= late_ms <= 100_100 for late_ms in rolled_at)
    assert len(set(rolled_at)) > 4


def test_rolls_when_an_index_is_full() -> None:
    log = Store(LogSettings(segment_index_bytes=48, index_interval_bytes=1)).create()
    for number in range(12):
        log.append_as_leader(batch(timestamps=[START_MS + number]), 0)
    assert len(log.segments) > 1
    for segment in log.segments:
        assert segment.offset_index.entry_count * 8 <= 48
        assert segment.time_index.entry_count * 12 <= 48
    assert read_offsets(log) == list(range(12))


@pytest.mark.parametrize("appended", [0, 1])
def test_a_followers_gap_too_wide_for_an_index_begins_a_segment(appended: int) -> None:
    store = Store(LogSettings(index_interval_bytes=1))
    log = store.create()
    for offset in range(appended):
        log.append_as_follower(batch(base_offset=offset, leader_epoch=0))
    far = 2**31 + 100
    log.append_as_follower(b"".join(batch(base_offset=far + number, leader_epoch=0) for number in range(4)))
    store.commit(log)
    log.roll()
    for segment in log.segments:
        indexed = [offset for offset, _ in segment.offset_index.entries()]
        indexed += [offset for _, offset in segment.time_index.entries()]
        assert all(0 <= offset - segment.base_offset < 2**31 for offset in indexed), (segment.base_offset, indexed)
    expected = [*range(appended), *range(far, far + 4)]
    assert read_offsets(log) == expected
    store.commit(log)
    store.crash()
    assert read_offsets(store.log()) == expected


def test_an_explicit_roll_of_an_empty_segment_does_nothing() -> None:
    log = Store().create()
    assert log.roll() is log.segments.active
    append(log)
    log.roll()
    log.roll()
    assert base_offsets(log) == [0, 1]


def test_the_old_segment_is_synced_before_the_new_one() -> None:
    """A crash between two syncs of one pass must not leave a hole in the log. (One syncfs has no between.)"""
    store = Store(SMALL, options=DirectoryOptions(syncfs_files_min=100))
    log = store.create()
    store.commit(log)
    for _ in range(25):
        append(log)
    synced: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log"):
            synced.append(path)

    store.disk.on_operation = note
    store.commit(log)
    assert synced == [segment.path for segment in log.segments]
