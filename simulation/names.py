"""Simulated directories: the names as they are, and the names as a power cut would leave them.

``Directory.entries`` is what a process sees, ``Directory.durable`` what the disk holds. Each change of a name (create, mkdir,
rename, remove, rmdir) is a ``NameOperation`` that waits in ``PendingNames`` until one of its directories is synced. A rename
across two directories is one operation, durable as soon as either of them is synced: no file system loses a file between two
names.

After a power cut each pending operation is kept or lost, in any order, except that one which depends on a lost one is lost too:
it has the same name, the same file or directory, lies in a directory whose own making was lost, or removes a directory of which
an earlier change was lost.
"""

from collections.abc import Iterator

from simulation.inode import Inode
from tidelog.ports.randomness import Randomness

_KEEP_LIKELIHOODS = (0.0, 0.2, 0.5, 0.8, 1.0)


class Directory:
    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = Inode | Directory
Change = tuple[Directory, str, Node | None]


class NameOperation:
    """``changes`` are (directory, name, what the name leads to afterwards); ``nodes`` all files and directories concerned."""

    __slots__ = ("changes", "nodes", "removed_directory")

    def __init__(self, changes: tuple[Change, ...], nodes: tuple[Node, ...], removed_directory: Directory | None = None) -> None:
        self.changes = changes
        self.nodes = nodes
        self.removed_directory = removed_directory


class PendingNames:
    __slots__ = ("operations",)

    def __init__(self) -> None:
        self.operations: list[NameOperation] = []

    def add(self, operation: NameOperation) -> None:
        for directory, name, node in operation.changes:
            _apply(directory.entries, name, node)
        self.operations.append(operation)

    def sync(self, directory: Directory) -> None:
        """Make durable what changed in ``directory``, and what that depends on."""
        if not self.operations:
            return
        synced = _Touched()
        chosen: list[NameOperation] = []
        rest: list[NameOperation] = []
        for operation in reversed(self.operations):
            if any(changed is directory for changed, _, _ in operation.changes) or synced.is_needed_from(operation):
                synced.add(operation)
                chosen.append(operation)
            else:
                rest.append(operation)
        self._make_durable(reversed(chosen))
        rest.reverse()
        self.operations = rest

    def sync_all(self) -> None:
        self._make_durable(iter(self.operations))
        self.operations = []

    def survivors(self, randomness: Randomness) -> list[NameOperation]:
        """The operations that a power cut happens to keep."""
        if not self.operations:
            return []
        fraction = randomness.fraction
        keep = _KEEP_LIKELIHOODS[int(fraction() * len(_KEEP_LIKELIHOODS))]
        lost = _Touched()
        kept: list[NameOperation] = []
        for operation in self.operations:
            if lost.is_needed_by(operation) or fraction() >= keep:
                lost.add(operation)
            else:
                kept.append(operation)
        return kept

    @staticmethod
    def _make_durable(operations: Iterator[NameOperation]) -> None:
        for operation in operations:
            for directory, name, node in operation.changes:
                _apply(directory.durable, name, node)


class _Touched:
    """The things that a set of operations touches. It is only asked for membership, never iterated: identity hashes have no fixed
    order."""

    __slots__ = ("directories", "names", "nodes", "removed")

    def __init__(self) -> None:
        self.names: set[tuple[Directory, str]] = set()
        self.nodes: set[Node] = set()
        self.directories: set[Directory] = set()
        self.removed: set[Directory] = set()

    def add(self, operation: NameOperation) -> None:
        for directory, name, _ in operation.changes:
            self.names.add((directory, name))
            self.directories.add(directory)
        self.nodes.update(operation.nodes)
        if operation.removed_directory is not None:
            self.removed.add(operation.removed_directory)

    def is_needed_by(self, later: NameOperation) -> bool:
        if later.removed_directory in self.directories:
            return True
        return self._overlaps(later) or any(directory in self.nodes for directory, _, _ in later.changes)

    def is_needed_from(self, earlier: NameOperation) -> bool:
        return self._overlaps(earlier) or any(directory in self.removed for directory, _, _ in earlier.changes)

    def _overlaps(self, operation: NameOperation) -> bool:
        for directory, name, _ in operation.changes:
            if (directory, name) in self.names:
                return True
        return any(node in self.nodes for node in operation.nodes)


def _apply(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def after_power_cut(root: Directory, pending: PendingNames, randomness: Randomness | None) -> Directory:
    """Return a new tree: the durable names and, with randomness, some of the pending ones; files as in
    ``Inode.after_power_cut``."""
    changed: dict[Directory, dict[str, Node]] = {}
    for operation in pending.survivors(randomness) if randomness is not None else ():
        for directory, name, node in operation.changes:
            entries = changed.get(directory)
            if entries is None:
                entries = changed[directory] = directory.durable.copy()
            _apply(entries, name, node)

    def copy_directory(directory: Directory) -> Directory:
        copy = Directory()
        entries = copy.entries
        for name, node in changed.get(directory, directory.durable).items():
            entries[name] = node.after_power_cut(randomness) if isinstance(node, Inode) else copy_directory(node)
        copy.durable = entries.copy()
        return copy

    return copy_directory(root)


def after_kill(root: Directory, pending: PendingNames) -> tuple[Directory, PendingNames]:
    """Return a copy of the tree in which everything pending is still pending."""
    copies: dict[Node, Node] = {}

    def copy_node(node: Node) -> Node:
        copy = copies.get(node)
        if copy is None:
            copy = copies[node] = node.after_kill() if isinstance(node, Inode) else Directory()
            if isinstance(node, Directory) and isinstance(copy, Directory):
                copy.entries = {name: copy_node(child) for name, child in node.entries.items()}
                copy.durable = {name: copy_node(child) for name, child in node.durable.items()}
        return copy

    def copy_directory(directory: Directory) -> Directory:
        copy = copy_node(directory)
        assert isinstance(copy, Directory)
        return copy

    new_pending = PendingNames()
    new_root = copy_directory(root)
    for operation in pending.operations:
        changes = tuple(
            (copy_directory(directory), name, None if node is None else copy_node(node))
            for directory, name, node in operation.changes
        )
        removed = operation.removed_directory
        new_pending.operations.append(
            NameOperation(
                changes, tuple(copy_node(node) for node in operation.nodes), None if removed is None else copy_directory(removed)
            )
        )
    return new_root, new_pending


def walk(directory: Directory, prefix: str = "") -> Iterator[tuple[str, Inode]]:
    """Yield all files below a directory with their paths, in the order of names."""
    for name, node in sorted(directory.entries.items()):
        path = f"{prefix}/{name}"
        if isinstance(node, Inode):
            yield path, node
        else:
            yield from walk(node, path)
