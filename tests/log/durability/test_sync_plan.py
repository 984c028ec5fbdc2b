"""Plans run one after the other; errors belong to single plans, and a full disk costs only the recovery point."""

import errno

import pytest

from simulation.disk import SimulatedDisk
from simulation.randomness import SimulatedRandomness
from tests.log.disks import DIRECTORY, read_file, simulated_disk, write_file
from tests.log.harness import Store, append, read_offsets
from tidelog.log import names
from tidelog.log.durability.checkpoints import StagedFile
from tidelog.log.durability.sync_plan import (
    REASON_BYTES_MAX,
    DirectorySync,
    SyncPlan,
    drop_cached_pages,
    has_failed_sync_mark,
    leave_failed_sync_mark,
    remove_failed_sync_mark,
    run_plans,
)
from tidelog.log.environment import OffsetPosition
from tidelog.log.settings import DirectoryOptions
from tidelog.ports.disk import DiskFile, SyncFailed


def written(disk: SimulatedDisk, name: str) -> DiskFile:
    file = disk.open(f"{DIRECTORY}/{name}", "create")
    file.write(0, [b"data"])
    return file


EPOCHS = f"{DIRECTORY}/epochs"


def plan(*files: DiskFile, directories: list[str] | None = None, epochs: StagedFile | None = None) -> SyncPlan:
    return SyncPlan(OffsetPosition(1, 0, 4), 0, [], list(files), directories or [], epochs, recovery_point=1)


@pytest.mark.parametrize("syncfs_files_min", [1, 100])
def test_files_and_names_are_durable_afterwards(syncfs_files_min: int) -> None:
    disk = simulated_disk()
    plans = [plan(written(disk, "a"), written(disk, "b"), directories=[DIRECTORY]), plan(written(disk, "c"))]
    outcome = run_plans(disk, disk.open_filesystem(DIRECTORY), plans, syncfs_files_min)
    assert outcome == ([None, None], syncfs_files_min == 1)
    image = disk.crash_image(keep="none")
    assert [image.file_size(f"{DIRECTORY}/{name}") for name in "abc"] == [4, 4, 4]


def test_the_directory_is_synced_after_its_files() -> None:
    disk = simulated_disk()
    seen: list[str] = []
    one = plan(written(disk, "a"), written(disk, "b"), directories=[DIRECTORY], epochs=StagedFile(disk, EPOCHS, b"new"))
    disk.on_operation = lambda operation, path: seen.append(f"{operation} {path.rpartition('/')[2]}")
    one.run(disk)
    assert seen[:2] == ["sync a", "sync b"]
    assert seen[-3:] == ["sync epochs.tmp", "rename epochs.tmp", f"sync_directory {DIRECTORY.rpartition('/')[2]}"]


@pytest.mark.parametrize("syncfs_files_min", [1, 100])
def test_the_epochs_are_replaced_whole(syncfs_files_min: int) -> None:
    """A crash at any operation finds the old ones or the new ones; afterwards the new ones are durable."""
    disk = simulated_disk()
    file_system = disk.open_filesystem(DIRECTORY)
    old = disk.open(EPOCHS, "create")
    old.write(0, [b"old"])
    file_system.sync()
    images: list[SimulatedDisk] = []
    disk.on_operation = lambda operation, path: images.append(disk.crash_image(SimulatedRandomness(len(images))))
    one = plan(written(disk, "a"), directories=[DIRECTORY], epochs=StagedFile(disk, EPOCHS, b"new"))
    assert run_plans(disk, file_system, [one], syncfs_files_min).errors == [None]
    assert len(images) > 4
    assert {read_file(image, EPOCHS) for image in images} <= {b"old", b"new"}
    assert read_file(disk.crash_image(keep="none"), EPOCHS) == b"new"


def test_an_error_belongs_to_its_plan() -> None:
    disk = simulated_disk()
    plans = [plan(written(disk, name)) for name in "abc"]
    disk.faults.fail("sync", lambda path: path.endswith("/b"))
    errors = run_plans(disk, disk.open_filesystem(DIRECTORY), plans, 100).errors
    assert [error is None for error in errors] == [True, False, True]


def test_a_failed_syncfs_names_no_file_so_that_all_have_failed() -> None:
    disk = simulated_disk()
    file_system = disk.open_filesystem(DIRECTORY)
    plans = [plan(written(disk, name)) for name in "abc"]
    disk.faults.fail("sync", lambda path: path.endswith("/b"), times=1)
    outcome = run_plans(disk, file_system, plans, 1)
    assert all(error is not None for error in outcome.errors)


