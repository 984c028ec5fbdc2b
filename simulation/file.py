"""An open simulated file, an open simulated file system, and a held lock.

An open file holds its inode, so it goes on working after a rename or a removal. After a crash of the machine in place it
belongs to a dead process: everything on it fails with EBADF.
"""

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulation.inode import Inode
from simulation.names import walk
from tidelog.ports.disk import Buffer

if TYPE_CHECKING:
    from simulation.disk import SimulatedDisk


class SimulatedFile:
    __slots__ = ("_disk", "_error_count_seen", "_generation", "_inode", "_path", "_writable")

    def __init__(self, disk: "SimulatedDisk", path: str, inode: Inode, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable
        self._generation = disk.generation
        self._error_count_seen = inode.error_count

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return len(self._inode.data)

    def read(self, position: int, length: int) -> bytes:
        disk = self._disk
        if self._generation != disk.generation:
            raise _bad_descriptor(self._path)
        if position < 0 or length < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
        if disk.faults.rules:
            disk.faults.check("read", self._path)
        return self._inode.read(position, length)

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._begin_change("write", position)
        disk = self._disk
        inode = self._inode
        if disk.faults.misdirected:
            position = disk.faults.misdirected.pop(self._path, position)
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        length = len(data)
        growth = position + length - len(inode.data)
        if growth > 0 and inode.linked and not disk.take_room(growth):
            self._write_what_fits(position, data)
        inode.write(position, data)
        inode.modified_ms = disk.clock.now_ms()
        return length

    def _write_what_fits(self, position: int, data: Buffer) -> None:
        """A full disk: the kernel writes what there is room for, and then gives ENOSPC for the rest."""
        disk = self._disk
        inode = self._inode
        disk.faults.found_full()
        room = disk.take_all_room()
        fitting = max(0, len(inode.data) + room - position)
        if fitting:
            inode.write(position, memoryview(data)[:fitting])
            inode.modified_ms = disk.clock.now_ms()
        else:
            disk.give_room(room)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)

    def truncate(self, size: int) -> None:
        self._begin_change("truncate", size)
        inode = self._inode
        if inode.linked:
            self._disk.give_room(len(inode.data) - size)
        inode.truncate(size)
        inode.modified_ms = self._disk.clock.now_ms()

    def sync(self) -> None:
        disk = self._disk
        self._check_alive()
        disk.before("sync", self._path)
        inode = self._inode
        if disk.faults.rules:
            error = disk.faults.find("sync", self._path)
            if error is not None:
                inode.fail_sync()
                disk.writeback_error_count += 1
                self._error_count_seen = inode.error_count
                raise error
        inode.sync()
        if self._error_count_seen != inode.error_count:
            # Another sync of these pages failed; Linux reports that once through every descriptor that was open then.
            self._error_count_seen = inode.error_count
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)

    def descriptor(self) -> int:
        raise OSError(errno.EBADF, "a simulated file has no descriptor", self._path)

    def _check_alive(self) -> None:
        if self._generation != self._disk.generation:
            raise _bad_descriptor(self._path)

    def _begin_change(self, operation: str, position: int) -> None:
        disk = self._disk
        if not self._writable or self._generation != disk.generation:
            raise _bad_descriptor(self._path)
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
        disk.before(operation, self._path)
        if disk.faults.rules:
            disk.faults.check("write", self._path)


class SimulatedFileSystem:
    """Reports a failed write-back of any file since it was opened, once, as an open descriptor does for syncfs."""

    __slots__ = ("_disk", "_error_count_seen", "_path")

    def __init__(self, disk: "SimulatedDisk", path: str) -> None:
        self._disk = disk
        self._path = path
        self._error_count_seen = disk.writeback_error_count

    def sync(self) -> None:
        disk = self._disk
        disk.before("sync_filesystem", self._path)
        rules = disk.faults.rules
        # An error on the file system itself strikes every file, one on a file only that file.
        own_error = error = disk.faults.find("sync", self._path) if rules else None
        for path, inode in walk(disk.root):
            if inode.is_synced():
                continue
            file_error = own_error or (disk.faults.find("sync", path) if rules else None)
            if file_error is None:
                inode.sync()
            else:
                inode.fail_sync()
                disk.writeback_error_count += 1
                error = error or file_error
        if error is None:
            disk.names.sync_all()
        if self._error_count_seen != disk.writeback_error_count:
            self._error_count_seen = disk.writeback_error_count
            error = error or OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        if error is not None:
            raise error


class SimulatedLock:
    __slots__ = ("_inode",)

    def __init__(self, inode: Inode) -> None:
        inode.locked = True
        self._inode: Inode | None = inode

    def release(self) -> None:
        if self._inode is not None:
            self._inode.locked = False
            self._inode = None


def _bad_descriptor(path: str) -> OSError:
    return OSError(errno.EBADF, os.strerror(errno.EBADF), path)
