"""What left its log is removed when its time has come, off the loop, and a failure loses nothing."""

import errno

from tests.log.disks import write_file
from tests.log.harness import BATCH_BYTES, PATH, Store, append
from tidelog.log.retention.deletion_queue import REMOVALS_PER_JOB_MAX, remove_tree
from tidelog.log.settings import LogSettings

SMALL = LogSettings(segment_bytes=BATCH_BYTES, file_delete_delay_ms=1000, index_interval_bytes=1)


def deleted(store: Store) -> list[str]:
    return store.paths(".deleted")


def with_deleted_segments(store: Store, count: int) -> None:
    log = store.create()
    for _ in range(count + 1):
        append(log)
    store.commit(log)
    assert store.wait(lambda done: store.directory.delete_records(log, count, done)) is None


def test_files_stay_for_their_delay_and_then_go() -> None:
    store = Store(SMALL)
    with_deleted_segments(store, 3)
    assert len([path for path in deleted(store) if path.endswith(".log.deleted")]) == 3
    store.pass_time(900)
    store.directory.deletions.tick()
    store.scheduler.run_all()
    assert len(store.directory.deletions) == 3
    store.pass_time(200)
    store.directory.deletions.tick()
    assert not store.directory.deletions.is_idle
    assert deleted(store), "removing happens on the executor"
    store.scheduler.run_all()
    assert deleted(store) == []
    assert store.directory.deletions.is_idle


def test_a_long_delay_does_not_hold_up_a_short_one() -> None:
    store = Store(SMALL)
    for name in ("slow", "fast"):
        store.disk.make_directory(f"{PATH}/{name}")
    store.directory.deletions.add_directory(f"{PATH}/slow", 100_000)
    store.directory.deletions.add_directory(f"{PATH}/fast", 0)
    store.settle(200)
    assert store.disk.exists(f"{PATH}/slow")
    assert not store.disk.exists(f"{PATH}/fast")


def test_jobs_are_small() -> None:
    store = Store(SMALL)
    count = REMOVALS_PER_JOB_MAX + 5
    for number in range(count):
        store.disk.make_directory(f"{PATH}/{number}")
        store.directory.deletions.add_directory(f"{PATH}/{number}", 0)
    store.directory.deletions.tick()
    store.scheduler.run_all()
    assert len(store.directory.deletions) == 5


def test_a_failed_removal_is_reported_and_left_to_the_next_start() -> None:
    store = Store(SMALL)
    with_deleted_segments(store, 2)
    rule = store.disk.faults.fail("names", lambda path: path.endswith(".deleted"), errno.EIO)
    store.settle(2000)
    assert store.facts("deletion_failed")
    assert store.directory.deletions.is_idle
    store.disk.faults.lift(rule)
    store.restart()
    assert deleted(store) == []


def test_a_partitions_directory_is_removed_with_all_its_files() -> None:
    store = Store(SMALL)
    directory = f"{PATH}/orders-0.0123456789abcdef0123456789abcdef-delete"
    store.disk.make_directory(directory)
    for name in ("a", "b"):
        write_file(store.disk, f"{directory}/{name}", b"x")
    remove_tree(store.disk, directory)
    assert not store.disk.exists(directory)
