"""What one partition log needs synced, taken on the loop and run on the executor.

A plan holds open files, not names, so that a rename, an eviction or a removal meanwhile changes nothing; and what it will have proved
when it has run: that everything below ``end`` is durable, unless the log was truncated in between.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.log.environment import OffsetPosition
from tidelog.ports.disk import Disk, DiskFile

if TYPE_CHECKING:
    from tidelog.log.segment import LogSegment


@dataclass(slots=True)
class SyncPlan:
    end: OffsetPosition
    truncations: int
    segments: "list[LogSegment]"
    files: list[DiskFile]
    directories: list[str]
    writes: list[Callable[[], None]] = field(default_factory=list)
    recovery_point: int | None = None

    def run(self, disk: Disk) -> None:
        """One file after the other, oldest segment first: the old segment is durable before the new one."""
        for file in self.files:
            file.sync()
        self.run_writes()
        for directory in self.directories:
            disk.sync_directory(directory)

    def run_writes(self) -> None:
        """Small files that are written anew as a whole (the epochs' checkpoint)."""
        for write in self.writes:
            write()

    @property
    def sync_count(self) -> int:
        return len(self.files) + len(self.writes) + len(self.directories)
