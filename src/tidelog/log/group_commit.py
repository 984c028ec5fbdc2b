"""Group commit: one pass of syncs covers everything that waits.

Appends only make logs dirty. A pass takes the sync plans of all dirty logs at once, runs them on the executor, and when they have ended
moves each log's durable offset and wakes who waited for it. While a pass runs, new appends gather for the next one: the
slower the disk, the more each sync covers.

For a few files a pass syncs one by one; from ``syncfs_files_min`` on, one ``syncfs`` is cheaper than that many calls. A file
whose sync fails takes its own log offline; a failed ``syncfs`` names no file, so all logs of that pass go offline.

Logs that asked for relaxed durability do not start a pass; they join one when they have been dirty for ``RELAXED_SYNC_MS``.

What became durable goes into the journal of durable marks, which is flushed beside the passes.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tidelog.log.errors import LogOffline
from tidelog.log.mark_flusher import MarkFlusher
from tidelog.log.partition_log import PartitionLog
from tidelog.log.sync_plan import SyncPlan
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk, FileSystem
from tidelog.ports.executor import Completion, Executor

# What a relaxed topic may lose with the machine; the kernel's own write-back takes about as long.
RELAXED_SYNC_MS = 5_000
# Measured on ext4 over a virtual disk: one fdatasync 0.2 ms, one syncfs 0.6 ms whatever the number of files.
SYNCFS_FILES_MIN = 4

OnDurable = Callable[[Exception | None], None]


@dataclass(slots=True)
class CommitStatistics:
    passes: int = 0
    logs_synced: int = 0
    filesystem_syncs: int = 0
    logs_in_last_pass: int = 0


@dataclass(slots=True)
class _Pass:
    plans: list[tuple[PartitionLog, SyncPlan]]
    errors: list[OSError | None] = field(default_factory=list)
    used_filesystem_sync: bool = False


class GroupCommit:
    __slots__ = (
        "_clock",
        "_dirty",
        "_disk",
        "_executor",
        "_file_system",
        "_in_flight",
        "_marks",
        "_on_durable",
        "_recovery_point_interval_bytes",
        "_relaxed_since_ms",
        "_syncfs_files_min",
        "_waiting",
        "statistics",
    )

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        executor: Executor,
        file_system: FileSystem,
        marks: MarkFlusher,
        recovery_point_interval_bytes: int,
        syncfs_files_min: int = SYNCFS_FILES_MIN,
        on_durable: Callable[[list[PartitionLog]], None] | None = None,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._executor = executor
        self._file_system = file_system
        self._marks = marks
        self._recovery_point_interval_bytes = recovery_point_interval_bytes
        self._syncfs_files_min = syncfs_files_min
        self._on_durable = on_durable
        # Dictionaries for their order: a simulated run must not depend on hashes.
        self._dirty: dict[PartitionLog, None] = {}
        self._relaxed_since_ms: dict[PartitionLog, int] = {}
        self._waiting: dict[PartitionLog, list[tuple[int, OnDurable]]] = {}
        self._in_flight = False
        self.statistics = CommitStatistics()

    def note_dirty(self, log: PartitionLog) -> None:
        if log.settings.is_relaxed:
            self._relaxed_since_ms.setdefault(log, self._clock.monotonic_ms())
        else:
            self._dirty[log] = None

    def wait(self, log: PartitionLog, offset: int, on_durable: OnDurable) -> None:
        """Call back once everything below ``offset`` is durable, or with the error that makes it impossible to say so."""
        if log.offline_reason is not None:
            on_durable(LogOffline(log.name, log.offline_reason))
        elif log.durable.offset >= offset:
            on_durable(None)
        else:
            self._waiting.setdefault(log, []).append((offset, on_durable))
            if log in self._relaxed_since_ms:
                del self._relaxed_since_ms[log]
                self._dirty[log] = None

    @property
    def is_idle(self) -> bool:
        return not (self._in_flight or self._dirty)

    def forget(self, log: PartitionLog) -> None:
        """The log is being deleted: nobody needs it durable, and who waits is told."""
        self._dirty.pop(log, None)
        self._relaxed_since_ms.pop(log, None)
        self._wake(log, LogOffline(log.name, "the partition was deleted"))

    # -- passes --------------------------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Start a pass if something is dirty and none is running. Call it after a burst of appends, not after each."""
        if self._in_flight or not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        self._in_flight = True
        interval = self._recovery_point_interval_bytes
        commit = _Pass([(log, log.begin_sync(log.bytes_since_recovery_point >= interval)) for log in dirty])
        self._executor.submit(lambda: self._run(commit), lambda completion: self._finish(commit, completion))

    def tick(self) -> None:
        """Time has passed: relaxed logs that have waited long enough join the next pass."""
        now_ms = self._clock.monotonic_ms()
        due = [log for log, since_ms in self._relaxed_since_ms.items() if now_ms - since_ms >= RELAXED_SYNC_MS]
        for log in due:
            del self._relaxed_since_ms[log]
            self._dirty[log] = None
        self.kick()

    def _run(self, commit: _Pass) -> None:
        """On the executor. Errors belong to single logs, so they are gathered rather than raised."""
        if sum(plan.sync_count for _, plan in commit.plans) >= self._syncfs_files_min:
            commit.errors = [_error_of(plan.run_writes) for _, plan in commit.plans]
            error = _error_of(self._file_system.sync)
            if error is None or error.errno != errno.ENOSYS:
                commit.used_filesystem_sync = True
                if error is not None:
                    commit.errors = [error] * len(commit.plans)
                return
        disk = self._disk
        commit.errors = [_error_of(partial(plan.run, disk)) for _, plan in commit.plans]

    def _finish(self, commit: _Pass, completion: Completion) -> None:
        assert completion.error is None, f"a pass reports errors per log, but raised {completion.error!r}"
        self._in_flight = False
        statistics = self.statistics
        statistics.passes += 1
        statistics.logs_in_last_pass = len(commit.plans)
        statistics.logs_synced += len(commit.plans)
        statistics.filesystem_syncs += commit.used_filesystem_sync
        moved = []
        for (log, plan), error in zip(commit.plans, commit.errors, strict=True):
            before = log.durable.offset
            log.finish_sync(plan, error)
            if log.offline_reason is None and log.durable.offset > before:
                self._marks.record(log)
                moved.append(log)
        for log, _ in commit.plans:
            self._wake(log, None if log.offline_reason is None else LogOffline(log.name, log.offline_reason))
        if moved and self._on_durable is not None:
            self._on_durable(moved)
        self.kick()

    def _wake(self, log: PartitionLog, error: Exception | None) -> None:
        waiting = self._waiting.pop(log, None)
        if waiting is None:
            return
        durable_offset = log.durable.offset
        still = [] if error is not None else [entry for entry in waiting if entry[0] > durable_offset]
        if still:
            self._waiting[log] = still
        for offset, on_durable in waiting:
            if error is not None or offset <= durable_offset:
                on_durable(error)


def _error_of(work: Callable[[], None]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None
