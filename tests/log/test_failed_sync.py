"""The mark that a failed sync leaves: durable itself, and the reason to look at the disk below the cache."""

import errno

import pytest

from tests.log.disks import DIRECTORY, read_file, simulated_disk, write_file
from tests.log.harness import Store, append, read_offsets
from tidelog.log import names
from tidelog.log.directory_options import DirectoryOptions
from tidelog.log.failed_sync import (
    REASON_BYTES_MAX,
    drop_cached_pages,
    has_failed_sync_mark,
    leave_failed_sync_mark,
    remove_failed_sync_mark,
)


def test_a_mark_survives_a_power_cut_and_says_why() -> None:
    disk = simulated_disk()
    assert not has_failed_sync_mark(disk, DIRECTORY)
    leave_failed_sync_mark(disk, DIRECTORY, "syncing failed: told so")
    image = disk.crash_image(keep="none")
    assert has_failed_sync_mark(image, DIRECTORY)
    assert read_file(image, f"{DIRECTORY}/{names.FAILED_SYNC_MARK}") == b"syncing failed: told so"
    remove_failed_sync_mark(image, DIRECTORY)
    assert not has_failed_sync_mark(image, DIRECTORY)


def test_a_long_reason_is_cut() -> None:
    disk = simulated_disk()
    leave_failed_sync_mark(disk, DIRECTORY, "x" * 10_000)
    assert disk.file_size(f"{DIRECTORY}/{names.FAILED_SYNC_MARK}") == REASON_BYTES_MAX


def test_dropping_the_cache_shows_what_the_disk_has() -> None:
    disk = simulated_disk()
    path = f"{DIRECTORY}/file"
    write_file(disk, path, b"old")
    disk.open(path, "write").sync()
    disk.sync_directory(DIRECTORY)
    disk.open(path, "write").write(0, [b"new"])
    disk.faults.fail("sync", lambda struck: struck == path, errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        disk.open(path, "write").sync()
    assert read_file(disk, path) == b"new", "the cache calls the lost page clean"
    drop_cached_pages(disk, DIRECTORY)
    assert read_file(disk, path) == b"old"


def test_a_restart_after_a_failed_sync_serves_only_what_the_disk_has() -> None:
    store = Store(options=DirectoryOptions(syncfs_files_min=1000))
    log = store.create()
    append(log)
    store.commit(log)
    append(log)
    store.disk.faults.fail("sync", lambda path: path == log.segments.active.path, errno.EIO, times=1)
    assert store.wait_durable(log) is not None
    assert has_failed_sync_mark(store.disk, log.directory)
    store.crash("all")
    assert read_offsets(store.log()) == [0]
    assert not has_failed_sync_mark(store.disk, log.directory)
    store.crash("none")
    assert read_offsets(store.log()) == [0]


def test_a_disk_that_takes_not_even_the_mark_is_reported() -> None:
    store = Store(options=DirectoryOptions(syncfs_files_min=1000))
    log = store.create()
    store.commit(log)
    append(log)
    store.disk.faults.fail("sync", lambda path: "orders-0" in path, errno.EIO)
    assert store.wait_durable(log) is not None
    assert store.facts("failed_sync_mark_not_written")
    assert log.offline_reason is not None


def assert_the_next_start_shows_only_what_the_disk_has(store: Store) -> None:
    store.disk.faults.clear()
    store.crash("all")
    assert read_offsets(store.log()) == [0]
    store.crash("none")
    assert read_offsets(store.log()) == [0]


def test_without_a_mark_a_restart_serves_only_what_the_disk_has() -> None:
    store = Store(options=DirectoryOptions(syncfs_files_min=1000))
    log = store.create()
    append(log)
    store.commit(log)
    append(log)
    store.disk.faults.fail("sync", lambda path: path == log.segments.active.path, errno.EIO)
    store.disk.faults.fail("names", lambda path: path.endswith(names.FAILED_SYNC_MARK), errno.EIO)
    assert store.wait_durable(log) is not None
    assert not has_failed_sync_mark(store.disk, log.directory)
    assert_the_next_start_shows_only_what_the_disk_has(store)


def test_a_process_killed_before_it_hears_of_a_failed_sync() -> None:
    store = Store(options=DirectoryOptions(syncfs_files_min=1000))
    log = store.create()
    append(log)
    store.commit(log)
    append(log)
    rule = store.disk.faults.fail("sync", lambda path: path == log.segments.active.path, errno.EIO, times=1)
    store.directory.kick()
    store.scheduler.run_until(lambda: rule not in store.disk.faults.rules)
    assert log.offline_reason is None
    assert not has_failed_sync_mark(store.disk, log.directory)
    assert_the_next_start_shows_only_what_the_disk_has(store)
