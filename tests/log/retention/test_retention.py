"""Which segments go, by time, by size and by order; what outlives a crash; and what must stay."""

import errno
from itertools import pairwise

import pytest

from tests.log.harness import BATCH_BYTES, START_MS, Store, append, batch, read_offsets
from tidelog.log.errors import OffsetOutOfRange
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import end_offset_for_epoch
from tidelog.log.retention.retention import LOGS_PER_TICK, SEGMENTS_PER_TICK, SEGMENTS_TAKEN_OUT_PER_TICK, retained_start_offset
from tidelog.log.settings import DirectoryOptions, LogSettings

SEGMENT_BYTES = 10 * BATCH_BYTES
FOREVER = LogSettings(segment_bytes=SEGMENT_BYTES, retention_ms=-1)
HOUR_MS = 3_600_000


def filled(store: Store, count: int, ms_between: int = 0) -> PartitionLog:
    """Ten batches of BATCH_BYTES in a segment, durable and visible."""
    log = store.create()
    for _ in range(count):
        append(log)
        store.pass_time(ms_between)
    store.commit(log)
    return log


def delete_records(store: Store, log: PartitionLog, offset: int) -> None:
    assert store.wait(lambda done: store.directory.delete_records(log, offset, done)) is None


# -- by time -----------------------------------------------------------------------------------------------------------------


def test_segments_go_when_their_newest_record_has_expired() -> None:
    store = Store(LogSettings(segment_bytes=SEGMENT_BYTES, retention_ms=HOUR_MS))
    log = filled(store, 35, ms_between=60_000)
    newest_of_first = START_MS + 9 * 60_000
    assert retained_start_offset(log, newest_of_first + HOUR_MS) == 0
    assert retained_start_offset(log, newest_of_first + HOUR_MS + 1) == 10
    assert retained_start_offset(log, newest_of_first + HOUR_MS + 20 * 60_000 + 1) == 30


def test_a_young_segment_protects_those_behind_it() -> None:
    store = Store(LogSettings(segment_bytes=SEGMENT_BYTES, retention_ms=HOUR_MS))
    log = store.create()
    for number in range(35):
        stamp = START_MS if 10 <= number < 20 else START_MS - 2 * HOUR_MS
        log.append_as_leader(batch(timestamps=[stamp], size=BATCH_BYTES), 0)
    store.commit(log)
    assert retained_start_offset(log, START_MS) == 10


def test_the_active_segment_is_rolled_and_goes_when_all_of_it_has_expired() -> None:
    store = Store(LogSettings(segment_bytes=SEGMENT_BYTES, retention_ms=HOUR_MS))
    log = filled(store, 15)
    now_ms = START_MS + HOUR_MS + 1
    assert retained_start_offset(log, now_ms) == 15
    assert log.segments.active.base_offset == 15
    log.raise_start(15)
    assert len(log.drop_segments_below(15)) == 2
    assert (log.size, log.log_start_offset, log.log_end_offset) == (0, 15, 15)
    assert append(log).first_offset == 15


def test_records_without_a_time_expire_by_the_files_age() -> None:
    store = Store(LogSettings(segment_bytes=SEGMENT_BYTES, retention_ms=HOUR_MS))
    log = store.create()
    for _ in range(15):
        log.append_as_leader(batch(timestamps=[-1], size=BATCH_BYTES), 0)
    store.commit(log)
    assert retained_start_offset(log, START_MS + HOUR_MS - 1000) == 0
    assert retained_start_offset(log, START_MS + HOUR_MS + 1000) == 15


@pytest.mark.parametrize("settings", [FOREVER, LogSettings(segment_bytes=SEGMENT_BYTES, compact=True, delete=False)])
def test_nothing_expires_where_nothing_may(settings: LogSettings) -> None:
    store = Store(settings)
    log = filled(store, 35)
    assert retained_start_offset(log, START_MS + 10**12) == 0


# -- by size -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retention_bytes", "start"), [(3500, 0), (2501, 0), (2500, 10), (1501, 10), (1500, 20), (1, 30)])
def test_segments_go_as_long_as_enough_is_left(retention_bytes: int, start: int) -> None:
    store = Store(LogSettings(segment_bytes=SEGMENT_BYTES, retention_ms=-1, retention_bytes=retention_bytes))
    assert retained_start_offset(filled(store, 35), START_MS) == start


# -- what must stay ----------------------------------------------------------------------------------------------------------


def test_nothing_at_or_above_the_high_watermark_goes() -> None:
    store = Store(LogSettings(segment_bytes=SEGMENT_BYTES, retention_ms=HOUR_MS))
    log = store.create()
    for _ in range(35):
        append(log)
    assert store.wait_durable(log) is None
    late_ms = START_MS + 2 * HOUR_MS
    for high_watermark, start in ((9, 0), (10, 10), (29, 20), (34, 30)):
        log.advance_high_watermark(high_watermark)
        assert retained_start_offset(log, late_ms) == start
    assert log.segments.active.size > 0, "an active segment that is not wholly visible is not rolled"


