"""Plans run one after the other; errors belong to single plans, and a full disk costs only the recovery point."""

import errno

import pytest

from simulation.disk import SimulatedDisk
from simulation.randomness import SimulatedRandomness
from tests.log.disks import DIRECTORY, read_file, simulated_disk
from tidelog.log.atomic_file import StagedFile
from tidelog.log.environment import OffsetPosition
from tidelog.log.sync_plan import SyncPlan, run_plans
from tidelog.ports.disk import DiskFile


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
