"""Appending as a leader: what the log gives out and what it refuses, and the watermarks."""

import pytest

from tests.log.harness import START_MS, Store, append, batch, end_transaction, log_headers, read_offsets, state_of
from tidelog.log.append_check import AppendOrigin
from tidelog.log.errors import (
    CorruptRecord,
    DuplicateSequence,
    FencedLeaderEpoch,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    LogError,
    OutOfOrderSequence,
    RecordTooLarge,
)
from tidelog.log.settings import LogSettings
from tidelog.records.batch import read_records
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType
from tidelog.records.header import iterate_headers

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
    assert log.append_as_leader(batch(2) + batch(5) + batch(1), 0) == (1, 8, -1, False)
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
    result = log.append_as_leader(batch(timestamps=[5, 7], compression=CompressionType.GZIP) + batch(timestamps=[9]), 0)
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
        (batch(size=100) + batch(size=100)[:-1], CorruptRecord),
        (batch(size=2000), RecordTooLarge),
        (batch(size=100) + batch(size=2000), RecordTooLarge),
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
    with pytest.raises(FencedLeaderEpoch, match="epoch 5, but the append came with epoch 4"):
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
    with pytest.raises(DuplicateSequence):
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
