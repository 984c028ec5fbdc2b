"""The mark that a failed sync leaves behind.

After a failed fsync the kernel calls the lost pages clean: a second fsync succeeds, and a restarted process reads from the page
cache what never reached the disk. The mark, a file in the partition's directory, makes the next start drop the cache and check
what the disk itself holds, in all of the partition's files. It is removed when that check has ended well. (Recovery after a crash
never trusts the cache for what it checks: the process may have been killed before it could leave a mark.)
"""

from tidelog.log import names
from tidelog.ports.disk import Disk

REASON_BYTES_MAX = 1024


def leave_failed_sync_mark(disk: Disk, directory: str, reason: str) -> None:
    """Blocks on two syncs of a disk that is failing: there is nothing better to do with this partition any more."""
    file = disk.open(_failed_sync_path(directory), "create")
    file.write(0, [reason.encode()[:REASON_BYTES_MAX]])
    file.sync()
    disk.sync_directory(directory)


def has_failed_sync_mark(disk: Disk, directory: str) -> bool:
    return disk.exists(_failed_sync_path(directory))


def remove_failed_sync_mark(disk: Disk, directory: str) -> None:
    disk.remove(_failed_sync_path(directory))


def drop_cached_pages(disk: Disk, directory: str) -> None:
    for name in disk.list_directory(directory):
        disk.drop_cache(names.join(directory, name))


def _failed_sync_path(directory: str) -> str:
    return names.join(directory, names.FAILED_SYNC_MARK)
