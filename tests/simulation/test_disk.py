"""The simulated disk: crashes at any operation, and the faults it can be told to show."""

import errno
import time

import pytest

from simulation.clock import SimulatedClock
from simulation.disk import Crashed, SimulatedDisk
from simulation.names import walk
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.ports.disk import DiskFile


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk(SimulatedClock(Scheduler()))
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


def durable(disk: SimulatedDisk, path: str, data: bytes) -> DiskFile:
    file = disk.open(path, "create")
    file.write(0, [data])
    file.sync()
    disk.sync_directory("/d")
    return file


def content(disk: SimulatedDisk, path: str) -> bytes:
    return disk.open(path, "read").read(0, 1 << 20)


# Crashing.


def test_crash_in_place_leaves_what_an_image_would(disk: SimulatedDisk) -> None:
    file = durable(disk, "/d/a", b"old")
    file.write(0, [b"new"])
    disk.crash(keep="none")
    assert content(disk, "/d/a") == b"old"
    for use in (lambda: file.read(0, 1), lambda: file.write(0, [b"x"]), lambda: file.truncate(0), file.sync):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()
    assert content(disk, "/d/a") == b"old"


def test_a_kill_keeps_the_page_cache(disk: SimulatedDisk) -> None:
    durable(disk, "/d/a", b"old").write(0, [b"new"])
    disk.crash(keep="all")
    assert content(disk, "/d/a") == b"new"
    disk.crash(keep="none")
    assert content(disk, "/d/a") == b"old"


def test_keeping_some_needs_randomness(disk: SimulatedDisk) -> None:
    with pytest.raises(ValueError, match="randomness"):
        disk.crash_image()


def test_a_crash_releases_locks(disk: SimulatedDisk) -> None:
    disk.lock("/d/.lock")
    for keep in ("all", "none"):
        disk.crash_image(keep=keep).lock("/d/.lock")
    disk.crash(keep="all")
    disk.lock("/d/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/d/.lock")


def test_the_hook_sees_every_mutating_and_syncing_operation(disk: SimulatedDisk) -> None:
    seen: list[tuple[str, str]] = []
    before = disk.operation_count
    disk.on_operation = lambda operation, path: seen.append((operation, path))
    filesystem = disk.open_filesystem("/d")
    file = disk.open("/d/a", "create")
    disk.open("/d/a", "create")
    file.write(0, [b"12"])
    file.read(0, 2)
    file.truncate(1)
    file.sync()
    disk.make_directory("/d/f")
    disk.make_directory("/d/f")
    disk.rename("/d/a", "/d/b")
    disk.remove("/d/b")
    disk.remove_directory("/d/f")
    disk.sync_directory("/d")
    filesystem.sync()
    assert seen == [
        ("create", "/d/a"),
        ("write", "/d/a"),
        ("truncate", "/d/a"),
        ("sync", "/d/a"),
        ("make_directory", "/d/f"),
        ("rename", "/d/a"),
        ("remove", "/d/b"),
        ("remove_directory", "/d/f"),
        ("sync_directory", "/d"),
        ("sync_filesystem", "/d"),
    ]
    assert disk.operation_count - before == len(seen)


def test_an_operation_in_which_the_machine_dies_does_not_happen(disk: SimulatedDisk) -> None:
    file = durable(disk, "/d/a", b"1")
    durable(disk, "/d/b", b"2")
    before = tuple((path, inode.read(0, 9)) for path, inode in walk(disk.root))

    def die(operation: str, path: str) -> None:
        raise Crashed

    disk.on_operation = die
    for operation in (
        lambda: file.write(0, [b"x"]),
        lambda: file.truncate(0),
        lambda: disk.rename("/d/a", "/d/b"),
        lambda: disk.remove("/d/a"),
        lambda: disk.open("/d/c", "create"),
        lambda: disk.make_directory("/d/f"),
    ):
        with pytest.raises(Crashed):
            operation()
    assert tuple((path, inode.read(0, 9)) for path, inode in walk(disk.root)) == before
    assert disk.list_directory("/d") == ["a", "b"]


def test_a_file_system_sync_makes_bytes_and_names_durable(disk: SimulatedDisk) -> None:
    filesystem = disk.open_filesystem("/d")
    disk.make_directory("/d/f")
    disk.open("/d/f/a", "create").write(0, [b"1"])
    durable(disk, "/d/b", b"2")
    disk.rename("/d/b", "/d/f/b")
    filesystem.sync()
    image = disk.crash_image(keep="none")
    assert content(image, "/d/f/a") == b"1"
    assert content(image, "/d/f/b") == b"2"
    assert image.list_directory("/d") == ["f"]


