"""Retention over all logs of a directory: in slices, at its interval, one log's trouble its own."""

import errno
from itertools import pairwise

from tests.log.harness import BATCH_BYTES, Store, append, batch, read_offsets
from tidelog.log.directory_options import DirectoryOptions
from tidelog.log.retention_sweep import LOGS_PER_TICK, SEGMENTS_PER_TICK, SEGMENTS_TAKEN_OUT_PER_TICK
from tidelog.log.settings import LogSettings

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
    store.log().log_start_offset = 4  # as if the rest of a deletion had been lost
    store.settle(INTERVAL_MS + 1000)
    assert [path[-7:] for path in store.paths(".log")] == ["004.log"]
    assert read_offsets(store.log()) == [4]


def test_producers_expire() -> None:
    store = Store(LogSettings(producer_id_expiration_ms=5_000), options=OPTIONS)
    log = store.create()
    log.append_as_leader(batch(producer_id=7, sequence=0), 0)
    log.append_as_leader(batch(producer_id=8, sequence=0, transactional=True), 0)
    store.commit()
    store.settle(INTERVAL_MS + 1000)
    assert log.producers.entry(7) is None
    assert log.producers.entry(8) is not None, "its transaction is open"
