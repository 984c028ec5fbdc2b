"""Compaction of a data directory's logs, one log at a time, the one with the largest dirty part first.

``Cleaner.tick``, which is called often, drives everything: it picks a log, or resumes a throttled cleaning. The first dirty
offset of a log says how far it has been cleaned, and is kept in ``cleaner-offset-checkpoint``. If it is lost or too low, the
log is cleaned again, no more. If it were too *high*, a tombstone could be removed before the records that it deletes; so
whoever truncates or deletes a log calls ``abort`` first, works in its callback, and corrects the offset with ``lower`` or
``forget``.

``CleaningPass`` is one pass over one log, from the key map to the last swap, as it runs on the event loop between the child's
tasks:

    recovery point checkpointed -> map_keys -> (clean -> swap) for each group -> finished

Every step ends in an event, and before the next one the pass looks at the log again: when the log went offline, was truncated,
or lost one of the segments to retention, or when the pass was told to stop, the child's files are removed and the pass is
abandoned. A pass that was abandoned, or died with the process, leaves some groups cleaned completely and the others untouched,
which is a valid log; the first dirty offset has not moved, so the next pass repeats everything.

The I/O throttle works between tasks: a task that read and wrote N bytes is followed by a rest of N / rate. A group is at most
one segment, which limits how uneven the load is.

When the next tombstones may be removed is known only in memory, from the last cleaning. After a start, every horizon that an
earlier run has set lies at most ``delete.retention.ms`` ahead, so a log that was cleaned before is due again then.

A log whose cleaning fails is left alone for ``UNCLEANABLE_RETRY_MS``; the others continue.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidelog.log.compaction.key_map import remove_key_map
from tidelog.log.compaction.plan import CleaningPlan, plan_cleaning
from tidelog.log.compaction.swap import SegmentSwap
from tidelog.log.compaction.tasks import (
    CleanArguments,
    CleanResult,
    MapKeysArguments,
    MapKeysResult,
    clean,
    from_json,
    map_keys,
    remove_cleaned,
    to_json,
)
from tidelog.log.environment import Report
from tidelog.log.errors import LogError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segments.segment import LogSegment
from tidelog.log.time_budget import TimeBudget
from tidelog.ports.clock import Clock
from tidelog.ports.executor import ChildRun, ChildTask, Completion, Executor
from tidelog.records.topic_partition import TopicPartition


class OnFinished(Protocol):
    def __call__(self, cleaning: "CleaningPass", error: BaseException | None) -> None:
        """``cleaning.end_offset`` is None when the pass was abandoned; ``error`` is set when that was a failure."""
        ...


@dataclass(frozen=True, slots=True)
class CleaningPauses:
    """How a pass waits."""

    rest: Callable[[int, Callable[[], None]], None]
    """Called after each task with the bytes that it moved and a continuation for when the throttle allows it."""
    retry_later: Callable[[Callable[[], None]], None]
    """Called with a step that lacked descriptors, memory or space."""


@dataclass(slots=True)
class PassCounts:
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    segments_replaced: int = 0


class CleaningPass:
    """One pass over one log."""

    def __init__(
        self,
        log: PartitionLog,
        executor: Executor,
        plan: CleaningPlan,
        key_map_bytes_max: int,
        pauses: "CleaningPauses",
        delete_later: Callable[[list[LogSegment], PartitionLog], None],
        on_finished: OnFinished,
    ) -> None:
        self.log = log
        self.counts = PassCounts()
        self.end_offset: int | None = None
        self.horizon_ms: int | None = None
        self._executor = executor
        self._plan = plan
        self._key_map_bytes_max = key_map_bytes_max
        self._pauses = pauses
        self._delete_later = delete_later
        self._on_finished = on_finished
        self._truncations = log.truncations
        self._is_stopped = False
        self._child: ChildRun | None = None
        self._map_end_offset = 0
        self._groups: list[list[LogSegment]] = []
        self._producers_with_data: list[int] = []

    def stop(self) -> None:
        """Abandon the pass: a child that is at work is killed, because whoever deletes or truncates the log waits for it. A swap
        that has begun is finished first, because half a swap cannot be undone."""
        self._is_stopped = True
        if self._child is not None:
            self._child.cancel()

    # -- the key map -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        plan, settings = self._plan, self.log.settings
        try:
            aborted = self._later_aborted()
        except (LogError, OSError) as error:
            self._finish(error)
            return
        arguments = MapKeysArguments(
            directory=self.log.directory,
            base_offsets=[segment.base_offset for segment in plan.segments],
            first_dirty_offset=plan.first_dirty_offset,
            upper_offset=plan.upper_offset,
            aborted=aborted,
            key_map_bytes_max=self._key_map_bytes_max,
            segment_bytes=settings.segment_bytes,
            segment_index_bytes=settings.segment_index_bytes,
        )
        self._run_child(ChildTask(map_keys, to_json(arguments), _timeout_seconds(plan.segments)), self._mapped)

    def _run_child(self, task: ChildTask, on_done: Callable[[Completion], None]) -> None:
        def done(completion: Completion) -> None:
            self._child = None
            on_done(completion)

        self._child = self._executor.submit_child(task, done)

    def _later_aborted(self) -> list[list[int]]:
        """The aborted transactions in segments that still change, or whose index may not be written yet: the child cannot read
        those."""
        upper_offset = self._plan.upper_offset
        return [
            list(transaction)
            for segment in self.log.segments.from_offset(upper_offset)
            for transaction in segment.transaction_index.entries()
            if transaction.first_offset < upper_offset
        ]

    def _mapped(self, completion: Completion) -> None:
        if not self._may_go_on(self._plan.segments):
            # Ignore what the child reports: it may have missed a file that was removed in the meantime.
            self._finish(None)
            return
        if completion.error is not None:
            self._finish(completion.error)
            return
        result = from_json(MapKeysResult, completion.result)
        segments = {segment.base_offset: segment for segment in self._plan.segments}
        self._map_end_offset = result.end_offset
        self._groups = [[segments[base_offset] for base_offset in group] for group in result.groups]
        self._groups.reverse()
        self._count_and_rest(result.bytes_read, result.bytes_written)

    # -- group by group --------------------------------------------------------------------------------------------------------

    def _clean_next(self) -> None:
        if not self._groups:
            self.end_offset = self._map_end_offset
            self._finish(None)
            return
        group = self._groups.pop()
        if not self._may_go_on(group):
            self._finish(None)
            return
        log = self.log
        try:
            aborted = self._later_aborted()
        except (LogError, OSError) as error:
            self._finish(error)
            return
        arguments = CleanArguments(
            directory=log.directory,
            group=[segment.base_offset for segment in group],
            end_offset=self._map_end_offset,
            upper_offset=self._plan.upper_offset,
            aborted=aborted,
            producers_with_data=self._producers_with_data,
            active_producers=[[entry.producer_id, entry.epoch, entry.last_offset] for entry in log.producers.entries()],
            delete_retention_ms=log.settings.delete_retention_ms,
            index_interval_bytes=log.settings.index_interval_bytes,
        )
        task = ChildTask(clean, to_json(arguments), _timeout_seconds(group))
        self._run_child(task, lambda completion: self._cleaned(group, completion))

    def _cleaned(self, group: list[LogSegment], completion: Completion) -> None:
        if not self._may_go_on(group):
            self._finish(None, group[0].base_offset)
            return
        if completion.error is not None:
            self._finish(completion.error, group[0].base_offset)
            return
        result = from_json(CleanResult, completion.result)
        self._producers_with_data = result.producers_with_data
        if result.horizon_ms is not None and (self.horizon_ms is None or result.horizon_ms < self.horizon_ms):
            self.horizon_ms = result.horizon_ms
        self.counts.records_read += result.records_read
        self.counts.records_kept += result.records_kept
        moved_bytes = (result.bytes_read, result.bytes_written)

        def swapped(originals: list[LogSegment], error: BaseException | None) -> None:
            self._swapped(originals, error, moved_bytes)

        SegmentSwap(self.log, self._executor, group, self._pauses.retry_later, swapped).start()

    def _swapped(self, originals: list[LogSegment], error: BaseException | None, moved_bytes: tuple[int, int]) -> None:
        if error is not None:
            self._finish(error)
            return
        self.counts.segments_replaced += len(originals)
        self._delete_later(originals, self.log)
        self._count_and_rest(*moved_bytes)

    def _count_and_rest(self, bytes_read: int, bytes_written: int) -> None:
        self.counts.bytes_read += bytes_read
        self.counts.bytes_written += bytes_written
        if self._is_stopped:
            self._finish(None)
        else:
            self._pauses.rest(bytes_read + bytes_written, self._clean_next)

    # -- the end ---------------------------------------------------------------------------------------------------------------

    def _may_go_on(self, segments: Sequence[LogSegment]) -> bool:
        log = self.log
        if self._is_stopped or log.offline_reason is not None or log.truncations != self._truncations:
            return False
        in_use = {id(segment) for segment in log.segments}
        return all(id(segment) in in_use for segment in segments)

    def _finish(self, error: BaseException | None, cleaned_base_offset: int | None = None) -> None:
        """Remove the scratch files first: this pass does not touch the directory any more once ``on_finished`` is called."""
        disk, directory = self.log.environment.disk, self.log.directory

        def remove_scratch() -> None:
            remove_key_map(disk, directory)
            if cleaned_base_offset is not None:
                remove_cleaned(disk, directory, cleaned_base_offset)

        # Whether that worked does not matter: the next cleaning overwrites them, and the next start removes them.
        self._executor.submit(remove_scratch, lambda _: self._on_finished(self, error))


# A child that works reads more than ten megabytes a second. One that takes ten times as long, and ten minutes more for a machine
# that is busy with other things, hangs: it is killed, so that it does not keep all other logs from being cleaned.
CHILD_BYTES_PER_SECOND_MIN = 1 << 20
CHILD_SECONDS_MIN = 600


def _timeout_seconds(segments: Sequence[LogSegment]) -> float:
    return CHILD_SECONDS_MIN + sum(segment.size for segment in segments) / CHILD_BYTES_PER_SECOND_MIN


# A full disk recovers, a damaged segment does not; either way trying more often would only waste the child's time.
UNCLEANABLE_RETRY_MS = 15 * 60_000
# Descriptors and disk space come back when clients go or retention runs, within seconds rather than milliseconds.
SHORTAGE_RETRY_MS = 1_000
# The number of segments that one tick examines: this takes two or three milliseconds.
SEGMENTS_PER_LOOK = 1_000


@dataclass(slots=True)
class CleanerStatistics:
    cleanings: int = 0
    abandoned: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_removed: int = 0
    segments_replaced: int = 0
    last_duration_ms: int = 0
    uncleanable: dict[TopicPartition, str] = field(default_factory=dict)
    """The logs that are left alone for now, with the reason."""


@dataclass(frozen=True, slots=True)
class CleanerPorts:
    """The functions that the data directory gives to the cleaner."""

    clock: Clock
    executor: Executor
    report: Report
    logs: Callable[[], Iterable[PartitionLog]]
    checkpoint_recovery_point: Callable[[PartitionLog, Callable[[BaseException | None], None]], None]
    """Make the log durable, move its recovery point to its end and write that to the disk, then call back."""
    delete_later: Callable[[list[LogSegment], PartitionLog], None]
    save_checkpoint: Callable[[dict[TopicPartition, int]], None]
    """Write the first dirty offsets of all logs to ``cleaner-offset-checkpoint``."""


class Cleaner:
    __slots__ = (
        "_backoff_ms",
        "_best",
        "_best_ratio",
        "_bytes_per_second_max",
        "_cleaning",
        "_continuation",
        "_first_dirty_offsets",
        "_horizons_ms",
        "_key_map_bytes_max",
        "_look",
        "_next_look_ms",
        "_on_idle",
        "_picked",
        "_ports",
        "_resume_ms",
        "_retry_ms",
        "_started_ms",
        "statistics",
    )

    def __init__(
        self,
        ports: CleanerPorts,
        first_dirty_offsets: dict[TopicPartition, int],
        key_map_bytes_max: int,
        bytes_per_second_max: float,
        backoff_ms: int,
    ) -> None:
        """``first_dirty_offsets`` is the content of the checkpoint, which the cleaner owns from now on. ``backoff_ms``: how long
        it rests when no log is due."""
        self.statistics = CleanerStatistics()
        self._ports = ports
        self._first_dirty_offsets = first_dirty_offsets
        self._key_map_bytes_max = key_map_bytes_max
        self._bytes_per_second_max = bytes_per_second_max
        self._backoff_ms = backoff_ms
        self._next_look_ms = 0
        # The logs that have not been examined yet, and the one with the largest dirty part so far.
        self._look: Iterator[PartitionLog] | None = None
        self._best: PartitionLog | None = None
        self._best_ratio = -1.0
        self._horizons_ms: dict[TopicPartition, int] = {}
        self._retry_ms: dict[TopicPartition, int] = {}
        # The log that is being cleaned and, once the log's recovery point is on disk, its pass.
        self._picked: PartitionLog | None = None
        self._cleaning: CleaningPass | None = None
        self._started_ms = 0
        # How and when a throttled cleaning continues.
        self._continuation: Callable[[], None] | None = None
        self._resume_ms = 0
        self._on_idle: list[Callable[[], None]] = []

    @property
    def log_being_cleaned(self) -> PartitionLog | None:
        """The log whose segments retention must not touch: one of them may be in the middle of a swap."""
        return self._picked

    @property
    def first_dirty_offsets(self) -> dict[TopicPartition, int]:
        return self._first_dirty_offsets

    def first_dirty_offset(self, log: PartitionLog) -> int | None:
        return self._first_dirty_offsets.get((log.topic, log.partition))

    # -- driving ---------------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Continue a cleaning that has rested long enough, or begin one if a log is due."""
        now_ms = self._ports.clock.monotonic_ms()
        if self._picked is not None:
            if self._continuation is not None and now_ms >= self._resume_ms:
                self._go_on()
            return
        if now_ms < self._next_look_ms or not self._look_on():
            return
        log, self._best = self._best, None
        if log is None or log.offline_reason is not None:
            self._next_look_ms = now_ms + self._backoff_ms
            return
        self._picked = log
        self._started_ms = now_ms
        end_offset, truncations = log.log_end_offset, log.truncations

        def checkpointed(error: BaseException | None) -> None:
            self._begin(log, end_offset, truncations, error)

        self._ports.checkpoint_recovery_point(log, checkpointed)

    def _look_on(self) -> bool:
        """Examine a slice of the logs. Returns True when all have been examined; ``_best`` is then the one to clean, if any."""
        if self._look is None:
            self._look = iter(list(self._ports.logs()))
            self._best, self._best_ratio = None, -1.0
        now_ms = self._ports.clock.monotonic_ms()
        work = TimeBudget(self._ports.clock, SEGMENTS_PER_LOOK)
        for log in self._look:
            if not log.settings.compact or log.offline_reason is not None or len(log.segments) < 2:
                continue
            if self._retry_ms.get((log.topic, log.partition), 0) > now_ms:
                continue
            self._compare(log)
            work.spend(len(log.segments))
            if work.is_over:
                return False
        self._look = None
        return True

    def _compare(self, log: PartitionLog) -> None:
        try:
            # By the time that it matters, the recovery point will have moved to the log's end.
            plan = self._plan(log, log.log_end_offset)
        except (LogError, OSError) as error:
            self._leave_alone(log, str(error))
            return
        if plan.is_due and plan.dirty_ratio > self._best_ratio:
            self._best, self._best_ratio = log, plan.dirty_ratio

    def _plan(self, log: PartitionLog, recovery_point: int) -> CleaningPlan:
        key = (log.topic, log.partition)
        now_ms = self._ports.clock.now_ms()
        first_dirty_offset = self._first_dirty_offsets.get(key)
        if first_dirty_offset is not None and key not in self._horizons_ms:
            self._horizons_ms[key] = now_ms + log.settings.delete_retention_ms
        return plan_cleaning(log, first_dirty_offset, recovery_point, self._horizons_ms.get(key), now_ms)

    def _begin(self, log: PartitionLog, end_offset: int, truncations: int, error: BaseException | None) -> None:
        if self._on_idle or log.offline_reason is not None or log.truncations != truncations:
            self._become_idle()
            return
        try:
            # Later appends may have moved the recovery point in memory, but not on the disk.
            plan = self._plan(log, min(end_offset, log.recovery_point))
        except (LogError, OSError) as failure:
            error = failure
        if error is not None or not plan.is_due:
            # If it were picked again at the next tick, it would keep all others waiting.
            self._leave_alone(log, str(error) if error is not None else "its recovery point has not moved")
            self._become_idle()
            return
        ports = self._ports
        pauses = CleaningPauses(self._rest, self._retry_later)
        self._cleaning = CleaningPass(
            log, ports.executor, plan, self._key_map_bytes_max, pauses, ports.delete_later, self._finished
        )
        self._cleaning.start()

    def _rest(self, moved_bytes: int, go_on: Callable[[], None]) -> None:
        rest_ms = moved_bytes * 1000 / self._bytes_per_second_max
        if rest_ms < 1:
            go_on()
            return
        self._continuation = go_on
        self._resume_ms = self._ports.clock.monotonic_ms() + int(rest_ms)

    def _retry_later(self, step: Callable[[], None]) -> None:
        self._continuation = step
        self._resume_ms = self._ports.clock.monotonic_ms() + SHORTAGE_RETRY_MS

    def _go_on(self) -> None:
        go_on = self._continuation
        assert go_on is not None
        self._continuation = None
        go_on()

    # -- the end of a cleaning -------------------------------------------------------------------------------------------------

    def _finished(self, cleaning: CleaningPass, error: BaseException | None) -> None:
        log, counts, statistics = cleaning.log, cleaning.counts, self.statistics
        key = (log.topic, log.partition)
        statistics.bytes_read += counts.bytes_read
        statistics.bytes_written += counts.bytes_written
        statistics.records_read += counts.records_read
        statistics.records_removed += counts.records_read - counts.records_kept
        statistics.segments_replaced += counts.segments_replaced
        statistics.last_duration_ms = self._ports.clock.monotonic_ms() - self._started_ms
        if error is not None:
            statistics.failures += 1
            self._leave_alone(log, str(error))
        elif cleaning.end_offset is None:
            statistics.abandoned += 1
        else:
            statistics.cleanings += 1
            statistics.uncleanable.pop(key, None)
            self._retry_ms.pop(key, None)
            self._set_horizon(log, cleaning.horizon_ms)
            self._first_dirty_offsets[key] = cleaning.end_offset
            self._save()
        self._become_idle()

    def _set_horizon(self, log: PartitionLog, horizon_ms: int | None) -> None:
        """``horizon_ms`` is None for a log without tombstones: then nothing is due until something new is written."""
        never_ms = 2**63 - 1
        self._horizons_ms[log.topic, log.partition] = never_ms if horizon_ms is None else horizon_ms

    def _leave_alone(self, log: PartitionLog, reason: str) -> None:
        key = (log.topic, log.partition)
        self._retry_ms[key] = self._ports.clock.monotonic_ms() + UNCLEANABLE_RETRY_MS
        self.statistics.uncleanable[key] = reason
        self._ports.report("log_uncleanable", {"partition": log.name, "error": reason})

    def _become_idle(self) -> None:
        self._picked = self._cleaning = self._continuation = None
        waiting, self._on_idle = self._on_idle, []
        for on_idle in waiting:
            on_idle()

    def _save(self) -> None:
        self._ports.save_checkpoint(dict(self._first_dirty_offsets))

    # -- what others do to a log -----------------------------------------------------------------------------------------------

    def abort(self, log: PartitionLog, on_idle: Callable[[], None]) -> None:
        """Stop working on a log that will be truncated or deleted. ``on_idle`` is called, perhaps at once, when no work touches
        it any more."""
        if self._picked is not log:
            on_idle()
            return
        self._on_idle.append(on_idle)
        if self._cleaning is not None:
            self._cleaning.stop()
            if self._continuation is not None:
                self._go_on()

    def lower(self, log: PartitionLog, offset: int) -> None:
        """Called before the log is truncated to ``offset``: whatever is written there next is dirty."""
        key = (log.topic, log.partition)
        if self._first_dirty_offsets.get(key, offset) > offset:
            self._first_dirty_offsets[key] = offset
            self._save()

    def forget(self, key: TopicPartition) -> None:
        """Called before the log is deleted: a new one of the same name starts from the beginning."""
        for table in (self._horizons_ms, self._retry_ms, self.statistics.uncleanable):
            table.pop(key, None)
        if self._first_dirty_offsets.pop(key, None) is not None:
            self._save()
