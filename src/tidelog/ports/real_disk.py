"""The operating system's disk.

Descriptors are plain ``os`` calls at explicit positions, so there is no buffer of our own that a crash could lose. What not every
system has comes from ``system``. Where there is no ``syncfs``, it is refused and the caller syncs file by file.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import Literal

from tidelog.ports import system
from tidelog.ports.disk import Buffer, DirectoryLock, DiskFile, FileSystem, OpenMode, SyncFailed

# Linux takes at most this many buffers in one gathered write (IOV_MAX).
GATHER_BUFFERS_MAX = 1024

_OPEN_FLAGS: dict[OpenMode, int] = {
    "read": os.O_RDONLY | system.O_CLOEXEC | system.O_BINARY,
    "write": os.O_RDWR | system.O_CLOEXEC | system.O_BINARY,
    "create": os.O_RDWR | os.O_CREAT | system.O_CLOEXEC | system.O_BINARY,
}
# Records may hold anything, so only the broker's own user may read its files.
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700

SyncKind = Literal["file", "directory", "filesystem"]
# Called with the kind and the path when a sync begins; returns a function to call when it has succeeded.
OnSync = Callable[[SyncKind, str], Callable[[], None]]


class RealFile:
    __slots__ = ("__weakref__", "_descriptor", "_path")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        # A signal or a page boundary may cut a read short of the end of the file; only an empty read is the end.
        parts = [data]
        remaining = length - len(data)
        while remaining:
            position += len(data)
            data = os.pread(self._descriptor, remaining, position)
            if not data:
                break
            parts.append(data)
            remaining -= len(data)
        return b"".join(parts)

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        total = 0
        for buffer in buffers:
            total += len(buffer)
        if len(buffers) <= GATHER_BUFFERS_MAX:
            written = system.write_gathered(self._descriptor, buffers, position)
            if written == total:
                return total
        else:
            written = 0
        self._write_rest(position, buffers, written)
        return total

    def _write_rest(self, position: int, buffers: Sequence[Buffer], written: int) -> None:
        """Continue after a short write (a nearly full disk gives one before it gives ENOSPC)."""
        skip = written
        position += written
        for buffer in buffers:
            if skip >= len(buffer):
                skip -= len(buffer)
                continue
            view = memoryview(buffer)[skip:]
            skip = 0
            while view:
                count = os.pwrite(self._descriptor, view, position)
                position += count
                view = view[count:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        try:
            system.sync_data(self._descriptor)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, self._path) from error

    def descriptor(self) -> int:
        return self._descriptor


class RealFileSystem:
    """Keeps one descriptor open: the kernel reports through it each write-back error since it was opened, once."""

    __slots__ = ("_descriptor", "_on_sync", "_path")

    def __init__(self, path: str, descriptor: int, on_sync: OnSync | None) -> None:
        self._path = path
        self._descriptor = descriptor
        self._on_sync = on_sync

    def __del__(self) -> None:
        os.close(self._descriptor)

    def sync(self) -> None:
        finished = self._on_sync("filesystem", self._path) if self._on_sync is not None else None
        try:
            system.sync_file_system(self._descriptor)
        except OSError as error:
            if error.errno == errno.ENOSYS:
                raise OSError(errno.ENOSYS, error.strerror, self._path) from error
            raise SyncFailed(error.errno, error.strerror, self._path) from error
        if finished is not None:
            finished()


class RealLock:
    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealDisk:
    """``on_sync`` is called for every sync that begins, and what it returns is called when the sync has succeeded: a test that
    plays a power cut keeps only what was there when such a sync began."""

    __slots__ = ("_on_sync",)

    def __init__(self, on_sync: OnSync | None = None) -> None:
        self._on_sync = on_sync

    def open(self, path: str, mode: OpenMode) -> DiskFile:
        descriptor = os.open(path, _OPEN_FLAGS[mode], _FILE_MODE)
        if self._on_sync is not None:
            return _ReportingFile(path, descriptor, self._on_sync)
        return RealFile(path, descriptor)

    def exists(self, path: str) -> bool:
        return _status(path) is not None

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def is_directory(self, path: str) -> bool:
        status = _status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def make_directory(self, path: str) -> None:
        try:
            os.mkdir(path, _DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | system.O_DIRECTORY | system.O_CLOEXEC)
        finished = self._on_sync("directory", path) if self._on_sync is not None else None
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, path) from error
        finally:
            os.close(descriptor)
        if finished is not None:
            finished()

    def open_filesystem(self, path: str) -> FileSystem:
        return RealFileSystem(path, os.open(path, os.O_RDONLY | system.O_CLOEXEC), self._on_sync)

    def drop_cache(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | system.O_CLOEXEC)
        try:
            system.drop_cached(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        return system.disk_bytes(path)[1]

    def total_bytes(self, path: str) -> int:
        return system.disk_bytes(path)[0]

    def lock(self, path: str) -> DirectoryLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | system.O_CLOEXEC, _FILE_MODE)
        try:
            system.lock_exclusively(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return RealLock(descriptor)


class _ReportingFile(RealFile):
    __slots__ = ("_on_sync",)

    def __init__(self, path: str, descriptor: int, on_sync: OnSync) -> None:
        super().__init__(path, descriptor)
        self._on_sync = on_sync

    def sync(self) -> None:
        finished = self._on_sync("file", self._path)
        super().sync()
        finished()


def _status(path: str) -> os.stat_result | None:
    """Return None when the name does not exist. Any other error is raised: a file that cannot be inspected is not missing, and a
    caller that took it for missing would overwrite it."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