class NoFileSystem:
    """A kernel without syncfs, or one whose syncfs reports no errors."""

    def sync(self) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")


def test_where_syncfs_does_not_exist_the_files_are_synced() -> None:
    disk = simulated_disk()
    plans = [plan(written(disk, name), directories=[DIRECTORY]) for name in "ab"]
    assert run_plans(disk, NoFileSystem(), plans, 1) == ([None, None], False)
    image = disk.crash_image(keep="none")
    assert [image.file_size(f"{DIRECTORY}/{name}") for name in "ab"] == [4, 4]


def test_the_number_of_syncs_decides() -> None:
    disk = simulated_disk()
    file_system = disk.open_filesystem(DIRECTORY)
    one = plan(written(disk, "a"), written(disk, "b"), directories=[DIRECTORY], epochs=StagedFile(disk, EPOCHS, b""))
    assert one.sync_count == 4
    assert not run_plans(disk, file_system, [one], 5).used_file_system_sync
    assert run_plans(disk, file_system, [one], 4).used_file_system_sync


@pytest.mark.parametrize("syncfs_files_min", [1, 100])
def test_no_room_for_a_small_file_costs_the_recovery_point_only(syncfs_files_min: int) -> None:
    disk = simulated_disk()
    one = plan(written(disk, "a"), epochs=StagedFile(disk, EPOCHS, b"new"))
    disk.faults.fail("write", lambda path: path.startswith(EPOCHS), errno.ENOSPC)
    assert run_plans(disk, disk.open_filesystem(DIRECTORY), [one], syncfs_files_min).errors == [None]
    assert one.recovery_point is None
    assert one.had_no_room
    assert not disk.exists(EPOCHS)


@pytest.mark.parametrize("syncfs_files_min", [1, 100])
def test_a_broken_disk_under_a_small_file_is_an_error(syncfs_files_min: int) -> None:
    disk = simulated_disk()
    one = plan(written(disk, "a"), epochs=StagedFile(disk, EPOCHS, b"new"))
    disk.faults.fail("write", lambda path: path.startswith(EPOCHS), errno.EIO)
    (error,) = run_plans(disk, disk.open_filesystem(DIRECTORY), [one], syncfs_files_min).errors
    assert error is not None
    assert error.errno == errno.EIO


# The mark that a failed sync leaves: durable itself, and the reason to look at the disk below the cache.


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


# The names of a directory made durable: one sync at a time, and nobody is told too early.


def make(store: Store) -> DirectorySync:
    return DirectorySync(store.disk, store.executor, "/data")


def test_requests_while_one_is_under_way_share_the_next() -> None:
    store = Store()
    sync = make(store)
    before = store.executor._submitted
    said: list[int] = []
    for number in range(100):
        sync.request(lambda error, number=number: said.append(number))  # type: ignore[misc]  # mypy does not see the default
    assert not sync.is_idle
    store.scheduler.run_until(lambda: len(said) == 1)
    assert said == [0], "the others asked after it had begun"
    store.scheduler.run_all()
    assert said == list(range(100))
    assert store.executor._submitted - before == 2
    assert sync.is_idle


def test_a_name_is_durable_when_the_request_is_answered() -> None:
    store = Store()
    sync = make(store)
    store.disk.open("/data/old", "create")
    assert store.wait(sync.request) is None
    store.disk.rename("/data/old", "/data/new")
    assert store.wait(sync.request) is None
    assert store.disk.crash_image(store.randomness, "none").exists("/data/new")


def test_an_error_reaches_all_who_waited_for_that_sync_and_no_other() -> None:
    store = Store()
    sync = make(store)
    said: list[BaseException | None] = []
    sync.request(said.append)
    sync.request(said.append)
    store.disk.faults.fail("sync", lambda path: path == "/data", errno.EIO, times=1)
    store.scheduler.run_all()
    assert [type(error) for error in said] == [SyncFailed, type(None)]


def test_a_request_from_within_an_answer_gets_a_sync_of_its_own() -> None:
    store = Store()
    sync = make(store)
    said: list[str] = []

    def first(_: BaseException | None) -> None:
        said.append("first")
        sync.request(lambda _: said.append("second"))

    sync.request(first)
    store.scheduler.run_all()
    assert said == ["first", "second"]
    assert sync.is_idle
