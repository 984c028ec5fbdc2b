"""Checking a segment batch by batch: where it starts, what it rebuilds, and each kind of damage."""

import struct

import pytest

from tests.log.harness import BATCH_BYTES, START_MS, Store, append, batch, end_transaction
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.partition_log import PartitionLog
from tidelog.log.producers.producer_state import ProducerState
from tidelog.log.recovery.log_recovery import Damage, SegmentCheck, find_start
from tidelog.log.segments.segment import LogSegment
from tidelog.log.settings import LogSettings
from tidelog.records.control import ControlType
from tidelog.records.header import CRC_POSITION, batch_crc

SETTINGS = LogSettings(index_interval_bytes=2 * BATCH_BYTES)


def filled(store: Store) -> PartitionLog:
    """Twenty batches of one record, one per second, the last ten in epoch 3; saved, so that its files have it all."""
    log = store.create()
    for number in range(20):
        append(log, leader_epoch=3 if number >= 10 else 1)
        store.pass_time(1000)
    store.checkpoint(log)
    return log


def fresh(log: PartitionLog, size: int | None = None) -> LogSegment:
    """The log's segment as a start finds it: nothing known but its size."""
    environment = log.environment
    active = log.segments.active
    return LogSegment(
        environment.disk, environment.handles, environment.index_cache, log.directory, 0, active.size if size is None else size, 0
    )


def check(
    log: PartitionLog, segment: LogSegment, trusted_below: int = 0, position: int = 0
) -> tuple[SegmentCheck, Damage | None]:
    epochs = LeaderEpochs(log.environment.disk, f"{log.directory}/unused")
    one = SegmentCheck(SETTINGS, ProducerState(1000), epochs, trusted_below)
    return one, one.run(segment, position)


def test_a_sound_segment_gets_the_indexes_that_it_had() -> None:
    log = filled(Store(SETTINGS))
    known = log.segments.active
    entries = list(known.offset_index.entries())
    assert len(entries) == 6
    segment = fresh(log)
    one, damage = check(log, segment)
    assert damage is None
    assert (one.next_offset, segment.size) == (20, known.size)
    assert list(segment.offset_index.entries()) == entries
    assert segment.max_timestamp == known.max_timestamp == START_MS + 19_000
    assert segment.max_timestamp_offset == 19


def test_epochs_and_producers_are_rebuilt() -> None:
    store = Store(SETTINGS)
    log = filled(store)
    log.append_as_leader(batch(2, producer_id=7, sequence=0, transactional=True), 3)
    end_transaction(log, 7, ControlType.ABORT, leader_epoch=3)
    log.append_as_leader(batch(2, producer_id=7, sequence=2, transactional=True), 4)
    segment = fresh(log)
    epochs = LeaderEpochs(store.disk, f"{log.directory}/unused")
    producers = ProducerState(1000)
    assert SegmentCheck(SETTINGS, producers, epochs, 0).run(segment, 0) is None
    assert producers.describe() == log.producers.describe()
    assert [epochs.end_offset_for(epoch, 25) for epoch in (1, 3, 4)] == [(1, 10), (3, 23), (4, 25)]
    assert list(segment.transaction_index.entries()) == list(log.segments.active.transaction_index.entries())


def damaged(store: Store, number: int, change: bytes, at: int, *, fix_crc: bool) -> PartitionLog:
    log = filled(store)
    position = number * BATCH_BYTES
    file = log.segments.active.file()
    data = bytearray(file.read(position, BATCH_BYTES))
    data[at : at + len(change)] = change
    if fix_crc:
        struct.pack_into(">I", data, CRC_POSITION, batch_crc(data, 0, BATCH_BYTES))
    file.write(position, [data])
    return log


@pytest.mark.parametrize(
    ("at", "change", "fix_crc", "reason"),
    [
        (80, b"\xff", False, "CRC"),
        (16, b"\x01", False, "magic"),
        (8, struct.pack(">i", 10**6), False, "takes"),
        (8, bytes(4), False, "length"),
        (0, struct.pack(">q", 3), False, "offsets 3 to 3 after 6"),
        (23, struct.pack(">i", -1), True, "offsets 7 to 6"),
    ],
)
def test_each_kind_of_damage_is_found_where_it_is(at: int, change: bytes, fix_crc: bool, reason: str) -> None:
    log = damaged(Store(SETTINGS), 7, change, at, fix_crc=fix_crc)
    segment = fresh(log)
    one, damage = check(log, segment)
    assert damage is not None
    assert (damage.position, damage.bytes_after) == (700, 1300)
    assert reason in damage.reason
    assert (segment.size, one.next_offset) == (700, 7)
    assert all(offset < 7 for offset, _ in segment.offset_index.entries())


def test_a_marker_that_makes_no_sense_is_damage() -> None:
    store = Store(SETTINGS)
    log = filled(store)
    position = log.segments.active.size
    end_transaction(log, 7, ControlType.COMMIT, leader_epoch=3)
    file = log.segments.active.file()
    data = bytearray(file.read(position, 1000))
    data[68] = 99  # the record's key says what kind of marker it is
    struct.pack_into(">I", data, CRC_POSITION, batch_crc(data, 0, len(data)))
    file.write(position, [data])
    _, damage = check(log, fresh(log))
    assert damage is not None
    assert damage.position == position


def test_the_start_is_as_near_to_the_recovery_point_as_the_index_reaches() -> None:
    for recovery_point in range(1, 21):
        log = filled(Store(SETTINGS))
        entries = list(log.segments.active.offset_index.entries())
        segment = fresh(log)
        start = find_start(segment, recovery_point)
        below = [position for offset, position in entries if offset < recovery_point]
        assert start == (below[-1] if below else 0, recovery_point)
        one, damage = check(log, segment, recovery_point, start.position)
        assert (damage, one.next_offset, segment.size) == (None, 20, 2000)
        assert segment.max_timestamp == START_MS + 19_000
        for offset in range(20):
            found = segment.find_batch(offset)
            assert found is not None
            assert found[0] == offset * BATCH_BYTES


@pytest.mark.parametrize("content", [b"12345", struct.pack(">ii", 9, 333), struct.pack(">iiii", 9, 900, 5, 500)])
def test_an_index_that_cannot_be_trusted_makes_the_check_begin_at_the_beginning(content: bytes) -> None:
    log = filled(Store(SETTINGS))
    file = log.environment.disk.open(f"{log.directory}/{0:020d}.index", "write")
    file.truncate(0)
    file.write(0, [content])
    segment = fresh(log)
    assert find_start(segment, 20) == (0, 0)


def test_a_recovery_point_before_the_segment_trusts_nothing_in_it() -> None:
    log = filled(Store(SETTINGS))
    segment = fresh(log)
    assert find_start(segment, 0) == (0, 0)