def test_an_image_has_neither_hook_nor_faults(disk: SimulatedDisk) -> None:
    disk.on_operation = lambda operation, path: None
    disk.faults.fail("write", lambda path: True)
    image = disk.crash_image(keep="none")
    image.open("/d/a", "create").write(0, [b"1"])
    assert image.operation_count == 2
    assert not disk.exists("/d/a")


def test_images_of_one_seed_are_the_same() -> None:
    def images() -> list[tuple[tuple[str, bytes], ...]]:
        disk = SimulatedDisk(SimulatedClock(Scheduler()))
        for name in ("a", "b", "c"):
            disk.open(name, "create").write(0, [name.encode() * 20_000])
        randomness = SimulatedRandomness(3)
        taken = (disk.crash_image(randomness) for _ in range(20))
        return [tuple((path, inode.read(0, 1 << 20)) for path, inode in walk(image.root)) for image in taken]

    assert images() == images()
    assert len(set(images())) > 5


def test_images_are_cheap(disk: SimulatedDisk) -> None:
    for number in range(12):
        file = durable(disk, f"/d/{number}", b"x" * 20_000)
        file.write(20_000, [b"y" * 3_000])
    randomness = SimulatedRandomness(1)
    best_seconds = 1.0
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(10):
            disk.crash_image(randomness)
        best_seconds = min(best_seconds, (time.perf_counter() - started) / 10)
    assert best_seconds < 0.001


# Faults.


@pytest.mark.parametrize("operation", ["read", "write", "sync"])
def test_an_error_strikes_matching_paths(disk: SimulatedDisk, operation: str) -> None:
    file, other = durable(disk, "/d/a", b"1"), durable(disk, "/d/b", b"1")
    uses = {"read": lambda file: file.read(0, 1), "write": lambda file: file.write(0, [b"2"]), "sync": lambda file: file.sync()}
    rule = disk.faults.fail(operation, lambda path: path.endswith("a"))  # type: ignore[arg-type]  # str is too wide for a Literal
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output") as caught:
            uses[operation](file)
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, "/d/a")
        uses[operation](other)
    for unharmed in sorted(uses.keys() - {operation}):
        uses[unharmed](file)
    disk.faults.lift(rule)
    uses[operation](file)


def test_an_error_strikes_a_number_of_times(disk: SimulatedDisk) -> None:
    file = durable(disk, "/d/a", b"1")
    disk.faults.fail("read", lambda path: True, errno.ESTALE, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="Stale"):
            file.read(0, 1)
    assert file.read(0, 1) == b"1"


def test_names_fail_too(disk: SimulatedDisk) -> None:
    durable(disk, "/d/a", b"1")
    disk.faults.fail("names", lambda path: path.startswith("/d"))
    for operation in (
        lambda: disk.open("/d/b", "create"),
        lambda: disk.rename("/d/a", "/d/c"),
        lambda: disk.remove("/d/a"),
        lambda: disk.make_directory("/d/f"),
    ):
        with pytest.raises(OSError, match="Input/output"):
            operation()
    assert disk.list_directory("/d") == ["a"]


def test_after_a_failed_sync_the_second_one_succeeds_and_proves_nothing(disk: SimulatedDisk) -> None:
    file = durable(disk, "/d/a", b"old")
    file.write(0, [b"new"])
    disk.faults.fail("sync", lambda path: True, times=1)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert file.read(0, 3) == b"new"
    disk.crash(keep="all")
    assert content(disk, "/d/a") == b"new"
    disk.drop_cache("/d/a")
    assert content(disk, "/d/a") == b"old"


def test_a_failed_sync_is_reported_once_through_every_open_file_and_the_file_system(disk: SimulatedDisk) -> None:
    first, filesystem = durable(disk, "/d/a", b"old"), disk.open_filesystem("/d")
    second = disk.open("/d/a", "write")
    first.write(0, [b"new"])
    disk.faults.fail("sync", lambda path: True, times=1)
    for sync in (first.sync, second.sync, filesystem.sync):
        with pytest.raises(OSError, match="Input/output"):
            sync()
    for sync in (first.sync, second.sync, filesystem.sync, disk.open("/d/a", "write").sync, disk.open_filesystem("/d").sync):
        sync()
    assert content(disk.crash_image(keep="none"), "/d/a") == b"old"


def test_a_failed_file_system_sync_loses_the_pages_of_the_files_it_struck(disk: SimulatedDisk) -> None:
    bad, good = durable(disk, "/d/bad", b"old"), durable(disk, "/d/good", b"old")
    filesystem = disk.open_filesystem("/d")
    bad.write(0, [b"new"])
    good.write(0, [b"new"])
    disk.faults.fail("sync", lambda path: path.endswith("bad"))
    with pytest.raises(OSError, match="Input/output"):
        filesystem.sync()
    disk.faults.clear()
    filesystem.sync()
    image = disk.crash_image(keep="none")
    assert content(image, "/d/bad") == b"old"
    assert content(image, "/d/good") == b"new"
    with pytest.raises(OSError, match="Input/output"):
        bad.sync()
    good.sync()


