"""Small files that are replaced whole: a reader finds the old bytes or the new ones, also after a crash.

The bytes go to ``<path>.tmp``, are synced, and the name is moved over the old one; then the directory is synced, so that the
new bytes are durable when the write returns. A crash can leave a ``.tmp`` file, which means nothing and is overwritten.
"""

from tidelog.log.names import TEMPORARY_SUFFIX
from tidelog.ports.disk import Disk


def write_atomically(disk: Disk, path: str, data: bytes) -> None:
    """Blocks until ``data`` is durable under ``path``. On an error the old file may or may not have been replaced."""
    temporary_path = path + TEMPORARY_SUFFIX
    file = disk.open(temporary_path, "create")
    # A file that a crash left here may be longer than the new bytes.
    file.truncate(0)
    file.write(0, [data])
    file.sync()
    disk.rename(temporary_path, path)
    disk.sync_directory(path.rpartition("/")[0] or "/")


def read_whole(disk: Disk, path: str) -> bytes | None:
    """All bytes of a file; None when there is none."""
    try:
        file = disk.open(path, "read")
    except FileNotFoundError:
        return None
    return file.read(0, file.size())
