"""Durable marks reach their journal within a second, one flush at a time, and a disk that cannot hold them is given up."""

import errno

import pytest

from tests.log.harness import PATH, TOPIC_ID, Store, append
from tidelog.log import names
from tidelog.log.durable_marks import DurableMarks
from tidelog.log.errors import LogOffline
from tidelog.log.mark_flusher import FLUSH_MS
from tidelog.log.partition_log import PartitionLog

JOURNAL = f"{PATH}/{names.DURABLE_MARKS}"


def durable_mark(store: Store) -> int:
    """What a power cut now would leave of the mark."""
    return DurableMarks.open(store.disk.crash_image(keep="none"), PATH).mark("orders-0", TOPIC_ID) or 0


def committed(store: Store) -> PartitionLog:
    log = store.create()
    append(log)
    store.commit(log)
    return log


def test_marks_wait_half_a_second_and_then_go_together() -> None:
    store = Store()
    log = committed(store)
    store.pass_time(FLUSH_MS - 100)
    store.directory.tick()
    store.scheduler.run_all()
    assert durable_mark(store) == 0
    append(log)
    store.commit(log)
    store.pass_time(100)
    store.directory.tick()
    store.scheduler.run_all()
    assert durable_mark(store) == 2
    assert store.directory.marks.is_idle


def test_a_flush_covers_what_was_recorded_before_it() -> None:
    store = Store()
    log = committed(store)
    first: list[int] = []
    second: list[int] = []
    store.directory.marks.flush(lambda error: first.append(durable_mark(store)))
    append(log)
    store.commit(log)
    store.directory.marks.flush(lambda error: second.append(durable_mark(store)))
    store.scheduler.run_until(lambda: bool(second))
    assert first[0] >= 1
    assert second == [2]


def test_nothing_to_flush_is_told_at_once() -> None:
    store = Store()
    committed(store)
    store.settle(1000)
    told: list[object] = []
    store.directory.marks.flush(told.append)
    assert told == [None]


def test_a_failed_flush_is_tried_once_more_with_a_new_file() -> None:
    store = Store()
    committed(store)
    store.disk.faults.fail("sync", lambda path: path.startswith(JOURNAL), errno.EIO, times=1)
    assert store.wait(store.directory.marks.flush) is None
    assert durable_mark(store) == 1
    assert store.facts("durable_marks_not_written")[0]["failures"] == 1
    assert store.log().offline_reason is None


def test_a_journal_that_cannot_be_written_takes_the_whole_directory_offline() -> None:
    store = Store()
    log, other = committed(store), store.create("other")
    store.disk.faults.fail("sync", lambda path: path.startswith(JOURNAL), errno.EIO)
    assert isinstance(store.wait(store.directory.marks.flush), OSError)
    assert "is broken" in str(log.offline_reason)
    assert other.offline_reason is not None
    assert isinstance(store.wait_durable(other), LogOffline)
    store.scheduler.run_all()
    # Whoever stops the broker need not wait for it, and hears of the disk.
    assert store.directory.is_idle
    with pytest.raises(OSError, match="Input/output error"):
        store.directory.close()


def test_whoever_waits_behind_the_last_failure_hears_of_it_too() -> None:
    store = Store()
    committed(store)
    store.disk.faults.fail("sync", lambda path: path.startswith(JOURNAL), errno.EIO)
    told: list[BaseException | None] = []
    store.directory.marks.flush(told.append)
    store.directory.marks.flush(told.append)
    store.settle(1000)
    assert [type(error) for error in told] == [OSError, OSError]


def test_a_full_disk_only_delays_the_marks() -> None:
    store = Store()
    log = committed(store)
    rule = store.disk.faults.fail("write", lambda path: path.startswith(JOURNAL), errno.ENOSPC)
    error = store.wait(store.directory.marks.flush)
    assert isinstance(error, OSError)
    assert log.offline_reason is None
    store.disk.faults.lift(rule)
    store.settle(1000)
    assert durable_mark(store) == 1


def test_a_lowered_mark_is_durable_when_told() -> None:
    store = Store()
    log = committed(store)
    assert store.wait(store.directory.marks.flush) is None
    store.directory.marks.lower(log, 0)
    assert store.wait(store.directory.marks.flush) is None
    assert durable_mark(store) == 0
