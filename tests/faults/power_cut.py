"""A power cut on real files: after the process was killed, everything goes that no finished sync had covered.

``kill -9`` spares the page cache, so a broker that never syncs would survive it. Here the disk of the broker's process notes each
sync in a journal beside the data (``SyncJournal``): when the sync begins it takes down what is there, and when it has ended it
writes that down. After the kill ``cut`` rebuilds the data directory from the journal:

- of each file only the bytes that were there when its last finished sync began; what lies behind them is gone, or torn: some
  pages of it have reached the disk and others have not;
- of each directory the names as its last finished sync found them, or all later changes too, since un-synced renames, creations
  and removals may reach the disk by themselves.

Files and directories are known by their inodes, so that a rename loses nothing. Each file that a sync has covered gets a second
name (a hard link) in ``graveyard``: a removal or replacement that was not synced can be undone, and no inode is used twice.
Bytes overwritten in place are kept as they were last written.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tidelog.ports.real_disk import SyncKind

PAGE_BYTES = 4096
KEEP_LATER_NAMES = 0.3
TEAR = 0.4
LOSE_PAGE = 0.5

# Name -> (inode, whether it is a directory).
Names = dict[str, tuple[int, bool]]


@dataclass(slots=True)
class Covered:
    """What one sync covers, or all finished ones together."""

    sizes: dict[int, int] = field(default_factory=dict)
    directories: dict[int, Names] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PowerCutPlace:
    base: Path

    @property
    def data(self) -> Path:
        return self.base / "data"

    @property
    def journal(self) -> Path:
        return self.base / "journal"

    @property
    def graveyard(self) -> Path:
        return self.base / "graveyard"

    def prepare(self) -> None:
        self.graveyard.mkdir(parents=True)
        self.data.mkdir(mode=0o700)
        _write_baseline(self)


class SyncJournal:
    """The broker's side. ``begin`` is called on every thread that syncs."""

    def __init__(self, place: PowerCutPlace) -> None:
        self._place = place
        self._descriptor = os.open(place.journal, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._lock = threading.Lock()
        # Of the syncs in the order in which they began; the baseline is number 0.
        self._sequence = 0
        # Open as long as the process lives: so no inode of a directory is used twice.
        self._directories: dict[int, int] = {}

    def begin(self, kind: SyncKind, path: str) -> Callable[[], None]:
        with self._lock:
            sequence = self._sequence
            self._sequence += 1
        covered = Covered()
        if kind == "file":
            self._take_file(path, covered)
        elif kind == "directory":
            self._take_directory(path, covered)
        else:
            for directory, _, _ in os.walk(self._place.data):
                self._take_directory(directory, covered)
                for name, (_, is_directory) in covered.directories.get(os.stat(directory).st_ino, {}).items():
                    if not is_directory:
                        self._take_file(os.path.join(directory, name), covered)
        line = _format(sequence, covered)

        def finished() -> None:
            os.write(self._descriptor, line)

        return finished

    def close(self) -> None:
        for descriptor in (self._descriptor, *self._directories.values()):
            os.close(descriptor)

    def _take_file(self, path: str, covered: Covered) -> None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return  # Renamed or removed: whoever did that syncs it under its new name if it matters.
        covered.sizes[status.st_ino] = status.st_size
        _link(path, self._place.graveyard / str(status.st_ino))

    def _take_directory(self, path: str, covered: Covered) -> None:
        try:
            inode = os.stat(path).st_ino
            names = _names_in(path)
            with self._lock:
                if inode not in self._directories:
                    self._directories[inode] = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        for name, (child, is_directory) in names.items():
            if not is_directory:
                _link(os.path.join(path, name), self._place.graveyard / str(child))
        covered.directories[inode] = names


@dataclass(slots=True)
class CutReport:
    bytes_lost: int = 0
    names_undone: int = 0
    files_torn: int = 0


def cut(place: PowerCutPlace, random: Random) -> CutReport:
    """The process is dead: leave on the disk only what a power cut could have left."""
    return _Cut(place, random).run()


class _Cut:
    def __init__(self, place: PowerCutPlace, random: Random) -> None:
        self._place = place
        self._random = random
        self._durable = _read_journal(place.journal)
        self._report = CutReport()
        # As they lie there now.
        self._paths = {os.stat(place.data).st_ino: str(place.data)}
        for directory, directories, files in os.walk(place.data):
            for name in (*directories, *files):
                path = os.path.join(directory, name)
                self._paths[os.stat(path).st_ino] = path

    def run(self) -> CutReport:
        place = self._place
        rebuilt = place.base / "rebuilt"
        rebuilt.mkdir(mode=0o700)
        self._rebuild(os.stat(place.data).st_ino, rebuilt)
        shutil.rmtree(place.data)
        rebuilt.rename(place.data)
        shutil.rmtree(place.graveyard)
        place.graveyard.mkdir()
        _write_baseline(place)
        return self._report

    def _rebuild(self, inode: int, to: Path) -> None:
        current_path = self._paths.get(inode)
        durable = self._durable.directories.get(inode, {})
        current = _names_in(current_path) if current_path is not None else {}
        chosen = current if current and self._random.random() < KEEP_LATER_NAMES else durable
        self._report.names_undone += len(current.items() ^ chosen.items())
        for name, (child, is_directory) in sorted(chosen.items()):
            if is_directory:
                (to / name).mkdir(mode=0o700)
                self._rebuild(child, to / name)
            else:
                buried = self._place.graveyard / str(child)
                os.link(buried if buried.exists() else self._paths[child], to / name)
                self._cut_file(to / name, self._durable.sizes.get(child, 0))

    def _cut_file(self, path: Path, durable_size: int) -> None:
        size = path.stat().st_size
        if size <= durable_size:
            return
        kept = durable_size
        if self._random.random() < TEAR:
            kept = self._random.randint(durable_size, size)
            self._report.files_torn += 1
        self._report.bytes_lost += size - kept
        os.truncate(path, kept)
        with path.open("r+b") as file:
            for page in range(durable_size // PAGE_BYTES * PAGE_BYTES, kept, PAGE_BYTES):
                if self._random.random() < LOSE_PAGE:
                    start = max(page, durable_size)
                    file.seek(start)
                    file.write(bytes(min(page + PAGE_BYTES, kept) - start))


def _names_in(path: str) -> Names:
    with os.scandir(path) as entries:
        return {entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in entries}


def _link(path: str, to: Path) -> None:
    # It has its second name already; or it was removed between two looks, and nothing of it was promised.
    with suppress(FileExistsError, FileNotFoundError):
        os.link(path, to)


def _format(sequence: int, covered: Covered) -> bytes:
    return json.dumps([sequence, covered.sizes, covered.directories]).encode() + b"\n"


def _read_journal(path: Path) -> Covered:
    durable = Covered()
    newest: dict[int, int] = {}
    # The kill may have come in the middle of the last line: then nobody was told of that sync yet, and it covers nothing.
    for line in path.read_bytes().split(b"\n")[:-1]:
        sequence, sizes, directories = json.loads(line)
        for inode, size in sizes.items():
            # Two syncs of one file may end in any order: the larger of both is durable.
            durable.sizes[int(inode)] = max(size, durable.sizes.get(int(inode), 0))
        for inode, names in directories.items():
            if sequence >= newest.get(int(inode), 0):
                newest[int(inode)] = sequence
                durable.directories[int(inode)] = {name: (child, is_directory) for name, (child, is_directory) in names.items()}
    return durable


def _write_baseline(place: PowerCutPlace) -> None:
    """What lies there before the broker starts is on the disk."""
    place.journal.write_bytes(b"")
    journal = SyncJournal(place)
    journal.begin("filesystem", str(place.data))()
    journal.close()
