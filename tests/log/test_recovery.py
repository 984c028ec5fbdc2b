"""Opening a log after a crash: what was durable is there, and no more is read than has to be.

A start may itself be cut short at any operation, and is repeated. The clean stop is test_clean_start.py.
"""

import errno

import pytest

from simulation.disk import Crashed
from tests.log.disks import write_file
from tests.log.harness import SMALL, Store, append, read_offsets
from tests.log.recovery_harness import LOG, check_whole, filled
from tidelog.log import names
from tidelog.log.errors import LogOffline
from tidelog.log.reading import end_offset_for_epoch
from tidelog.log.settings import LogSettings

# -- what is there -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("keep", ["none", "all"])
def test_a_crash_keeps_what_was_durable(keep: str, checkpointed: bool) -> None:
    store = Store(SMALL)
    log = filled(store)
    if checkpointed:
        store.checkpoint(log)
    append(log, leader_epoch=1)
    store.crash("all" if keep == "all" else "none")
    check_whole(store.log(), 26 if keep == "all" else 25)
    assert end_offset_for_epoch(store.log(), 0) == (0, 13)


def test_recovery_reads_only_from_the_recovery_point_on() -> None:
    store = Store(SMALL)
    log = filled(store, 45)
    store.checkpoint(log)
    for _ in range(20):
        append(log, leader_epoch=1)
    store.commit(log)
    store.lose_power()
    reads = store.count_reads()
    store.open()
    assert {path for path in reads if path.endswith(".log")} == {f"{LOG}/{base:020d}.log" for base in (40, 50, 60)}
    check_whole(store.log(), 65)


def test_what_was_recovered_is_durable_before_it_counts() -> None:
    """The page cache survived a kill: without a sync at the end of recovery a power cut now would take it."""
    store = Store(SMALL)
    log = filled(store)
    append(log, leader_epoch=1)
    store.crash("all")
    assert (store.log().log_end_offset, store.log().durable.offset) == (26, 26)
    store.crash("none")
    check_whole(store.log(), 26)


def test_after_a_failed_sync_the_start_looks_at_the_disk_itself() -> None:
    """The cache still holds what the sync lost, and calls it clean."""
    store = Store(SMALL)
    log = filled(store)
    append(log, leader_epoch=1)
    store.disk.faults.fail("sync", lambda path: path == log.segments.active.path, errno.EIO, times=1)
    assert isinstance(store.wait_durable(log), LogOffline)
    assert store.disk.exists(f"{LOG}/{names.FAILED_SYNC_MARK}")
    store.executor.crash()
    store.disk = store.disk.crash_image(keep="all")
    store.executor.disk = store.disk
    store.open()
    log = store.log()
    assert not store.disk.exists(f"{LOG}/{names.FAILED_SYNC_MARK}")
    end_offset = log.log_end_offset
    store.crash()
    check_whole(store.log(), end_offset)


def test_a_start_that_crashes_can_be_repeated_from_any_operation() -> None:
    store = Store(SMALL)
    log = filled(store)
    append(log, leader_epoch=1)
    store.lose_power("some")
    before = store.disk
    operations = 0
    while True:
        operations += 1
        store.disk = before.crash_image(keep="all")
        store.executor.disk = store.disk
        if not crashes_at(store, operations):
            break
        store.crash("some")
        assert store.log().log_end_offset in (25, 26)
        check_whole(store.log(), store.log().log_end_offset)
    assert operations > 5


def crashes_at(store: Store, operation_number: int) -> bool:
    def die(operation: str, path: str) -> None:
        if store.disk.operation_count == operation_number:
            raise Crashed

    store.disk.on_operation = die
    try:
        store.open()
    except Crashed:
        store.executor.crash()
        return True
    return False


# -- what is not there any more ----------------------------------------------------------------------------------------------


def test_segments_below_the_log_start_do_not_come_back() -> None:
    store = Store(SMALL)
    log = filled(store, 45)
    assert store.wait(lambda done: store.directory.delete_records(log, 27, done)) is None
    store.crash()
    log = store.log()
    assert (log.log_start_offset, log.segments[0].base_offset) == (27, 20)
    assert read_offsets(log) == list(range(27, 45))
    assert store.paths(".log")[0].endswith("00020.log")


def test_a_relaxed_log_that_lost_more_than_was_deleted_begins_anew() -> None:
    store = Store(LogSettings(flush_messages=1_000_000))
    log = store.create()
    store.commit(log)
    for _ in range(10):
        append(log)
    log.advance_high_watermark(10)
    assert store.wait(lambda done: store.directory.delete_records(log, 8, done)) is None
    store.crash()
    log = store.log()
    assert (log.log_start_offset, log.log_end_offset) == (8, 8)
    assert append(log).first_offset == 8
    store.commit(log)
    store.crash()
    assert read_offsets(store.log()) == [8]


def test_files_on_their_way_out_and_half_made_are_removed() -> None:
    store = Store(SMALL)
    filled(store)
    store.lose_power()
    leftovers = [
        "00000000000000000003.log.deleted",
        "00000000000000000003.index.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.timeindex.cleaned",
        "00000000000000000010.index.swap",  # without its log: the swap was never decided
        "00000000000000000777.index",  # without its log: an index of a segment that is gone
        "00000000000000000777.txnindex",
        "leader-epoch-checkpoint.tmp",
    ]
    for name in leftovers:
        write_file(store.disk, f"{LOG}/{name}", b"leftover")
    store.open()
    assert not set(leftovers) & set(store.disk.list_directory(LOG))
    check_whole(store.log(), 25)
