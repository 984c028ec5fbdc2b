"""Small files that are replaced whole: a reader finds the old bytes or the new ones, also after a crash.

The bytes go to ``<path>.tmp``, are synced, and the name is moved over the old one; then the directory is synced, so that the
new bytes are durable when the write returns. A crash can leave a ``.tmp`` file, which means nothing and is overwritten.
"""

from tidelog.log.names import TEMPORARY_SUFFIX
from tidelog.ports.disk import Disk, DiskFile


class StagedFile:
    """A replacement in two steps, for whoever syncs many of them together: ``stage``, sync, ``publish``, sync."""

    __slots__ = ("_data", "_disk", "path")

    def __init__(self, disk: Disk, path: str, data: bytes) -> None:
        self._disk = disk
        self._data = data
        self.path = path

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0] or "/"

    def stage(self) -> DiskFile:
        """Write the bytes beside the old ones; they must be durable before ``publish``."""
        file = self._disk.open(self.path + TEMPORARY_SUFFIX, "create")
        # A file that a crash left here may be longer than the new bytes.
        file.truncate(0)
        file.write(0, [self._data])
        return file

    def publish(self) -> None:
        """Give them their name; durable with the next sync of the directory."""
        self._disk.rename(self.path + TEMPORARY_SUFFIX, self.path)


def write_atomically(disk: Disk, path: str, data: bytes) -> None:
    """Blocks until ``data`` is durable under ``path``. On an error the old file may or may not have been replaced."""
    staged = StagedFile(disk, path, data)
    staged.stage().sync()
    staged.publish()
    disk.sync_directory(staged.directory)


def read_whole(disk: Disk, path: str) -> bytes | None:
    """All bytes of a file; None when there is none."""
    try:
        file = disk.open(path, "read")
    except FileNotFoundError:
        return None
    return file.read(0, file.size())