def test_nothing_goes_that_is_not_durable() -> None:
    store = Store(LogSettings(segment_bytes=SEGMENT_BYTES, retention_ms=HOUR_MS, flush_messages=10**6))
    log = store.create()
    for _ in range(35):
        append(log)
    log.advance_high_watermark(35)
    assert retained_start_offset(log, START_MS + 2 * HOUR_MS) == 0


# -- by order ----------------------------------------------------------------------------------------------------------------


def test_deleted_records_are_gone_for_readers_at_once_and_for_good_when_told() -> None:
    store = Store(FOREVER)
    log = filled(store, 35)
    told: list[object] = []
    store.directory.delete_records(log, 23, told.append)
    assert (told, log.log_start_offset) == ([], 23)
    assert read_offsets(log) == list(range(23, 35))
    store.scheduler.run_until(lambda: bool(told))
    assert told == [None]
    for keep in ("none", "all"):
        image = store.disk
        store.crash("none" if keep == "none" else "all")
        assert store.log().log_start_offset == 23
        assert read_offsets(store.log()) == list(range(23, 35))
        store.disk = image
        store.executor.disk = image


def test_before_the_start_is_durable_no_file_is_touched() -> None:
    store = Store(FOREVER)
    log = filled(store, 35)
    store.directory.delete_records(log, 23, lambda error: None)
    assert len(store.paths(".log")) == 4
    store.crash()
    assert store.log().log_start_offset in (0, 23)
    assert read_offsets(store.log()) == list(range(store.log().log_start_offset, 35))


def test_when_the_start_cannot_be_written_the_files_stay() -> None:
    store = Store(FOREVER)
    log = filled(store, 35)
    store.disk.faults.fail("write", lambda path: "log-start-offset" in path, errno.ENOSPC, times=1)
    error = store.wait(lambda done: store.directory.delete_records(log, 23, done))
    assert isinstance(error, OSError)
    assert len(store.paths(".log")) == 4


def test_records_above_the_high_watermark_cannot_be_deleted() -> None:
    store = Store(FOREVER)
    log = filled(store, 5)
    append(log)
    with pytest.raises(OffsetOutOfRange):
        store.directory.delete_records(log, 6, lambda error: None)
    assert log.log_start_offset == 0


def test_deleting_again_or_less_changes_nothing() -> None:
    store = Store(FOREVER)
    log = filled(store, 35)
    delete_records(store, log, 23)
    delete_records(store, log, 5)
    delete_records(store, log, 23)
    assert log.log_start_offset == 23


def test_everything_can_be_deleted() -> None:
    store = Store(FOREVER)
    log = filled(store, 35)
    delete_records(store, log, 35)
    assert read_offsets(log) == []
    assert append(log).first_offset == 35
    store.commit(log)
    store.crash()
    assert read_offsets(store.log()) == [35]


