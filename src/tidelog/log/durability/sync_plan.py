"""Tracks what a log must sync, and syncs the names in a data directory.

``Unsynced`` collects what a log has written since its last sync: segments, small files beside them, and directories whose
entries changed. ``SyncPlan`` is a snapshot of it, taken on the event loop and run on the executor. A plan holds open files, not
names, so a rename, an eviction or a removal in the meantime changes nothing. When it has run, everything below ``end`` is
durable, unless the log was truncated in between. A plan that could not run for want of a descriptor or of memory has damaged
nothing: the log takes it back and tries again later.

After a failed fsync the kernel calls the lost pages clean: a second fsync succeeds, and a restarted process reads from the page
cache what never reached the disk. A failed sync therefore leaves a mark, a file in the partition's directory: the next start
drops the cache and checks what the disk itself holds, in all of the partition's files, and removes the mark when everything was
sound. (After a crash recovery never trusts the cache for what it checks: the process may have been killed before it could leave
a mark.)

``DirectorySync`` makes the directory entries of a whole data directory durable, one sync at a time.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log import names
from tidelog.log.environment import OffsetPosition, is_scarcity
from tidelog.log.segments.segment import LogSegment
from tidelog.ports.disk import Disk, DiskFile, FileSystem
from tidelog.ports.executor import Completion, Executor

if TYPE_CHECKING:
    from tidelog.log.durability.checkpoints import StagedFile


class Unsynced:
    """The writes of a log that no sync covers yet."""

    __slots__ = ("directories", "files", "segments")

    def __init__(self) -> None:
        # Ordered by base offset: the old segment is synced before the new one.
        self.segments: list[LogSegment] = []
        self.files: tuple[DiskFile, ...] = ()
        self.directories: tuple[str, ...] = ()

    def note_file(self, file: DiskFile) -> None:
        self.files = (*self.files, file)

    def note_directory(self, directory: str) -> None:
        if directory not in self.directories:
            self.directories = (*self.directories, directory)

    def restore(self, plan: "SyncPlan", segments: list[LogSegment]) -> None:
        """Take back what ``plan`` should have synced; ``segments`` are those of its segments that are still in the log."""
        self.segments = [*segments, *[segment for segment in self.segments if segment not in segments]]
        self.files = (*plan.files, *self.files)
        for directory in plan.directories:
            self.note_directory(directory)

    def forget_directories(self, synced: list[str]) -> None:
        """Called when a sync that is about to run covers the directories."""
        self.directories = tuple(directory for directory in self.directories if directory not in synced)

    def forget_segments(self, gone: list[LogSegment]) -> None:
        """Called when the segments have left the log: nobody needs their bytes to be durable any more."""
        self.segments = [segment for segment in self.segments if segment not in gone]


# More files than there can ever be: each file is synced by itself.
NEVER_SYNCFS = 2**63 - 1


@dataclass(slots=True)
class SyncPlan:
    end: OffsetPosition
    truncations: int
    segments: list[LogSegment]
    files: list[DiskFile]
    """Small files beside the segments."""
    directories: list[str]
    epochs: "StagedFile | None" = None
    """The leader epochs' checkpoint, when it changed and the recovery point should move."""
    recovery_point: int | None = None
    had_no_room: bool = False
    segment_files: list[DiskFile] = field(default_factory=list)
    recovery_files: list[DiskFile] = field(default_factory=list)
    """Indexes and snapshots that recovery will trust when the recovery point has moved."""

    def move_recovery_point(self, offset: int, files: list[DiskFile], epochs: "StagedFile | None", directory: str) -> None:
        """Sync also what recovery trusts below ``offset``: ``files``, the leader epochs if they changed, and their names."""
        self.recovery_files = files
        self.epochs = epochs
        if directory not in self.directories:
            self.directories.append(directory)
        self.recovery_point = offset

    def run(self, disk: Disk) -> None:
        """Sync one file after the other, oldest segment first: the old segment is durable before the new one."""
        for file in (*self.files, *self.segment_files, *self.recovery_files):
            file.sync()
        staged = self.stage()
        if staged is not None:
            staged.sync()
            self.publish()
        for directory in self.directories:
            disk.sync_directory(directory)

    def stage(self) -> DiskFile | None:
        """Write the epochs to a temporary file. If there is no space for them, the data becomes durable all the same; only the
        recovery point, which relies on them, has to wait."""
        if self.epochs is None:
            return None
        try:
            return self.epochs.stage()
        except OSError as error:
            self._go_on_without_epochs(error)
            return None

    def publish(self) -> None:
        """Give the temporary file its name. A directory that has no space for it is like a disk that has none."""
        if self.epochs is not None:
            try:
                self.epochs.publish()
            except OSError as error:
                self._go_on_without_epochs(error)

    def _go_on_without_epochs(self, error: OSError) -> None:
        if not is_scarcity(error):
            raise error
        self.epochs = self.recovery_point = None
        self.had_no_room = True

    @property
    def sync_count(self) -> int:
        files = len(self.files) + len(self.segment_files) + len(self.recovery_files)
        return files + len(self.directories) + (self.epochs is not None)


