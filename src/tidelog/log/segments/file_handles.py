"""Open files on demand, within a limit.

Ten thousand partitions have more segments than a process may open. Files are opened on use, and the least recently used one is
dropped when there are too many. Dropping only releases this reference: a reader that holds a slice, or a log with unsynced bytes
in the file, keeps its own, and the descriptor closes with the last reference. While somebody holds a dropped file, whoever opens
it again gets the same one: stalled readers cost a descriptor per file, not one per slice.

When the process has no descriptor left, all files that are only cached are dropped, and the open is tried once more.
"""

import errno
from collections import OrderedDict
from weakref import WeakValueDictionary

from tidelog.ports.disk import Disk, DiskFile, OpenMode


class FileHandles:
    __slots__ = ("_alive", "_disk", "_files", "_open_max")

    def __init__(self, disk: Disk, open_max: int) -> None:
        self._disk = disk
        self._open_max = open_max
        self._files: OrderedDict[str, DiskFile] = OrderedDict()
        # Every file that somebody still holds, here or elsewhere.
        self._alive: WeakValueDictionary[str, DiskFile] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._files)

    def open(self, path: str) -> DiskFile:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        file = self._alive.get(path)
        if file is None:
            file = self._open(path, "write")
        self._keep(path, file)
        return file

    def create(self, path: str) -> DiskFile:
        file = self._open(path, "create")
        self._keep(path, file)
        return file

    def _open(self, path: str, mode: OpenMode) -> DiskFile:
        try:
            return self._disk.open(path, mode)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                raise
            self._files.clear()
            return self._disk.open(path, mode)

    def forget(self, path: str) -> None:
        """Called when the name refers to another file, or no longer to any."""
        self._files.pop(path, None)
        self._alive.pop(path, None)

    def _keep(self, path: str, file: DiskFile) -> None:
        self._files[path] = self._alive[path] = file
        while len(self._files) > self._open_max:
            self._files.popitem(last=False)
