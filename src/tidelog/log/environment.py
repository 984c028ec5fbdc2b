"""The settings, ports and callbacks that all logs of one data directory share."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.segments.file_handles import FileHandles
from tidelog.log.segments.indexes import IndexCache
from tidelog.log.segments.segment import LogSegment
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk, SyncFailed
from tidelog.ports.randomness import Randomness

if TYPE_CHECKING:
    from tidelog.log.durability.disk_reserve import DiskReserve
    from tidelog.log.partition_log import PartitionLog

# The disk is full, the quota is used up, too many files are open, or the kernel has no memory left: these are temporary. Every
# other error of a write means that the disk is broken.
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM))


def is_scarcity(error: BaseException | None) -> bool:
    """Whether something was refused for now and nothing is damaged. A failed sync is never scarcity, whatever its errno: the
    pages that it covered may be lost."""
    return isinstance(error, OSError) and error.errno in NO_ROOM and not isinstance(error, SyncFailed)


# An event for the operator's log: its name and its facts. Other modules decide how it is shown.
Report = Callable[[str, dict[str, object]], None]


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    disk: Disk
    clock: Clock
    randomness: Randomness
    handles: FileHandles
    index_cache: IndexCache
    reserve: "DiskReserve"
    on_dirty: "Callable[[PartitionLog], None]"
    """Called when a clean log gets something to sync."""
    report: Report

    def segment(self, directory: str, base_offset: int, size: int = 0, state_suffix: str = "") -> LogSegment:
        now_ms = self.clock.now_ms()
        return LogSegment(self.disk, self.handles, self.index_cache, directory, base_offset, size, now_ms, state_suffix)


class OffsetPosition(NamedTuple):
    """An offset and where its bytes begin (Kafka: LogOffsetMetadata)."""

    offset: int
    segment_base_offset: int
    position: int