class SyncOutcome(NamedTuple):
    errors: list[OSError | None]
    """One per plan."""
    used_file_system_sync: bool

    @property
    def file_system_failed(self) -> bool:
        """Trust only a file's own descriptor from now on: ``syncfs`` reports an error only once, even one that concerns a file
        outside of this pass, and the next call would succeed."""
        return self.used_file_system_sync and any(error is not None for error in self.errors)


def run_plans(disk: Disk, file_system: FileSystem, plans: Sequence[SyncPlan], syncfs_files_min: int) -> SyncOutcome:
    """Run all plans. Blocks. Errors belong to single logs, so they are collected rather than raised.

    From ``syncfs_files_min`` files on, one ``syncfs`` covers all of them. When it fails it names no file: every plan has failed.
    """
    if sum([plan.sync_count for plan in plans]) >= syncfs_files_min:
        # Kept short: while a helper thread runs Python code, the event loop waits.
        has_epochs = any(plan.epochs is not None for plan in plans)
        errors: list[OSError | None] = [None] * len(plans)
        if has_epochs:
            errors = [_error_of(plan.stage) for plan in plans]
        error = _error_of(file_system.sync)
        if error is None and has_epochs:
            errors = [
                _error_of(plan.publish) if earlier is None else earlier for plan, earlier in zip(plans, errors, strict=True)
            ]
            error = _error_of(file_system.sync)
        if error is None:
            return SyncOutcome(errors, True)
        if error.errno != errno.ENOSYS:
            return SyncOutcome([error] * len(plans), True)
    return SyncOutcome([_error_of(partial(plan.run, disk)) for plan in plans], False)


def _error_of(work: Callable[[], object]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None


OnSynced = Callable[[BaseException | None], None]


class DirectorySync:
    __slots__ = ("_disk", "_executor", "_in_flight", "_path", "_waiting")

    def __init__(self, disk: Disk, executor: Executor, path: str) -> None:
        self._disk = disk
        self._executor = executor
        self._path = path
        self._in_flight = False
        self._waiting: list[OnSynced] = []

    @property
    def is_idle(self) -> bool:
        return not self._in_flight

    def request(self, on_synced: OnSynced) -> None:
        self._waiting.append(on_synced)
        if not self._in_flight:
            self._start()

    def _start(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._in_flight = True
        disk, path = self._disk, self._path
        self._executor.submit(lambda: disk.sync_directory(path), lambda completion: self._finish(waiting, completion))

    def _finish(self, waiting: list[OnSynced], completion: Completion) -> None:
        self._in_flight = False
        for on_synced in waiting:
            on_synced(completion.error)
        if self._waiting and not self._in_flight:
            self._start()


REASON_BYTES_MAX = 1024


def leave_failed_sync_mark(disk: Disk, directory: str, reason: str) -> None:
    """Leave the mark. This blocks on two syncs of a failing disk, but there is nothing better to do for this partition any
    more."""
    file = disk.open(_failed_sync_path(directory), "create")
    file.write(0, [reason.encode()[:REASON_BYTES_MAX]])
    file.sync()
    disk.sync_directory(directory)


def has_failed_sync_mark(disk: Disk, directory: str) -> bool:
    return disk.exists(_failed_sync_path(directory))


def remove_failed_sync_mark(disk: Disk, directory: str) -> None:
    disk.remove(_failed_sync_path(directory))


def drop_cached_pages(disk: Disk, directory: str) -> None:
    for name in disk.list_directory(directory):
        disk.drop_cache(names.join(directory, name))


def _failed_sync_path(directory: str) -> str:
    return names.join(directory, names.FAILED_SYNC_MARK)
