"""A file that is replaced whole is the old one or the new one after any crash."""

import errno

import pytest

from simulation.randomness import SimulatedRandomness
from tests.log.disks import DIRECTORY, read_file, simulated_disk, write_file
from tidelog.log.atomic_file import read_whole, write_atomically

PATH = f"{DIRECTORY}/file"
OLD, NEW = b"old " * 5000, b"new " * 3000


def test_every_crash_leaves_the_old_or_the_new_bytes() -> None:
    for seed in range(30):
        disk = simulated_disk()
        write_atomically(disk, PATH, OLD)
        write_file(disk, f"{PATH}.tmp", b"left by a crash" * 2000)
        randomness = SimulatedRandomness(seed)
        found: list[bytes | None] = []
        disk.on_operation = lambda operation, path: found.append(read_whole(disk.crash_image(randomness), PATH))  # noqa: B023 -- used within the same turn
        write_atomically(disk, PATH, NEW)
        disk.on_operation = None
        assert len(found) >= 5
        assert set(found) <= {OLD, NEW}
        assert read_whole(disk.crash_image(keep="none"), PATH) == NEW


def test_a_failed_write_leaves_the_old_bytes() -> None:
    disk = simulated_disk()
    write_atomically(disk, PATH, OLD)
    disk.faults.fail("sync", lambda path: True, errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(disk, PATH, NEW)
    assert read_file(disk, PATH) == OLD


def test_reading_what_is_not_there() -> None:
    disk = simulated_disk()
    assert read_whole(disk, PATH) is None
    write_file(disk, PATH, b"")
    assert read_whole(disk, PATH) == b""
