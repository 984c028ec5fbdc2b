"""What one partition log needs synced, taken on the loop and run on the executor.

A plan holds open files, not names, so that a rename, an eviction or a removal meanwhile changes nothing; and what it will have
proved when it has run: that everything below ``end`` is durable, unless the log was truncated in between.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.environment import NO_ROOM, OffsetPosition
from tidelog.ports.disk import Disk, DiskFile, FileSystem

# More files than there can be: sync each by itself.
NEVER_SYNCFS = 2**63 - 1

if TYPE_CHECKING:
    from tidelog.log.atomic_file import StagedFile
    from tidelog.log.segment import LogSegment


@dataclass(slots=True)
class SyncPlan:
    end: OffsetPosition
    truncations: int
    segments: "list[LogSegment]"
    files: list[DiskFile]
    directories: list[str]
    epochs: "StagedFile | None" = None
    """The leader epochs' checkpoint, when it changed and the recovery point is to move."""
    recovery_point: int | None = None
    had_no_room: bool = False

    def run(self, disk: Disk) -> None:
        """One file after the other, oldest segment first: the old segment is durable before the new one."""
        for file in self.files:
            file.sync()
        staged = self.stage()
        if staged is not None:
            staged.sync()
            self.publish()
        for directory in self.directories:
            disk.sync_directory(directory)

    def stage(self) -> DiskFile | None:
        """Write the epochs beside the old ones. Without room for them the data is durable all the same; only the recovery point,
        which relies on them, must wait."""
        if self.epochs is None:
            return None
        try:
            return self.epochs.stage()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.epochs = self.recovery_point = None
            self.had_no_room = True
            return None

    def publish(self) -> None:
        if self.epochs is not None:
            self.epochs.publish()

    @property
    def sync_count(self) -> int:
        return len(self.files) + len(self.directories) + (self.epochs is not None)


class SyncOutcome(NamedTuple):
    errors: list[OSError | None]
    """One per plan."""
    used_file_system_sync: bool

    @property
    def file_system_failed(self) -> bool:
        """From now on only a file's own descriptor can be believed: ``syncfs`` tells of an error once, also of one that struck a
        file which was not part of this pass, and the next call would succeed."""
        return self.used_file_system_sync and any(error is not None for error in self.errors)


def run_plans(disk: Disk, file_system: FileSystem, plans: Sequence[SyncPlan], syncfs_files_min: int) -> SyncOutcome:
    """Run them all. Blocks; errors belong to single logs, so they are gathered rather than raised.

    From ``syncfs_files_min`` files on one ``syncfs`` stands for all of them. When it fails it names no file: every plan has
    failed.
    """
    if sum([plan.sync_count for plan in plans]) >= syncfs_files_min:
        # Short, as nearly always: what a helper thread does in Python, the event loop waits for.
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
