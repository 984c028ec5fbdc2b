"""What every disk does: the same tests on the operating system's disk and on the simulated one."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.scheduler import Scheduler
from tidelog.ports.clock import RealClock
from tidelog.ports.disk import Disk
from tidelog.ports.real_disk import GATHER_BUFFERS_MAX, RealDisk


class Place:
    """A disk, the directory on it that a test may use, and its wall clock."""

    def __init__(self, disk: Disk, directory: str, now_ms: Callable[[], int]) -> None:
        self.disk = disk
        self.directory = directory
        self.now_ms = now_ms

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def write(self, name: str, data: bytes) -> None:
        self.disk.open(self.path(name), "create").write(0, [data])

    def read(self, name: str) -> bytes:
        return self.disk.open(self.path(name), "read").read(0, 1 << 20)


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "real":
        return Place(RealDisk(), str(tmp_path), RealClock().now_ms)
    clock = SimulatedClock(Scheduler())
    disk = SimulatedDisk(clock)
    disk.make_directory("/data")
    return Place(disk, "/data", clock.now_ms)


def test_written_bytes_are_read_back(place: Place) -> None:
    file = place.disk.open(place.path("a"), "create")
    assert file.path == place.path("a")
    assert file.write(0, [b"hello ", bytearray(b"wide "), memoryview(b"world")]) == 16
    assert file.size() == 16
    assert file.read(6, 4) == b"wide"
    assert file.read(11, 100) == b"world"
    assert file.read(16, 10) == b""
    assert file.read(100, 10) == b""


def test_overwriting_keeps_the_rest(place: Place) -> None:
    file = place.disk.open(place.path("a"), "create")
    file.write(0, [b"x" * 10_000])
    assert file.write(4_090, [b"y" * 20]) == 20
    assert file.read(0, 20_000) == b"x" * 4_090 + b"y" * 20 + b"x" * 5_890


def test_a_write_behind_the_end_leaves_zeros(place: Place) -> None:
    file = place.disk.open(place.path("a"), "create")
    file.write(5_000, [b"z"])
    assert file.read(0, 6_000) == bytes(5_000) + b"z"


def test_more_buffers_than_one_call_takes(place: Place) -> None:
    buffers = [b"%05d" % number for number in range(GATHER_BUFFERS_MAX + 10)]
    file = place.disk.open(place.path("a"), "create")
    assert file.write(3, buffers) == 5 * len(buffers)
    assert file.read(3, 10_000) == b"".join(buffers)


def test_an_empty_write_changes_nothing(place: Place) -> None:
    file = place.disk.open(place.path("a"), "create")
    assert file.write(100, [b""]) == 0
    assert file.write(100, []) == 0
    assert file.size() == 0


def test_truncate_cuts_and_extends_with_zeros(place: Place) -> None:
    file = place.disk.open(place.path("a"), "create")
    file.write(0, [b"x" * 9_000])
    file.truncate(4_100)
    assert file.size() == place.disk.file_size(place.path("a")) == 4_100
    file.truncate(9_000)
    assert file.read(0, 9_000) == b"x" * 4_100 + bytes(4_900)


def test_opening(place: Place) -> None:
    for mode in ("read", "write"):
        with pytest.raises(FileNotFoundError):
            place.disk.open(place.path("a"), mode)
    place.write("a", b"1")
    place.disk.open(place.path("a"), "write").write(1, [b"2"])
    place.disk.open(place.path("a"), "create").write(2, [b"3"])
    assert place.read("a") == b"123"
    with pytest.raises(FileNotFoundError):
        place.disk.open(place.path("missing/a"), "create")
    with pytest.raises(NotADirectoryError):
        place.disk.open(place.path("a/b"), "create")
    with pytest.raises(IsADirectoryError):
        place.disk.open(place.directory, "write")


def test_a_file_opened_to_read_is_not_written(place: Place) -> None:
    place.write("a", b"1")
    file = place.disk.open(place.path("a"), "read")
    with pytest.raises(OSError, match="descriptor") as caught:
        file.write(0, [b"2"])
    assert caught.value.errno == errno.EBADF
    assert place.read("a") == b"1"


def test_names(place: Place) -> None:
    disk = place.disk
    assert not disk.exists(place.path("d"))
    disk.make_directory(place.path("d"))
    disk.make_directory(place.path("d"))
    place.write("b", b"")
    place.write("a", b"")
    assert disk.list_directory(place.directory) == ["a", "b", "d"]
    assert disk.is_directory(place.path("d"))
    assert not disk.is_directory(place.path("a"))
    assert not disk.is_directory(place.path("missing"))
    assert disk.exists(place.path("a"))
    assert disk.exists(place.path("d"))
    with pytest.raises(FileExistsError):
        disk.make_directory(place.path("a"))
    with pytest.raises(FileNotFoundError):
        disk.make_directory(place.path("x/y"))
    with pytest.raises(FileNotFoundError):
        disk.list_directory(place.path("x"))
    with pytest.raises(NotADirectoryError):
        disk.list_directory(place.path("a"))


def test_removing(place: Place) -> None:
    disk = place.disk
    disk.make_directory(place.path("d"))
    place.write("d/a", b"")
    with pytest.raises(OSError, match="not empty") as caught:
        disk.remove_directory(place.path("d"))
    assert caught.value.errno == errno.ENOTEMPTY
    with pytest.raises(NotADirectoryError):
        disk.remove_directory(place.path("d/a"))
    with pytest.raises(IsADirectoryError):
        disk.remove(place.path("d"))
    disk.remove(place.path("d/a"))
    disk.remove_directory(place.path("d"))
    assert disk.list_directory(place.directory) == []
    with pytest.raises(FileNotFoundError):
        disk.remove(place.path("d"))
    with pytest.raises(FileNotFoundError):
        disk.remove_directory(place.path("d"))


def test_rename_replaces_a_file(place: Place) -> None:
    place.write("a", b"new")
    place.write("b", b"old")
    place.disk.rename(place.path("a"), place.path("b"))
    assert place.disk.list_directory(place.directory) == ["b"]
    assert place.read("b") == b"new"
    with pytest.raises(FileNotFoundError):
        place.disk.rename(place.path("a"), place.path("c"))


def test_rename_of_a_directory_takes_its_files_along(place: Place) -> None:
    disk = place.disk
    disk.make_directory(place.path("d"))
    place.write("d/a", b"1")
    disk.rename(place.path("d"), place.path("e"))
    assert place.read("e/a") == b"1"
    assert not disk.exists(place.path("d"))
    disk.make_directory(place.path("d"))
    with pytest.raises(OSError, match="not empty"):
        disk.rename(place.path("d"), place.path("e"))
    with pytest.raises(OSError, match="Invalid"):
        disk.rename(place.path("e"), place.path("e/f"))
    with pytest.raises(NotADirectoryError):
        disk.rename(place.path("d"), place.path("e/a"))
    with pytest.raises(IsADirectoryError):
        disk.rename(place.path("e/a"), place.path("d"))


def test_an_open_file_works_after_rename_and_removal(place: Place) -> None:
    place.write("a", b"123")
    file = place.disk.open(place.path("a"), "write")
    place.disk.rename(place.path("a"), place.path("b"))
    file.write(3, [b"4"])
    assert place.read("b") == b"1234"
    place.disk.remove(place.path("b"))
    place.write("b", b"other")
    file.write(4, [b"5"])
    assert file.read(0, 10) == b"12345"
    assert place.read("b") == b"other"


def test_syncing_changes_nothing_that_is_read(place: Place) -> None:
    filesystem = place.disk.open_filesystem(place.directory)
    file = place.disk.open(place.path("a"), "create")
    file.write(0, [b"x" * 5_000])
    file.sync()
    place.disk.sync_directory(place.directory)
    filesystem.sync()
    place.disk.drop_cache(place.path("a"))
    assert file.read(0, 9_999) == b"x" * 5_000
    with pytest.raises(FileNotFoundError):
        place.disk.sync_directory(place.path("missing"))
    with pytest.raises(FileNotFoundError):
        place.disk.drop_cache(place.path("missing"))
    with pytest.raises(FileNotFoundError):
        place.disk.open_filesystem(place.path("missing"))


def test_a_lock_is_exclusive_until_released(place: Place) -> None:
    lock = place.disk.lock(place.path(".lock"))
    with pytest.raises(BlockingIOError):
        place.disk.lock(place.path(".lock"))
    lock.release()
    lock.release()
    place.disk.lock(place.path(".lock")).release()


def test_modified_is_the_wall_clock_at_the_write(place: Place) -> None:
    before_ms = place.now_ms()
    place.write("a", b"1")
    # A file system may stamp by a coarse clock, up to one kernel tick behind.
    assert before_ms - 20 <= place.disk.modified_ms(place.path("a")) <= place.now_ms()


def test_free_bytes(place: Place) -> None:
    assert place.disk.total_bytes(place.directory) >= place.disk.free_bytes(place.directory) > 0
    with pytest.raises(FileNotFoundError):
        place.disk.free_bytes(place.path("missing"))
    with pytest.raises(FileNotFoundError):
        place.disk.total_bytes(place.path("missing"))


def test_a_negative_position_is_refused(place: Place) -> None:
    file = place.disk.open(place.path("a"), "create")
    with pytest.raises(OSError, match="Invalid"):
        file.read(-1, 1)
    with pytest.raises(OSError, match="Invalid"):
        file.truncate(-1)
