"""Group commit: one pass of syncs covers everything that waits.

Appends only make logs dirty. A pass takes the sync plans of all dirty logs at once, runs them on the executor, and then moves
each log's durable offset, wakes the waiters and calls the log's durability listeners. While a pass runs, new appends collect for
the next one: the slower the disk, the more each sync covers.

A pass with few files syncs them one by one; from ``syncfs_files_min`` files on, one ``syncfs`` is cheaper. A file whose sync
fails takes its own log offline. A failed ``syncfs`` names no file, so all logs of that pass go offline. The error may even
concern a file that was written after the pass began, whose log is not among them, and the kernel does not report it again: from
then on every file is synced through its own descriptor, which still knows.

A log that could not be synced for want of descriptors or memory is not damaged. Its waiters go on waiting, and the next ``tick``
lets it join a pass again; not the next pass, which would find the same shortage at once.

Logs with relaxed durability do not start a pass; they join one according to their ``flush.messages`` and ``flush.ms``.

The new durable offsets go into the journal of durable marks, which is flushed separately.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tidelog.log.durability.durable_marks import MarkFlusher
from tidelog.log.durability.sync_plan import NEVER_SYNCFS, SyncOutcome, SyncPlan, run_plans
from tidelog.log.environment import is_scarcity
from tidelog.log.errors import LogOffline
from tidelog.log.partition_log import PartitionLog
from tidelog.log.settings import DirectoryOptions
from tidelog.metrics.histogram import Histogram
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk, FileSystem
from tidelog.ports.executor import Completion, Executor

# How much a relaxed topic may lose when the machine fails; the kernel's own write-back takes about as long.
RELAXED_SYNC_MS = 5_000

OnDurable = Callable[[Exception | None], None]


@dataclass(slots=True)
class CommitStatistics:
    passes: int = 0
    logs_synced: int = 0
    file_system_syncs: int = 0
    logs_in_last_pass: int = 0
    pass_logs: Histogram = field(default_factory=Histogram)
    """The number of logs that each pass covered."""
    sync_ns: Histogram = field(default_factory=Histogram)
    """The duration of the syncs of each pass, measured in their thread."""
    pass_ns: Histogram = field(default_factory=Histogram)
    """The time from the start of a pass until the event loop learned of its end."""


@dataclass(frozen=True, slots=True)
class CommitPorts:
    disk: Disk
    clock: Clock
    executor: Executor
    file_system: FileSystem


class GroupCommit:
    __slots__ = (
        "_after_pass",
        "_began_ns",
        "_clock",
        "_dirty",
        "_in_flight",
        "_marks",
        "_on_pass_ended",
        "_ports",
        "_recovery_point_interval_bytes",
        "_recovery_point_waiting",
        "_relaxed_since_ms",
        "_starved",
        "_waiting",
        "statistics",
        "syncfs_files_min",
    )

    def __init__(
        self,
        ports: CommitPorts,
        marks: MarkFlusher,
        options: DirectoryOptions,
        on_pass_ended: Callable[[list[PartitionLog]], None],
    ) -> None:
        """``on_pass_ended`` gets the logs of each pass, including those that went offline."""
        self._ports = ports
        self._clock = ports.clock
        self._marks = marks
        self._recovery_point_interval_bytes = options.recovery_point_interval_bytes
        self.syncfs_files_min = options.syncfs_files_min
        self._on_pass_ended = on_pass_ended
        # Dictionaries instead of sets, because they keep their order: a simulated run must not depend on hashes.
        self._dirty: dict[PartitionLog, None] = {}
        self._relaxed_since_ms: dict[PartitionLog, int] = {}
        # Dirty logs that wait for the next tick, because there was a shortage.
        self._starved: dict[PartitionLog, None] = {}
        self._waiting: dict[PartitionLog, list[tuple[int, OnDurable]]] = {}
        self._recovery_point_waiting: dict[PartitionLog, list[OnDurable]] = {}
        self._in_flight = False
        self._began_ns = 0
        self._after_pass: list[Callable[[], None]] = []
        self.statistics = CommitStatistics()

    def note_dirty(self, log: PartitionLog) -> None:
        if log.is_retired:
            return  # Its files are no longer found under their names, and another log may have them by now.
        if log.settings.is_relaxed:
            self._relaxed_since_ms.setdefault(log, self._clock.monotonic_ms())
        else:
            self._dirty[log] = None

    def wait(self, log: PartitionLog, offset: int, on_durable: OnDurable) -> None:
        """Call back once everything below ``offset`` is durable, or with the error that prevents it."""
        if log.offline_reason is not None:
            on_durable(LogOffline(log.name, log.offline_reason))
        elif log.durable.offset >= offset:
            on_durable(None)
        else:
            self._waiting.setdefault(log, []).append((offset, on_durable))
            if log in self._relaxed_since_ms:
                del self._relaxed_since_ms[log]
                self._dirty[log] = None

    def fail_waiters_above(self, log: PartitionLog, end_offset: int, error: Exception) -> None:
        """The log will be cut at ``end_offset``: fail whoever waits for more, because other records will get those offsets."""
        waiting = self._waiting.pop(log, [])
        still = [entry for entry in waiting if entry[0] <= end_offset]
        if still:
            self._waiting[log] = still
        for offset, on_durable in waiting:
            if offset > end_offset:
                on_durable(error)

    def move_recovery_point(self, log: PartitionLog, on_moved: OnDurable) -> None:
        """Move the recovery point to the log's end with the next pass. When the disk is full it may stay where it was."""
        self._recovery_point_waiting.setdefault(log, []).append(on_moved)
        self._relaxed_since_ms.pop(log, None)
        self._dirty[log] = None
        self.kick()

    def take_dirty(self) -> list[PartitionLog]:
        """Take all dirty logs, for a caller that syncs them itself (starting and stopping)."""
        logs = list({**self._dirty, **self._starved, **dict.fromkeys(self._relaxed_since_ms)})
        self._dirty = {}
        self._starved = {}
        self._relaxed_since_ms = {}
        return logs

    @property
    def is_running(self) -> bool:
        return self._in_flight

    @property
    def is_idle(self) -> bool:
        return not (self._in_flight or self._dirty)

    def forget(self, log: PartitionLog) -> None:
        """Called when the log is being deleted: it need not become durable, and whoever waits for it gets an error."""
        self._dirty.pop(log, None)
        self._starved.pop(log, None)
        self._relaxed_since_ms.pop(log, None)
        error = LogOffline(log.name, "the partition was deleted")
        self._wake(log, error)
        for callback in self._recovery_point_waiting.pop(log, []):
            callback(error)

    # -- passes --------------------------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Start a pass if a log is dirty and no pass is running. Called after a burst of appends, not after each append."""
        if self._in_flight or not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        self._in_flight = True
        interval = self._recovery_point_interval_bytes
        logs: list[PartitionLog] = []
        plans: list[SyncPlan] = []
        wanted = self._recovery_point_waiting
        self._recovery_point_waiting = {}
        for log in dirty:
            try:
                plans.append(log.begin_sync(log.bytes_since_recovery_point >= interval or log in wanted))
                logs.append(log)
            except OSError as error:
                self._leave_out(log, wanted.pop(log, []), error)
        if not plans:
            self._in_flight = False
            return
        self._began_ns = self._clock.monotonic_ns()
        work = partial(self._run, plans)
        self._ports.executor.submit(work, lambda completion: self._finish(logs, plans, wanted, completion))

    def _run(self, plans: list[SyncPlan]) -> tuple[SyncOutcome, int]:
        """Runs in a helper thread. Returns the outcome and the nanoseconds that it took."""
        began_ns = self._clock.monotonic_ns()
        outcome = run_plans(self._ports.disk, self._ports.file_system, plans, self.syncfs_files_min)
        return outcome, self._clock.monotonic_ns() - began_ns

    def _leave_out(self, log: PartitionLog, recovery_point_waiting: list[OnDurable], error: OSError) -> None:
        """A file of this log cannot even be opened: leave the log out, because the others must not wait for it."""
        if is_scarcity(error):
            self._starved[log] = None
            if recovery_point_waiting:
                self._recovery_point_waiting[log] = recovery_point_waiting
            return
        offline = log.go_offline(f"a file that has to be synced cannot be opened: {error}", sync_failed=True)
        self._wake(log, offline)
        for callback in recovery_point_waiting:
            callback(offline)
        for listener in log.durability_listeners:
            listener()

    def after_pass(self, callback: Callable[[], None]) -> None:
        """Call back when no pass is under way, perhaps at once: a pass refers to some files by their names."""
        if self._in_flight:
            self._after_pass.append(callback)
        else:
            callback()

    def tick(self) -> None:
        """Let the relaxed logs that have waited long enough join the next pass, and the logs that there was a shortage for."""
        self._dirty.update(self._starved)
        self._starved = {}
        now_ms = self._clock.monotonic_ms()
        due = [log for log, since_ms in self._relaxed_since_ms.items() if _is_due(log, now_ms - since_ms)]
        for log in due:
            del self._relaxed_since_ms[log]
            self._dirty[log] = None
        self.kick()

    def _finish(
        self,
        logs: list[PartitionLog],
        plans: list[SyncPlan],
        recovery_point_waiting: dict[PartitionLog, list[OnDurable]],
        completion: Completion,
    ) -> None:
        assert completion.error is None, f"a pass reports errors per log, but raised {completion.error!r}"
        outcome: SyncOutcome
        outcome, sync_ns = completion.result
        self._in_flight = False
        statistics = self.statistics
        statistics.passes += 1
        statistics.logs_in_last_pass = len(logs)
        statistics.logs_synced += len(logs)
        statistics.file_system_syncs += outcome.used_file_system_sync
        statistics.pass_logs.observe(len(logs))
        statistics.sync_ns.observe(sync_ns)
        statistics.pass_ns.observe(self._clock.monotonic_ns() - self._began_ns)
        if outcome.file_system_failed:
            self.syncfs_files_min = NEVER_SYNCFS
        for log, plan, error in zip(logs, plans, outcome.errors, strict=True):
            before = log.durable.offset
            log.finish_sync(plan, error)
            if is_scarcity(error) and log in self._dirty:
                del self._dirty[log]
                self._starved[log] = None
            if log.offline_reason is None and log.durable.offset > before:
                self._marks.record(log)
        after_pass, self._after_pass = self._after_pass, []
        for after in after_pass:
            after()
        for log in logs:
            self._wake(log, None if log.offline_reason is None else LogOffline(log.name, log.offline_reason))
        for log, callbacks in recovery_point_waiting.items():
            error_of_log = None if log.offline_reason is None else LogOffline(log.name, log.offline_reason)
            for callback in callbacks:
                callback(error_of_log)
        for log in logs:
            for listener in log.durability_listeners:
                listener()
        self._on_pass_ended(logs)
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


def _is_due(log: PartitionLog, waited_ms: int) -> bool:
    """Whether a relaxed topic is due by its ``flush.messages`` and ``flush.ms``, or by RELAXED_SYNC_MS."""
    settings = log.settings
    unsynced_messages = log.log_end_offset - log.durable.offset
    return unsynced_messages >= settings.flush_messages or waited_ms >= min(settings.flush_ms, RELAXED_SYNC_MS)
