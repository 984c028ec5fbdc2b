"""A disk from which the power can be taken: ext4 in a file, and an instant picture of what the medium holds.

Three file systems lie in each other, each in a loop-mounted file of the one below:

    outer    XFS, whose files can be cloned by reflink
    drive    ext4 in ``live.img`` on the outer one: it plays the drive, its page cache the drive's volatile cache
    data     ext4 in ``disk.img`` on the drive: here the server writes

``disk.img`` is loop-mounted without direct I/O. What the data file system submits therefore lands in the page cache of the drive,
as a real drive takes a write into its cache and calls it done. Only when the data file system asks for a flush, as fsync makes it
do, does the loop device call fsync on ``disk.img``, and only then do the blocks reach ``live.img``. A cut clones ``live.img``
(FICLONE): XFS locks the file against writes, so the clone is one instant, and it has nothing of the page cache of the server's
files, and nothing of the page cache of the drive.

A real drive may write any part of its cache to the medium before it is asked. So each cut first chooses what else arrives:
nothing, a random part (``sync_file_range``), or everything (fsync). ``disk.img`` is written with zeros once, so that such blocks
need no metadata of the drive's file system to be found again.

The next life begins on the clone: the old tower is taken down, the clone takes its place and its name, and mounting it replays
the journals of both ext4. All of it lies in a mount namespace of this process, and the loop devices are released with their last
mount: nothing remains, however the process ends.
"""

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
from enum import Enum
from pathlib import Path
from random import Random

CLONE_NEWNS = 0x00020000
FICLONE = 0x40049409
SYNC_FILE_RANGE_WRITE_AND_WAIT = 7
MEBIBYTE = 1 << 20
DISK_BYTES = 1024 * MEBIBYTE
DRIVE_BYTES = DISK_BYTES + 160 * MEBIBYTE
# Sparse: the first image, the live one and the clone share what is equal.
OUTER_BYTES = 16 * 1024 * MEBIBYTE
FREE_BYTES_MIN = 4 * 1024 * MEBIBYTE
PROGRAMS = {"mkfs.xfs": "xfsprogs", "mkfs.ext4": "e2fsprogs", "mount": "mount", "umount": "mount"}

_libc = ctypes.CDLL(None, use_errno=True)


class CannotCutPower(Exception):
    """This machine does not allow the experiment; the message says what is missing."""


class Unflushed(Enum):
    """What a cut keeps of the blocks that were written to the drive and not flushed."""

    NOTHING = "nothing"
    SOME = "some"
    EVERYTHING = "everything"


class PowerCutDisk:
    """``data`` is the directory to write to. Each ``cut`` replaces what is there by what the medium held at that moment."""

    def __init__(self, directory: Path) -> None:
        """``directory`` is an empty one; it should be in memory, because nothing here has to survive this process."""
        self._outer_file = directory / "outer.img"
        self._outer = directory / "outer"
        self._drive = directory / "drive"
        self.data = directory / "data"
        for mount_point in (self._outer, self._drive, self.data):
            mount_point.mkdir()

    def prepare(self) -> None:
        """Make the three file systems, and keep an image of them in which nothing was written yet."""
        _make_file(self._outer_file, OUTER_BYTES)
        _run("mkfs.xfs", "-q", "-m", "reflink=1", str(self._outer_file))
        _mount(self._outer_file, self._outer)
        _make_file(self._outer / "live.img", DRIVE_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", str(self._outer / "live.img"))
        _mount(self._outer / "live.img", self._drive)
        with (self._drive / "disk.img").open("wb") as disk:
            for _ in range(DISK_BYTES // MEBIBYTE):
                disk.write(bytes(MEBIBYTE))
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,nodiscard", str(self._drive / "disk.img"))
        _run("umount", str(self._drive))
        clone(self._outer / "live.img", self._outer / "new.img")

    def renew(self) -> None:
        """Put an empty disk in the place of the one that is there."""
        self._take_down()
        clone(self._outer / "new.img", self._outer / "live.img")
        self._put_up()

    def sync(self) -> None:
        """Everything that was written is on the medium."""
        _run("sync", "--file-system", str(self.data))

    def picture(self, random: Random, unflushed: Unflushed) -> None:
        """Take the instant picture; the disk goes on. ``restore`` makes the picture the disk."""
        self._write_back(random, unflushed)
        clone(self._outer / "live.img", self._outer / "cut.img")

    def restore(self) -> None:
        """Nobody may use the disk any more. Whatever was written after the picture is gone."""
        self._take_down()
        (self._outer / "cut.img").replace(self._outer / "live.img")
        self._put_up()

    def close(self) -> None:
        self._take_down()
        if self._outer.is_mount():
            _run("umount", str(self._outer))
        self._outer_file.unlink(missing_ok=True)

    def _put_up(self) -> None:
        _mount(self._outer / "live.img", self._drive)
        _mount(self._drive / "disk.img", self.data)
        device = Path(os.path.realpath(_source_of(self.data))).name
        if Path(f"/sys/block/{device}/loop/dio").read_text().strip() != "0":
            raise CannotCutPower("the loop device of disk.img uses direct I/O: the drive's file system would not be its cache")

    def _take_down(self) -> None:
        for mount_point in (self.data, self._drive):
            if mount_point.is_mount():
                _run("umount", str(mount_point))

    def _write_back(self, random: Random, unflushed: Unflushed) -> None:
        descriptor = os.open(self._drive / "disk.img", os.O_RDWR | os.O_CLOEXEC)
        try:
            if unflushed is Unflushed.EVERYTHING:
                os.fsync(descriptor)
            elif unflushed is Unflushed.SOME:
                for start in range(0, DISK_BYTES, MEBIBYTE):
                    first = random.randrange(0, MEBIBYTE, 4096)
                    length = random.randrange(0, MEBIBYTE - first + 1, 4096)
                    if length:
                        sync_file_range(descriptor, start + first, length)
        finally:
            os.close(descriptor)


def enter_private_mounts() -> None:
    """What this process and its children mount from now on is theirs alone, and goes with them."""
    if sys.platform != "linux":
        raise CannotCutPower("only Linux has loop devices and reflinks")
    if os.geteuid() != 0:
        raise CannotCutPower("mounting needs root")
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            raise CannotCutPower(f"{program} is not installed (on Debian: apt install {package})")
    if _libc.unshare(CLONE_NEWNS) != 0:
        raise CannotCutPower(f"no mount namespace of its own: {os.strerror(ctypes.get_errno())}")
    _run("mount", "--make-rprivate", "/")


def clone(source: Path, target: Path) -> None:
    """The same blocks under a second name, as they are at one instant."""
    with source.open("rb") as original, target.open("wb") as copy:
        fcntl.ioctl(copy, FICLONE, original.fileno())


def sync_file_range(descriptor: int, start: int, length: int) -> None:
    """Write these pages to the device, without a flush of the device's cache."""
    arguments = (ctypes.c_int64(start), ctypes.c_int64(length), ctypes.c_uint(SYNC_FILE_RANGE_WRITE_AND_WAIT))
    if _libc.sync_file_range(ctypes.c_int(descriptor), *arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _make_file(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def _mount(image: Path, mount_point: Path) -> None:
    _run("mount", "-o", "loop", str(image), str(mount_point))


def _source_of(mount_point: Path) -> str:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, target, _ = line.split(" ", 2)
        if target == str(mount_point):
            return source
    raise CannotCutPower(f"{mount_point} is not mounted")


def _run(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise CannotCutPower(f"{' '.join(command)} failed: {done.stdout.strip()}")
