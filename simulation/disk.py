"""The simulated disk: in memory, with the page cache, the disk below it and a power cut between the two.

What a write leaves is in the cache (``Inode``), what a rename leaves is a pending name (``names``); ``sync``,
``sync_directory`` and ``FileSystem.sync`` make them durable, each only its own part: a synced file whose directory was not
synced may be gone.

``crash_image`` makes an independent disk as it may look after a power cut now, and leaves this one running; ``crash`` does the
same in place. ``keep`` says what of the un-synced state is left: "some" (any part, in any order), "none" (only what was synced)
or "all" (kill -9: the page cache survives, and what was un-synced still is).

``on_operation`` is called before every mutating or syncing operation, and may raise ``Crashed`` to die there: the operation
then does not happen. A crash between the halves of one operation needs no hook: a write that came before may be torn by the
image.

Room is counted by file size: holes count, a removed file gives its room back at once even while it is open.
"""

import errno
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from simulation.faults import Faults
from simulation.file import SimulatedFile, SimulatedFileSystem, SimulatedLock
from simulation.inode import Inode
from simulation.names import Directory, NameOperation, Node, PendingNames, after_kill, after_power_cut, walk
from tidelog.ports.clock import Clock
from tidelog.ports.disk import DirectoryLock, DiskFile, FileSystem, OpenMode
from tidelog.ports.randomness import Randomness

Keep = Literal["some", "none", "all"]
OnOperation = Callable[[str, str], None]

# What ``free_bytes`` says of a disk whose room was not limited: more than any test fills.
UNLIMITED_FREE_BYTES = 1 << 40


class Crashed(BaseException):
    """The simulated machine died here. Not an Exception: code under test that survives any error must not survive this."""


