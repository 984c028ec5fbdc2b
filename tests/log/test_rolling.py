"""When a log begins another segment: by size, by time, by full indexes, by offsets too far apart, and when asked to."""

import pytest

from tests.log.harness import SMALL, START_MS, Store, append, base_offsets, batch, read_offsets
from tidelog.log.directory_options import DirectoryOptions
from tidelog.log.settings import LogSettings


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
