"""Some disk space that is kept back for what a broker must write in order to make room again.

A broker that filled its disk must still be able to start, to record that a topic was deleted or that its retention was lowered,
and to write the checkpoints without which no segment may be removed. All of that together is a few kilobytes, but a full disk
does not have them. The file ``disk-reserve`` takes up ``tidelog.disk.reserve.bytes`` of zeros. When one of these writes finds no
room, the file is emptied and the write is tried once more.

While the reserve is released the data directory is read-only for everybody else: records of clients and coordinators, and new
topics, are refused, because they would take what was released. As soon as retention, DeleteRecords or a deleted topic have made
enough room, the file is filled again and writing goes on, without a restart.

The file means nothing by itself and is never synced. A crash may leave it empty or in part: the next start fills it if there is
room, and otherwise begins with a released reserve.

Writes run on the executor too, so ``release`` may be called from a helper thread. It only empties a file and sets a flag.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tidelog.log.environment import Report
from tidelog.log.errors import StorageError
from tidelog.log.names import DISK_RESERVE, join
from tidelog.ports.disk import Disk, SyncFailed
from tidelog.ports.executor import Completion, Executor

# The reserve is filled again only when this much is free beside it. Otherwise each checkpoint would release it once more.
FREE_BESIDE_BYTES_MIN = 1 << 20

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_Result = TypeVar("_Result")


class DiskReserve:
    __slots__ = ("_directory", "_disk", "_is_filling", "_path", "_report", "_size_bytes", "is_released")

    def __init__(self, disk: Disk, directory: str, size_bytes: int, report: Report) -> None:
        """``size_bytes`` 0 means that nothing is kept back."""
        self._disk = disk
        self._directory = directory
        self._path = join(directory, DISK_RESERVE)
        self._size_bytes = size_bytes
        self._report = report
        self._is_filling = False
        self.is_released = False
        """Whether only what makes room may be written."""

    def open(self) -> None:
        """Fill the file if need be. Blocks. Without room for it the reserve counts as released."""
        if not self._size_bytes:
            return
        try:
            if not self._disk.exists(self._path) or self._disk.file_size(self._path) < self._size_bytes:
                self._fill()
        except OSError as error:
            self._note_released(error)

    @property
    def is_idle(self) -> bool:
        return not self._is_filling

    def check(self) -> None:
        """Refuse a write that could take the room that was released."""
        if self.is_released:
            raise StorageError("the disk is full: nothing is written until retention or a deleted topic has made room")

    def use(self, write: Callable[[], _Result]) -> _Result:
        """Run a write that must be possible on a full disk: once more, with the reserve released, if it finds no room. ``write``
        may be run twice."""
        try:
            return write()
        except OSError as error:
            # A failed sync is not a lack of room, whatever its number: nothing is known about the pages that it covered.
            if error.errno not in _FULL or isinstance(error, SyncFailed) or not self.may_have_made_room(error):
                raise
        return write()

    def may_have_made_room(self, reason: Exception) -> bool:
        """Free the reserve, unless somebody else has just done so: a helper thread may have been faster."""
        return self.release(reason) or self.is_released

    def release(self, reason: Exception) -> bool:
        """Free the reserve. Returns whether that may have made room."""
        if self.is_released or not self._size_bytes:
            return False
        try:
            self._disk.open(self._path, "create").truncate(0)
        except OSError:
            return False
        self._note_released(reason)
        return True

    def _note_released(self, reason: Exception) -> None:
        self.is_released = True
        self._report("disk_full", {"directory": self._directory, "error": str(reason)})

    def tick(self, executor: Executor) -> None:
        """Take the reserve back when there is room for it."""
        if not self.is_released or self._is_filling:
            return
        if self._disk.free_bytes(self._directory) < self._size_bytes + FREE_BESIDE_BYTES_MIN:
            return
        self._is_filling = True
        executor.submit(self._fill, self._filled)

    def _fill(self) -> None:
        file = self._disk.open(self._path, "create")
        try:
            file.write(0, [bytes(self._size_bytes)])
        except OSError:
            with suppress(OSError):
                file.truncate(0)
            raise

    def _filled(self, completion: Completion) -> None:
        self._is_filling = False
        if completion.error is None:
            self.is_released = False
            self._report("disk_has_room", {"directory": self._directory})
