"""The real disk, with faults that a test switches on and off while the broker runs, by a file in a directory of switches."""

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.ports.disk import Buffer, DiskFile, FileSystem, OpenMode
from tidelog.ports.real_disk import OnSync, RealDisk, RealFile

WRITE_ERROR = "write-error"
SYNC_ERROR = "sync-error"


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """``switches`` is a directory; a file ``write-error`` or ``sync-error`` in it holds a part of the paths that fail with EIO.
    A sync of a file or directory with ``forgotten_file`` or ``forgotten_directory`` in its path does nothing: a planted bug."""

    switches: str | None = None
    forgotten_file: str | None = None
    forgotten_directory: str | None = None
    sync_seconds: float = 0.0
    """What a sync of a file takes longer than it would."""

    def check(self, switch: str, path: str) -> None:
        if self.switches is None:
            return
        try:
            affected = Path(self.switches, switch).read_text()
        except FileNotFoundError:
            return
        if affected in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)


class FaultyDisk(RealDisk):
    def __init__(self, faults: DiskFaults, on_sync: OnSync | None) -> None:
        super().__init__(on_sync)
        self._faults = faults
        self._heard = on_sync

    def open(self, path: str, mode: OpenMode) -> DiskFile:
        flags = {"read": os.O_RDONLY, "write": os.O_RDWR, "create": os.O_RDWR | os.O_CREAT}[mode]
        return _FaultyFile(path, os.open(path, flags | os.O_CLOEXEC, 0o600), self._faults, self._heard)

    def sync_directory(self, path: str) -> None:
        if self._faults.forgotten_directory is None or self._faults.forgotten_directory not in path:
            super().sync_directory(path)

    def open_filesystem(self, path: str) -> FileSystem:
        return _NoFileSystemSync() if self._faults != DiskFaults() else super().open_filesystem(path)


class _NoFileSystemSync:
    """A disk with faults of single files syncs file by file."""

    def sync(self) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


class _FaultyFile(RealFile):
    def __init__(self, path: str, descriptor: int, faults: DiskFaults, on_sync: OnSync | None) -> None:
        super().__init__(path, descriptor)
        self._faults = faults
        self._on_sync = on_sync

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._faults.check(WRITE_ERROR, self.path)
        return super().write(position, buffers)

    def sync(self) -> None:
        self._faults.check(SYNC_ERROR, self.path)
        time.sleep(self._faults.sync_seconds)
        if self._faults.forgotten_file is not None and self._faults.forgotten_file in self.path:
            return
        finished = self._on_sync("file", self.path) if self._on_sync is not None else None
        super().sync()
        if finished is not None:
            finished()