def test_a_failed_directory_sync_leaves_names_pending(disk: SimulatedDisk) -> None:
    disk.open("/d/a", "create")
    disk.faults.fail("sync", lambda path: path == "/d", times=1)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_directory("/d")
    assert not disk.crash_image(keep="none").exists("/d/a")


def test_a_full_disk_takes_what_fits_and_has_room_after_a_removal(disk: SimulatedDisk) -> None:
    durable(disk, "/d/old", b"o" * 50)
    file = durable(disk, "/d/a", b"a" * 10)
    disk.set_free_bytes(30)
    assert disk.free_bytes("/d") == 30
    total_bytes = disk.total_bytes("/d")
    with pytest.raises(OSError, match="No space") as caught:
        file.write(10, [b"b" * 20, b"c" * 20])
    assert caught.value.errno == errno.ENOSPC
    assert content(disk, "/d/a") == b"a" * 10 + b"b" * 20 + b"c" * 10
    assert disk.free_bytes("/d") == 0
    assert disk.total_bytes("/d") == total_bytes >= 30
    # Overwriting needs no room, cutting off gives it back, and so does removing.
    file.write(0, [b"d" * 40])
    file.truncate(10)
    assert disk.free_bytes("/d") == 30
    disk.remove("/d/old")
    assert disk.free_bytes("/d") == 80
    file.write(10, [b"e" * 80])
    with pytest.raises(OSError, match="No space"):
        file.write(90, [b"f"])
    with pytest.raises(OSError, match="No space"):
        file.write(200, [b"f"])
    assert file.size() == 90
    disk.set_free_bytes(None)
    file.write(90, [b"f" * 1_000])


def test_a_replaced_file_gives_its_room_back_and_a_removed_one_takes_none(disk: SimulatedDisk) -> None:
    durable(disk, "/d/a", b"a" * 10)
    file = durable(disk, "/d/b", b"b" * 20)
    disk.set_free_bytes(5)
    disk.rename("/d/a", "/d/b")
    assert disk.free_bytes("/d") == 25
    file.write(20, [b"c" * 100])
    file.truncate(0)
    assert disk.free_bytes("/d") == 25


def test_lost_writes_give_their_room_back(disk: SimulatedDisk) -> None:
    file = durable(disk, "/d/a", b"a" * 10)
    disk.set_free_bytes(100)
    file.write(10, [b"b" * 60])
    assert disk.crash_image(keep="all").free_bytes("/d") == 40
    assert disk.crash_image(keep="none").free_bytes("/d") == 100
    disk.crash(keep="none")
    assert disk.free_bytes("/d") == 100


def test_a_flipped_bit(disk: SimulatedDisk) -> None:
    durable(disk, "/d/a", b"abc")
    disk.flip_bit("/d/a", 1, 5)
    assert content(disk, "/d/a") == b"aBc"
    assert content(disk.crash_image(keep="none"), "/d/a") == b"aBc"


def test_a_misdirected_write_lands_elsewhere_once(disk: SimulatedDisk) -> None:
    file = durable(disk, "/d/a", b"." * 10)
    disk.faults.misdirect_next_write("/d/a", 2)
    assert file.write(8, [b"xy"]) == 2
    file.write(8, [b"zz"])
    assert content(disk, "/d/a") == b"..xy....zz"


def test_modified_follows_the_simulated_clock() -> None:
    scheduler = Scheduler()
    clock = SimulatedClock(scheduler)
    disk = SimulatedDisk(clock)
    file = disk.open("/a", "create")
    scheduler.run_for(5_000_000)
    file.write(0, [b"1"])
    assert disk.modified_ms("/a") == clock.now_ms()
    stamp = clock.now_ms()
    scheduler.run_for(5_000_000)
    assert disk.crash_image(keep="all").modified_ms("/a") == stamp
    file.truncate(0)
    assert disk.modified_ms("/a") == clock.now_ms() == stamp + 5_000


def test_a_simulated_file_has_no_descriptor(disk: SimulatedDisk) -> None:
    with pytest.raises(OSError, match="no descriptor"):
        disk.open("/d/a", "create").descriptor()


def test_a_path_that_climbs_is_refused(disk: SimulatedDisk) -> None:
    with pytest.raises(OSError, match="Invalid"):
        disk.exists("/d/../d")
