"""The simulated disk: in memory, with the page cache, the disk below it and a power cut between the two.

A write is in the cache (``Inode``) and a rename is a pending name (``names``) until ``sync``, ``sync_directory`` or
``FileSystem.sync`` makes it durable. Each covers only its own part: a synced file whose directory was not synced may be gone.

``crash_image`` makes an independent disk as it may look after a power cut now, and leaves this one running; ``crash`` does the
same in place. ``keep`` says what remains of the unsynced state: "some" (any part, in any order), "none" (only what was synced)
or "all" (kill -9: the page cache survives, and what was unsynced still is).

``on_operation`` is called before every mutating or syncing operation, and may raise ``Crashed`` to die there: the operation
then does not happen. A crash between the halves of one operation needs no hook, because the image may tear an earlier write.

A ``FaultRule`` names an operation (open, read, write, sync, names), the paths it strikes and the error it gives: once, a number
of times, or until it is lifted. ``open`` stands for everything that needs a new descriptor: opening a file, listing a directory
and syncing one; ``names`` for create, mkdir, rename, remove and rmdir; ``sync`` for files, directories and the file system
alike. A misdirected write strikes the next write to one path and gives no error at all.

Free space is counted by file size: holes count, and a removed file returns its space at once, even while it is open. An open file
holds its inode, so it goes on working after a rename or a removal. After a crash in place it belongs to a dead process, and
everything on it fails with EBADF.
"""

import errno
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

from simulation.inode import Inode
from simulation.names import Directory, NameOperation, Node, PendingNames, after_kill, after_power_cut, walk
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Buffer, DirectoryLock, DiskFile, FileSystem, OpenMode, SyncFailed
from tidelog.ports.randomness import Randomness

FaultyOperation = Literal["open", "read", "write", "sync", "names"]


class FaultRule:
    __slots__ = ("error_number", "matches", "operation", "remaining")

    def __init__(self, operation: FaultyOperation, matches: Callable[[str], bool], error_number: int, times: int | None) -> None:
        self.operation = operation
        self.matches = matches
        self.error_number = error_number
        self.remaining = times


class Faults:
    __slots__ = ("misdirected", "on_full", "rules")

    def __init__(self) -> None:
        self.rules: list[FaultRule] = []
        self.misdirected: dict[str, int] = {}
        # Called once, by the next write that finds no room.
        self.on_full: Callable[[], None] | None = None

    def fail(
        self,
        operation: FaultyOperation,
        matches: Callable[[str], bool],
        error_number: int = errno.EIO,
        times: int | None = None,
    ) -> FaultRule:
        """Make ``operation`` fail on matching paths, the next ``times`` times or until ``lift``."""
        rule = FaultRule(operation, matches, error_number, times)
        self.rules.append(rule)
        return rule

    def lift(self, rule: FaultRule) -> None:
        """End a rule; no error if it has run out already."""
        if rule in self.rules:
            self.rules.remove(rule)

    def misdirect_next_write(self, path: str, position: int) -> None:
        """The next write to a file opened as ``path`` lands at ``position`` instead."""
        self.misdirected[path] = position

    def clear(self) -> None:
        self.rules.clear()
        self.misdirected.clear()
        self.on_full = None

    def found_full(self) -> None:
        on_full, self.on_full = self.on_full, None
        if on_full is not None:
            on_full()

    def find(self, operation: FaultyOperation, path: str) -> OSError | None:
        """Return the error that this operation must raise, and use up one of its rule's times."""
        for rule in self.rules:
            if rule.operation == operation and rule.matches(path):
                if rule.remaining is not None:
                    rule.remaining -= 1
                    if rule.remaining <= 0:
                        self.rules.remove(rule)
                kind = SyncFailed if operation == "sync" else OSError
                return kind(rule.error_number, os.strerror(rule.error_number), path)
        return None

    def check(self, operation: FaultyOperation, path: str) -> None:
        error = self.find(operation, path)
        if error is not None:
            raise error


class SimulatedFile:
    __slots__ = ("__weakref__", "_disk", "_error_count_seen", "_generation", "_inode", "_path", "_writable")

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
        """Write to a full disk: the kernel writes what there is room for, and then gives ENOSPC for the rest."""
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
            raise SyncFailed(errno.EIO, os.strerror(errno.EIO), self._path)

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
            error = error or SyncFailed(errno.EIO, os.strerror(errno.EIO), self._path)
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


Keep = Literal["some", "none", "all"]
OnOperation = Callable[[str, str], None]

# The ``free_bytes`` of a disk without a limit: more than any test fills.
UNLIMITED_FREE_BYTES = 1 << 40


class Crashed(BaseException):
    """The simulated machine died here. This is not an Exception: code under test that survives any error must not survive
    this."""


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
        """Return a new disk, without hook and faults, as this one may look after a crash now. "some" needs randomness."""
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
        """Become this disk's own crash image: open files and locks are gone, hook and faults stay."""
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
        """Leave room for this many more bytes; None lifts the limit."""
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
        if self.faults.rules:
            self.faults.check("open", path)
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
        if self.faults.rules:
            self.faults.check("open", path)
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
            self.faults.check("open", path)
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
        """Return the directory that holds a path's last name, and that name."""
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
    """Return the names of a path; absolute and relative ones both start at the root."""
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