def test_epochs_follow_the_log_start() -> None:
    store = Store(FOREVER)
    log = store.create()
    for number in range(30):
        append(log, leader_epoch=number // 10)
    store.commit(log)
    delete_records(store, log, 15)
    assert end_offset_for_epoch(log, 1) == (1, 20)
    assert end_offset_for_epoch(log, 0) == (-1, -1) or end_offset_for_epoch(log, 0)[1] <= 15


def test_producers_outlive_their_batches() -> None:
    """A producer whose batches are all deleted must still not be able to write one twice."""
    store = Store(FOREVER)
    log = store.create()
    sent = batch(producer_id=7, sequence=0, size=BATCH_BYTES)
    log.append_as_leader(sent, 0)
    for _ in range(34):
        append(log)
    store.commit(log)
    delete_records(store, log, 35)
    store.settle(120_000)
    for stop in (store.crash, store.restart, store.crash):
        assert store.log().append_as_leader(sent, 0).is_duplicate
        stop()
    assert store.log().append_as_leader(sent, 0).is_duplicate


def test_renamed_files_are_not_part_of_the_log() -> None:
    store = Store(FOREVER)
    log = filled(store, 35)
    delete_records(store, log, 23)
    deleted = [path for path in store.paths(".deleted") if ".log." in path]
    assert [path.rpartition("/")[2][:20] for path in deleted] == [f"{0:020d}", f"{10:020d}"]
    assert [segment.base_offset for segment in log.segments] == [20, 30]
    store.restart()
    assert read_offsets(store.log()) == list(range(23, 35))


def test_without_room_to_roll_the_closed_segments_go_all_the_same() -> None:
    """They are what makes room."""
    store = Store(LogSettings(segment_bytes=SEGMENT_BYTES, retention_ms=HOUR_MS))
    log = filled(store, 35)
    store.disk.faults.fail("names", lambda path: path.endswith(".log"), errno.ENOSPC)
    assert retained_start_offset(log, START_MS + 2 * HOUR_MS) == 30


def test_committed_readers_are_never_sent_below_the_log_start() -> None:
    store = Store(FOREVER)
    log = store.create()
    log.append_as_leader(batch(producer_id=7, transactional=True), 0)
    for _ in range(9):
        append(log)
    store.commit(log)
    assert log.last_stable_offset == 0
    delete_records(store, log, 8)
    assert log.last_stable_offset == 8


# Retention over all logs of a directory: in slices, at its interval, one log's trouble its own.


INTERVAL_MS = 10_000
SETTINGS = LogSettings(segment_bytes=2 * BATCH_BYTES, retention_ms=5_000, file_delete_delay_ms=1_000)
OPTIONS = DirectoryOptions(retention_check_interval_ms=INTERVAL_MS)


def fill(store: Store, *partitions: int, batches: int = 5) -> None:
    for partition in partitions:
        log = store.create(partition=partition)
        for _ in range(batches):
            append(log)
    store.commit()


def test_a_sweep_comes_at_its_interval_and_removes_the_files() -> None:
    store = Store(SETTINGS, options=OPTIONS)
    fill(store, 0)
    store.settle(INTERVAL_MS - 1000)
    assert store.log().log_start_offset == 0
    store.settle(2000)
    assert store.log().log_start_offset == 5
    assert [path[-7:] for path in store.paths(".log")] == ["005.log"]
    store.settle(2000)
    assert store.paths(".deleted") == []
    assert append(store.log()).first_offset == 5


def test_what_expires_later_goes_with_a_later_sweep() -> None:
    store = Store(SETTINGS, options=OPTIONS)
    fill(store, 0)
    store.settle(INTERVAL_MS + 1000)
    append(store.log())
    append(store.log())
    store.commit()
    store.settle(INTERVAL_MS)
    assert store.log().log_start_offset == 7
    store.crash()
    assert (store.log().log_start_offset, store.log().log_end_offset) == (7, 7)


def test_many_logs_are_swept_in_slices() -> None:
    store = Store(SETTINGS, options=OPTIONS)
    count = LOGS_PER_TICK + 10
    fill(store, *range(count), batches=1)
    store.pass_time(INTERVAL_MS)
    store.directory.retention.tick()
    assert sum(log.log_start_offset > 0 for log in store.directory.logs.values()) == LOGS_PER_TICK
    store.directory.retention.tick()
    assert sum(log.log_start_offset > 0 for log in store.directory.logs.values()) == count


def test_many_segments_are_expired_and_taken_out_in_slices() -> None:
    store = Store(SETTINGS, options=OPTIONS)
    count = 3 * SEGMENTS_PER_TICK
    fill(store, 0, batches=2 * count)
    fill(store, 1)
    store.pass_time(INTERVAL_MS)
    log, retention = store.log(), store.directory.retention
    assert len(log.segments) == count
    starts, left = [], []
    while len(log.segments) > 1:
        retention.tick()
        starts.append(log.log_start_offset)
        # What the tick submitted, and no other tick.
        store.scheduler.run_until(lambda: store.directory.log_starts.is_idle)
        left.append(len(log.segments))
    assert starts[0] == 2 * SEGMENTS_PER_TICK
    # All had expired, so the last one, which was active, was rolled.
    assert max(before - after for before, after in pairwise([count + 1, *left])) == SEGMENTS_TAKEN_OUT_PER_TICK
    for _ in range(10):
        retention.tick()
        store.scheduler.run_until(lambda: store.directory.log_starts.is_idle)
    assert [len(log.segments) for log in store.directory.logs.values()] == [1, 1]
    assert log.log_start_offset == log.log_end_offset
    # Of the snapshots at each roll the newest is left.
    assert [path[-24:] for path in store.paths(".snapshot") if "/orders-0/" in path] == [f"{log.log_end_offset:015}.snapshot"]


def test_one_logs_trouble_is_its_own() -> None:
    store = Store(SETTINGS, options=OPTIONS)
    fill(store, 0, 1, 2)
    store.disk.faults.fail("names", lambda path: "/orders-1/" in path and path.endswith(".log"), errno.EIO)
    store.settle(INTERVAL_MS + 2000)
    assert [store.log(partition=partition).log_start_offset for partition in (0, 2)] == [5, 5]
    assert store.log(partition=1).offline_reason is not None


def test_an_offline_log_is_left_alone() -> None:
    store = Store(SETTINGS, options=OPTIONS)
    fill(store, 0)
    store.log().go_offline("broken")
    store.settle(INTERVAL_MS + 2000)
    assert len(store.paths(".log")) == 3


def test_segments_that_a_crash_brought_back_are_taken_out_again() -> None:
    store = Store(LogSettings(segment_bytes=2 * BATCH_BYTES, retention_ms=-1), options=OPTIONS)
    fill(store, 0)
    store.log().raise_start(4)  # as if the rest of a deletion had been lost
    store.settle(INTERVAL_MS + 1000)
    assert [path[-7:] for path in store.paths(".log")] == ["004.log"]
    assert read_offsets(store.log()) == [4]
