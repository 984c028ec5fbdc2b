"""The disk port.

It is small and blunt on purpose: whole-path strings, explicit positions, no hidden buffering, and durability only on request.
``write`` puts bytes into the page cache; ``sync`` makes a file's bytes durable; ``sync_directory`` makes the names in a directory
durable (create, rename, remove). The simulated version keeps exactly these three apart.

Errors are ``OSError`` with its errno, as the kernel gave it: the log decides what ENOSPC and EIO mean. An error of a sync itself
is a ``SyncFailed``, because the same errno means different things there: ENOMEM while opening a directory is a shortage, but
ENOMEM from fsync means that written pages may be lost.

A ``DiskFile`` closes its descriptor when the last reference goes. Readers hold the file they slice, so that deleting or evicting
a segment never pulls the descriptor from under a ``sendfile``.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

Buffer = bytes | bytearray | memoryview
OpenMode = Literal["read", "write", "create"]


class SyncFailed(OSError):
    """A sync ran and failed: nothing is known any more about the pages that it covered, not even after a second one succeeds."""


class DiskFile(Protocol):
    @property
    def path(self) -> str:
        """The path it was opened under; a rename does not change it."""
        ...

    def size(self) -> int: ...

    def read(self, position: int, length: int) -> bytes:
        """Read up to ``length`` bytes; fewer only at the end of the file."""
        ...

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers at ``position`` in one gathered write, and return the number of bytes. On an error any part may have
        been written."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Call fdatasync: bytes and size are durable when this returns. Blocks; belongs on the executor. Raises SyncFailed."""
        ...

    def descriptor(self) -> int:
        """The operating system's descriptor, for sendfile. A simulated file has none and raises OSError."""
        ...


class FileSystem(Protocol):
    def sync(self) -> None:
        """Call syncfs: everything written to this file system before the call, including names, is durable when it returns.
        Blocks. Raises SyncFailed, or OSError with ENOSYS where it cannot be used."""
        ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, mode: OpenMode) -> DiskFile:
        """``read``: existing, read only. ``write``: existing, read and write. ``create``: as ``write``, made if missing."""
        ...

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When the file's bytes last changed, by the wall clock."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Make one directory; its parent must exist. No error if it is there already."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing a file of that name."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the directory's entries durable. Blocks; belongs on the executor. Raises SyncFailed, or another OSError when the
        directory could not be opened and nothing happened."""
        ...

    def open_filesystem(self, path: str) -> FileSystem:
        """Open the file system that holds ``path``. Open it before the first write: it reports only errors since then."""
        ...

    def drop_cache(self, path: str) -> None:
        """Drop the cached clean pages of a file, so that the next read comes from the disk itself."""
        ...

    def free_bytes(self, path: str) -> int:
        """The number of bytes that can still be written to the file system of ``path``."""
        ...

    def total_bytes(self, path: str) -> int:
        """The size of the file system of ``path``."""
        ...

    def lock(self, path: str) -> DirectoryLock:
        """Take an exclusive lock file. Raises BlockingIOError when another process holds it."""
        ...
