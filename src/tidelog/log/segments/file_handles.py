"""Open files on demand, within a limit.

Ten thousand partitions have more segments than a process may open. Files are opened on use, and the least recently used one is
dropped when there are too many. Dropping only releases this reference: a reader that holds a slice, or a log with unsynced bytes
in the file, keeps its own, and the descriptor closes with the last reference.
"""

from collections import OrderedDict

from tidelog.ports.disk import Disk, DiskFile


class FileHandles:
    __slots__ = ("_disk", "_files", "_open_max")

    def __init__(self, disk: Disk, open_max: int) -> None:
        self._disk = disk
        self._open_max = open_max
        self._files: OrderedDict[str, DiskFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def open(self, path: str) -> DiskFile:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        file = self._disk.open(path, "write")
        self._keep(path, file)
        return file

    def create(self, path: str) -> DiskFile:
        file = self._disk.open(path, "create")
        self._keep(path, file)
        return file

    def forget(self, path: str) -> None:
        """Called when the name refers to another file, or no longer to any."""
        self._files.pop(path, None)

    def _keep(self, path: str, file: DiskFile) -> None:
        self._files[path] = file
        while len(self._files) > self._open_max:
            self._files.popitem(last=False)