class SimulatedDisk:
    __slots__ = (
        "_free_bytes",
        "clock",
        "faults",
        "generation",
        "names",
        "on_operation",
        "operation_count",
        "root",
        "writeback_error_count",
    )

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.root = Directory()
        self.names = PendingNames()
        self.faults = Faults()
        self.on_operation: OnOperation | None = None
        self.operation_count = 0
        # Counts crashes in place, so that files opened before know that their process is dead.
        self.generation = 0
        self.writeback_error_count = 0
        self._free_bytes: int | None = None

    # Crashing.

    def crash_image(self, randomness: Randomness | None = None, keep: Keep = "some") -> "SimulatedDisk":
        """A new disk, without hook and faults, as this one may look after a crash now. "some" needs randomness."""
        if keep == "some" and randomness is None:
            raise ValueError('a crash image that keeps "some" needs randomness')
        image = SimulatedDisk(self.clock)
        if keep == "all":
            image.root, image.names = after_kill(self.root, self.names)
        else:
            image.root = after_power_cut(self.root, self.names, randomness if keep == "some" else None)
        if self._free_bytes is not None:
            image._free_bytes = self._free_bytes + _used_bytes(self.root) - _used_bytes(image.root)
        return image

    def crash(self, randomness: Randomness | None = None, keep: Keep = "some") -> None:
        """Become one's own crash image: open files and locks are gone, hook and faults stay."""
        image = self.crash_image(randomness, keep)
        self.root = image.root
        self.names = image.names
        self._free_bytes = image._free_bytes
        self.generation += 1

    def before(self, operation: str, path: str) -> None:
        """Count an operation and tell the hook."""
        self.operation_count += 1
        if self.on_operation is not None:
            self.on_operation(operation, path)

    # Faults beyond ``faults``, which only knows paths.

    def set_free_bytes(self, free_bytes: int | None) -> None:
        """From now on there is room for this many bytes more; None lifts the limit."""
        self._free_bytes = free_bytes

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Damage a stored byte."""
        self._file(path).flip_bit(position, bit)

    def take_room(self, length: int) -> bool:
        if self._free_bytes is None:
            return True
        if self._free_bytes < length:
            return False
        self._free_bytes -= length
        return True

    def take_all_room(self) -> int:
        room = max(0, self._free_bytes or 0)
        self._free_bytes = 0
        return room

    def give_room(self, length: int) -> None:
        if self._free_bytes is not None:
            self._free_bytes += length

    # The port.

    def open(self, path: str, mode: OpenMode) -> DiskFile:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            if mode != "create":
                raise _error(errno.ENOENT, path)
            node = self._create(directory, name, path)
        elif isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        return SimulatedFile(self, path, node, writable=mode != "read")

    def exists(self, path: str) -> bool:
        return self._lookup(path) is not None

    def file_size(self, path: str) -> int:
        return len(self._file(path).data)

    def modified_ms(self, path: str) -> int:
        return self._file(path).modified_ms

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def is_directory(self, path: str) -> bool:
        return isinstance(self._lookup(path), Directory)

    def make_directory(self, path: str) -> None:
        if not _split(path):
            return
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            self._before_naming("make_directory", path)
            made = Directory()
            self.names.add(NameOperation(((directory, name, made),), (made,)))
        elif isinstance(node, Inode):
            raise _error(errno.EEXIST, path)

    def rename(self, old: str, new: str) -> None:
        old_directory, old_name = self._parent(old)
        new_directory, new_name = self._parent(new)
        node = old_directory.entries.get(old_name)
        if node is None:
            raise _error(errno.ENOENT, old)
        replaced = new_directory.entries.get(new_name)
        if replaced is node:
            return
        if replaced is not None:
            _check_replaceable(node, replaced, new)
        if isinstance(node, Directory) and _split(new)[: len(_split(old))] == _split(old):
            raise _error(errno.EINVAL, new)
        self._before_naming("rename", old)
        nodes: tuple[Node, ...] = (node,) if replaced is None else (node, replaced)
        self.names.add(NameOperation(((old_directory, old_name, None), (new_directory, new_name, node)), nodes))
        if isinstance(replaced, Inode):
            self._unlinked(replaced)

    def remove(self, path: str) -> None:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        self._before_naming("remove", path)
        self.names.add(NameOperation(((directory, name, None),), (node,)))
        self._unlinked(node)

    def remove_directory(self, path: str) -> None:
        removed = self._directory(path)
        if removed.entries:
            raise _error(errno.ENOTEMPTY, path)
        directory, name = self._parent(path)
        self._before_naming("remove_directory", path)
        self.names.add(NameOperation(((directory, name, None),), (removed,), removed_directory=removed))

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self.before("sync_directory", path)
        if self.faults.rules:
            self.faults.check("sync", path)
        self.names.sync(directory)

    def open_filesystem(self, path: str) -> FileSystem:
        if self._lookup(path) is None:
            raise _error(errno.ENOENT, path)
        return SimulatedFileSystem(self, path)

    def drop_cache(self, path: str) -> None:
        self._file(path).drop_clean_pages()

    def free_bytes(self, path: str) -> int:
        if self._lookup(path) is None:
            raise _error(errno.ENOENT, path)
        return UNLIMITED_FREE_BYTES if self._free_bytes is None else max(0, self._free_bytes)

    def total_bytes(self, path: str) -> int:
        return self.free_bytes(path) + _used_bytes(self.root)

    def lock(self, path: str) -> DirectoryLock:
        self.open(path, "create")
        inode = self._file(path)
        if inode.locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        return SimulatedLock(inode)

    # Names.

    def _create(self, directory: Directory, name: str, path: str) -> Inode:
        self._before_naming("create", path)
        inode = Inode(self.clock.now_ms())
        self.names.add(NameOperation(((directory, name, inode),), (inode,)))
        return inode

    def _before_naming(self, operation: str, path: str) -> None:
        self.before(operation, path)
        if self.faults.rules:
            self.faults.check("names", path)

    def _unlinked(self, inode: Inode) -> None:
        inode.linked = False
        self.give_room(len(inode.data))

    def _parent(self, path: str) -> tuple[Directory, str]:
        """The directory that holds a path's last name, and that name."""
        parts = _split(path)
        if not parts:
            raise _error(errno.EISDIR, path)
        directory = self.root
        for part in parts[:-1]:
            node = directory.entries.get(part)
            if node is None:
                raise _error(errno.ENOENT, path)
            if isinstance(node, Inode):
                raise _error(errno.ENOTDIR, path)
            directory = node
        return directory, parts[-1]

    def _lookup(self, path: str) -> Node | None:
        node: Node | None = self.root
        for part in _split(path):
            if not isinstance(node, Directory):
                return None
            node = node.entries.get(part)
        return node

    def _file(self, path: str) -> Inode:
        node = self._lookup(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> Directory:
        node = self._lookup(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, Inode):
            raise _error(errno.ENOTDIR, path)
        return node


@lru_cache(maxsize=65_536)
def _split(path: str) -> tuple[str, ...]:
    """The names of a path; absolute and relative ones both start at the root."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise _error(errno.EINVAL, path)
    return parts


def _check_replaceable(node: Node, replaced: Node, path: str) -> None:
    if isinstance(replaced, Inode):
        if isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)
    elif isinstance(node, Inode):
        raise _error(errno.EISDIR, path)
    elif replaced.entries:
        raise _error(errno.ENOTEMPTY, path)


def _used_bytes(root: Directory) -> int:
    return sum(len(inode.data) for _, inode in walk(root))


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
