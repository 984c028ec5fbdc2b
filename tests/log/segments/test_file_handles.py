"""Open files on demand within a limit; to drop one is only to let go."""

import errno
import os
from pathlib import Path
from weakref import ref

import pytest

from simulation.disk import SimulatedDisk
from tests.log.disks import DIRECTORY, simulated_disk
from tests.log.harness import BATCH_BYTES, Store, append, read_offsets
from tidelog.log.segments.file_handles import FileHandles
from tidelog.log.settings import DirectoryOptions, LogSettings
from tidelog.ports.real_disk import RealDisk


def handles(count: int, open_max: int) -> tuple[SimulatedDisk, FileHandles, list[str]]:
    disk = simulated_disk()
    paths = [f"{DIRECTORY}/{number}" for number in range(count)]
    for path in paths:
        disk.open(path, "create")
    return disk, FileHandles(disk, open_max), paths


def test_a_file_is_opened_once() -> None:
    _, files, paths = handles(2, 10)
    assert files.open(paths[0]) is files.open(paths[0])
    assert files.open(paths[0]) is not files.open(paths[1])
    assert len(files) == 2


def test_the_least_recently_used_goes() -> None:
    _, files, paths = handles(3, 2)
    first = files.open(paths[0])
    dropped = ref(files.open(paths[1]))
    files.open(paths[0])
    files.open(paths[2])
    assert len(files) == 2
    assert files.open(paths[0]) is first
    assert dropped() is None


def test_who_holds_a_dropped_file_goes_on_with_it() -> None:
    _, files, paths = handles(2, 1)
    held = files.open(paths[0])
    files.open(paths[1])
    held.write(0, [b"data"])
    assert files.open(paths[0]).read(0, 10) == b"data"


def test_a_dropped_file_is_closed_when_nobody_holds_it(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    files = FileHandles(RealDisk(), 1)
    descriptor = files.create(paths[0]).descriptor()
    os.fstat(descriptor)
    second = files.create(paths[1])
    assert second.descriptor() != descriptor
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_dropped_file_that_somebody_holds_is_not_opened_a_second_time() -> None:
    disk = simulated_disk()
    handles = FileHandles(disk, 1)
    held = handles.create(f"{DIRECTORY}/a")
    handles.create(f"{DIRECTORY}/b")
    assert len(handles) == 1
    assert handles.open(f"{DIRECTORY}/a") is held


def test_without_a_descriptor_the_cache_gives_way() -> None:
    disk = simulated_disk()
    handles = FileHandles(disk, 10)
    for name in "ab":
        handles.create(f"{DIRECTORY}/{name}")
    disk.faults.fail("open", lambda path: True, errno.EMFILE, times=1)
    handles.create(f"{DIRECTORY}/c")
    assert len(handles) == 1
    disk.faults.fail("open", lambda path: True, errno.EMFILE, times=2)
    with pytest.raises(OSError, match="Too many open files"):
        handles.open(f"{DIRECTORY}/a")


def test_a_forgotten_name_means_another_file() -> None:
    disk, files, paths = handles(2, 10)
    old = files.open(paths[0])
    disk.rename(paths[1], paths[0])
    files.forget(paths[0])
    files.forget(paths[0])
    assert files.open(paths[0]) is not old


def test_a_missing_file_is_an_error_and_created_only_when_asked() -> None:
    disk, files, _ = handles(0, 10)
    with pytest.raises(FileNotFoundError):
        files.open(f"{DIRECTORY}/new")
    files.create(f"{DIRECTORY}/new")
    assert disk.exists(f"{DIRECTORY}/new")


def test_logs_work_within_the_limit() -> None:
    """More segments than files may be open, appended to in turns, and all of it durable."""
    store = Store(LogSettings(segment_bytes=2 * BATCH_BYTES), options=DirectoryOptions(open_files_max=3))
    logs = [store.create(partition=partition) for partition in range(8)]
    for _ in range(5):
        for log in logs:
            append(log)
    store.commit()
    for log in logs:
        assert read_offsets(log) == list(range(5))
        assert len(store.directory.environment.handles) <= 3
    store.crash()
    assert all(read_offsets(log) == list(range(5)) for log in store.directory.logs.values())
