"""What a power cut leaves of names."""

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.names import walk
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler

IMAGES = 400


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk(SimulatedClock(Scheduler()))
    disk.make_directory("/d")
    disk.make_directory("/e")
    disk.sync_directory("/")
    return disk


def put(disk: SimulatedDisk, path: str, data: bytes) -> None:
    file = disk.open(path, "create")
    file.write(0, [data])
    file.sync()


def tree(disk: SimulatedDisk) -> tuple[tuple[str, bytes], ...]:
    return tuple((path, inode.read(0, 1 << 20)) for path, inode in walk(disk.root))


def outcomes(disk: SimulatedDisk) -> set[tuple[tuple[str, bytes], ...]]:
    randomness = SimulatedRandomness("outcomes")
    before = tree(disk)
    images = {tree(disk.crash_image(randomness)) for _ in range(IMAGES)}
    assert tree(disk) == before
    return images


def test_a_synced_file_in_a_directory_that_is_not_may_be_gone() -> None:
    disk = new_disk()
    put(disk, "/d/a", b"1")
    assert outcomes(disk) == {(), (("/d/a", b"1"),)}
    assert tree(disk.crash_image(keep="none")) == ()
    disk.sync_directory("/d")
    assert outcomes(disk) == {(("/d/a", b"1"),)}
    assert tree(disk.crash_image(keep="none")) == (("/d/a", b"1"),)


def test_syncing_another_directory_does_not_help() -> None:
    disk = new_disk()
    put(disk, "/d/a", b"1")
    disk.sync_directory("/")
    disk.sync_directory("/e")
    assert () in outcomes(disk)


def test_a_rename_without_a_sync_is_kept_or_lost_but_never_half() -> None:
    disk = new_disk()
    put(disk, "/d/a", b"new")
    put(disk, "/d/b", b"old")
    disk.sync_directory("/d")
    disk.rename("/d/a", "/d/b")
    assert outcomes(disk) == {(("/d/a", b"new"), ("/d/b", b"old")), (("/d/b", b"new"),)}
    disk.sync_directory("/d")
    assert outcomes(disk) == {(("/d/b", b"new"),)}


def test_a_rename_across_directories_is_durable_with_either() -> None:
    for synced in ("/d", "/e"):
        disk = new_disk()
        put(disk, "/d/a", b"1")
        disk.sync_directory("/d")
        disk.rename("/d/a", "/e/a")
        assert outcomes(disk) == {(("/d/a", b"1"),), (("/e/a", b"1"),)}
        disk.sync_directory(synced)
        assert outcomes(disk) == {(("/e/a", b"1"),)}


def test_a_synced_rename_takes_the_making_of_its_file_along() -> None:
    disk = new_disk()
    put(disk, "/d/a", b"1")
    disk.rename("/d/a", "/e/a")
    disk.sync_directory("/e")
    assert outcomes(disk) == {(("/e/a", b"1"),)}


def test_a_removal_without_a_sync_may_be_undone() -> None:
    disk = new_disk()
    put(disk, "/d/a", b"1")
    disk.sync_directory("/d")
    disk.remove("/d/a")
    assert outcomes(disk) == {(), (("/d/a", b"1"),)}
    disk.sync_directory("/d")
    assert outcomes(disk) == {()}


def test_operations_on_different_names_are_kept_in_any_order() -> None:
    disk = new_disk()
    put(disk, "/d/a", b"1")
    put(disk, "/d/b", b"2")
    a, b = ("/d/a", b"1"), ("/d/b", b"2")
    assert outcomes(disk) == {(), (a,), (b,), (a, b)}


def test_an_operation_that_depends_on_a_lost_one_is_lost() -> None:
    disk = new_disk()
    put(disk, "/d/a", b"1")
    disk.rename("/d/a", "/d/b")
    disk.rename("/d/b", "/d/c")
    # Made, renamed, renamed again: any beginning of that, and no file under two names.
    assert outcomes(disk) == {(), (("/d/a", b"1"),), (("/d/b", b"1"),), (("/d/c", b"1"),)}


def test_a_name_used_again() -> None:
    disk = new_disk()
    put(disk, "/d/a", b"1")
    disk.sync_directory("/d")
    disk.remove("/d/a")
    put(disk, "/d/a", b"2")
    assert outcomes(disk) == {(), (("/d/a", b"1"),), (("/d/a", b"2"),)}


def test_what_is_in_a_directory_whose_making_was_lost_is_lost() -> None:
    disk = new_disk()
    disk.make_directory("/d/f")
    put(disk, "/d/f/a", b"1")
    disk.sync_directory("/d/f")
    assert outcomes(disk) == {(), (("/d/f/a", b"1"),)}
    disk.rename("/d/f/a", "/e/a")
    # Not in /e without having been in /d/f, which must then be there too.
    randomness = SimulatedRandomness("rename")
    images = [disk.crash_image(randomness) for _ in range(IMAGES)]
    assert any(image.exists("/e/a") for image in images)
    assert all(image.is_directory("/d/f") for image in images if image.exists("/e/a"))


def test_a_removed_directory_takes_the_removals_in_it_along() -> None:
    disk = new_disk()
    disk.make_directory("/d/f")
    put(disk, "/d/f/a", b"1")
    disk.sync_directory("/d")
    disk.sync_directory("/d/f")
    disk.remove("/d/f/a")
    disk.remove_directory("/d/f")
    randomness = SimulatedRandomness("removal")
    seen = {(image.is_directory("/d/f"), tree(image)) for image in (disk.crash_image(randomness) for _ in range(IMAGES))}
    assert seen == {(True, (("/d/f/a", b"1"),)), (True, ()), (False, ())}
    disk.sync_directory("/d")
    assert not disk.crash_image(keep="none").exists("/d/f")


def test_a_file_moved_out_of_a_removed_directory_is_never_lost_with_it() -> None:
    disk = new_disk()
    disk.make_directory("/d/f")
    put(disk, "/d/f/a", b"1")
    disk.sync_directory("/d")
    disk.sync_directory("/d/f")
    disk.rename("/d/f/a", "/e/a")
    disk.remove_directory("/d/f")
    assert outcomes(disk) == {(("/d/f/a", b"1"),), (("/e/a", b"1"),)}
    disk.sync_directory("/d")
    assert outcomes(disk) == {(("/e/a", b"1"),)}


def test_a_renamed_directory_moves_with_all_that_is_in_it() -> None:
    disk = new_disk()
    put(disk, "/d/a", b"1")
    disk.sync_directory("/d")
    disk.rename("/d", "/gone")
    put(disk, "/gone/b", b"2")
    for image in outcomes(disk):
        assert image[0] in (("/d/a", b"1"), ("/gone/a", b"1"))
    disk.sync_directory("/gone")
    disk.sync_directory("/")
    assert outcomes(disk) == {(("/gone/a", b"1"), ("/gone/b", b"2"))}


def test_kill_keeps_names_and_they_are_still_not_synced() -> None:
    disk = new_disk()
    put(disk, "/d/a", b"1")
    disk.rename("/d/a", "/e/a")
    disk.make_directory("/d/f")
    survivor = disk.crash_image(keep="all")
    assert tree(survivor) == (("/e/a", b"1"),)
    assert survivor.is_directory("/d/f")
    assert tree(survivor.crash_image(keep="none")) == ()
    survivor.sync_directory("/e")
    assert tree(survivor.crash_image(keep="none")) == (("/e/a", b"1"),)
    assert tree(disk.crash_image(keep="none")) == ()
