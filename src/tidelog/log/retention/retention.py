"""Deletes what a topic's retention no longer keeps, a few logs at a time.

Deleting has three steps, and their order is what keeps a crash harmless: the log start offset rises in memory (readers stop
seeing the records at once), it is written to the ``log-start-offset-checkpoint``, and only then are the segments below it
renamed to ``.deleted`` and, a while later, removed. A crash may undo any of the renames; the checkpoint still says that those
segments are gone.

The active segment is deleted like the others when all of it has expired: it is rolled first. Nothing at or above the high
watermark is deleted.

A sweep begins every ``log.retention.check.interval.ms`` and walks the logs in slices, so that neither ten thousand partitions
nor one partition with ten thousand segments block the event loop. One write of the log start offsets serves all logs of a slice
whose start moved; their segments are taken out afterwards, in slices again.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from tidelog.log.durability.checkpoints import CheckpointWriter
from tidelog.log.environment import Report, is_scarcity
from tidelog.log.errors import LogError, StorageError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.retention.deletion_queue import DeletionQueue
from tidelog.log.segments.segment import LogSegment
from tidelog.log.settings import UNLIMITED
from tidelog.log.time_budget import TimeBudget
from tidelog.ports.clock import Clock


def retained_start_offset(log: PartitionLog, now_ms: int, segments_max: int = sys.maxsize) -> int:
    """Return where the log should start by time and by size; its current start when nothing has to be deleted. May roll the
    active segment.

    At most ``segments_max`` more segments are passed, since the age of each may have to be read from the disk; then call
    again."""
    settings = log.settings
    if not settings.delete:
        return log.log_start_offset
    limit = min(log.high_watermark, log.durable.offset)
    if settings.retention_ms >= 0:
        # Without space for a new segment the closed ones must be deleted all the same: that frees space.
        with suppress(StorageError):
            _roll_expired(log, now_ms, limit)
    excess_bytes = log.size - settings.retention_bytes if settings.retention_bytes != UNLIMITED else 0
    start_offset = log.log_start_offset
    for segment in log.segments.closed:
        end_offset = log.segments.base_offset_after(segment)
        assert end_offset is not None, "a closed segment has one after it"
        is_below_start = end_offset <= log.log_start_offset
        is_excess = excess_bytes >= segment.size > 0
        is_expired = (
            not is_below_start
            and not is_excess
            and settings.retention_ms >= 0
            and _age_ms(log, segment, now_ms) > settings.retention_ms
        )
        if end_offset > limit or not (is_expired or is_excess or is_below_start):
            break
        excess_bytes -= segment.size
        if not is_below_start:
            if not segments_max:
                break
            segments_max -= 1
            start_offset = end_offset
    return start_offset


def _roll_expired(log: PartitionLog, now_ms: int, limit: int) -> None:
    active = log.segments.active
    if active.size and log.log_end_offset <= limit and _age_ms(log, active, now_ms) > log.settings.retention_ms:
        log.roll()


def _age_ms(log: PartitionLog, segment: LogSegment, now_ms: int) -> int:
    newest = segment.max_timestamp
    return now_ms - (newest if newest >= 0 else log.environment.disk.modified_ms(segment.path))


# About a millisecond of work, or more where the age of segments has to be read from the disk.
LOGS_PER_TICK = 50
# How many segments' ages one slice checks, each perhaps for the first time.
SEGMENTS_PER_TICK = 50
# How many segments one slice takes out: each costs four renames and the removal of a snapshot.
SEGMENTS_TAKEN_OUT_PER_TICK = 16
# How many segments are taken out between two looks at the clock.
SEGMENTS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class RetentionPorts:
    clock: Clock
    logs: Callable[[], list[PartitionLog]]
    log_starts: CheckpointWriter
    deletions: DeletionQueue
    report: Report
    is_being_compacted: Callable[[PartitionLog], bool]


class RetentionSweep:
    __slots__ = ("_clock", "_interval_ms", "_next_ms", "_ports", "_to_take_out", "_walk")

    def __init__(self, ports: RetentionPorts, interval_ms: int) -> None:
        self._ports = ports
        self._clock = ports.clock
        self._interval_ms = interval_ms
        self._next_ms = ports.clock.monotonic_ms() + interval_ms
        self._walk: Iterator[list[PartitionLog]] | None = None
        # The logs whose new start is on the disk. A dictionary, because it keeps its order.
        self._to_take_out: dict[PartitionLog, None] = {}

    def tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._to_take_out:
            self._take_out_some()
            return
        if self._walk is None and now_ms >= self._next_ms:
            self._next_ms = now_ms + self._interval_ms
            self._walk = self._sweep()
        if self._walk is not None:
            moved = next(self._walk, None)
            if moved is None:
                self._walk = None
            elif moved:
                self.apply(moved)

    def apply(self, logs: list[PartitionLog], on_done: Callable[[BaseException | None], None] | None = None) -> None:
        """Make the raised starts of ``logs`` durable, call ``on_done``, and then take their segments out."""

        def written(error: BaseException | None) -> None:
            if error is None:
                is_first = not self._to_take_out
                self._to_take_out.update(dict.fromkeys(logs))
                if is_first:
                    self._take_out_some()
            if on_done is not None:
                on_done(error)

        self._ports.log_starts.request(written)

    def _sweep(self) -> Iterator[list[PartitionLog]]:
        """Yields, slice by slice, the logs that have segments to take out."""
        moved: dict[PartitionLog, None] = {}
        logs, segments_left = TimeBudget(self._clock, LOGS_PER_TICK), SEGMENTS_PER_TICK
        for log in self._ports.logs():
            # A log with more expired segments than a slice allows is visited again in the next one.
            is_done = False
            while not is_done and log.offline_reason is None:
                if logs.is_over or not segments_left:
                    yield list(moved)
                    moved = {}
                    logs, segments_left = TimeBudget(self._clock, LOGS_PER_TICK), SEGMENTS_PER_TICK
                before = log.log_start_offset
                expired = self._expire(log, segments_left)
                is_done = expired < segments_left
                if log.log_start_offset > before or log.has_segment_below(log.log_start_offset):
                    moved[log] = None
                logs.spend()
                segments_left -= expired
        yield list(moved)

    def _expire(self, log: PartitionLog, segments_max: int) -> int:
        """Raise the log's start by at most ``segments_max`` segments; returns by how many."""
        now_ms = self._clock.now_ms()
        segments = log.segments
        before = segments.floor_index(log.log_start_offset)
        try:
            log.raise_start(retained_start_offset(log, now_ms, segments_max))
        except (LogError, OSError) as error:
            self._ports.report("retention_failed", {"partition": log.name, "error": str(error)})
        return segments.floor_index(log.log_start_offset) - before

    def _take_out_some(self) -> None:
        work = TimeBudget(self._clock, SEGMENTS_TAKEN_OUT_PER_TICK)
        while self._to_take_out and not work.is_over:
            log = next(iter(self._to_take_out))
            # Use the start that is on the disk: the log's own may have risen since, and a crash must find it written.
            start_offset = self._ports.log_starts.written.get((log.topic, log.partition), 0)
            if not self._take_out(log, start_offset, work) or not log.has_segment_below(start_offset):
                del self._to_take_out[log]

    def _take_out(self, log: PartitionLog, start_offset: int, work: TimeBudget) -> bool:
        """Take out some segments. Returns False to leave the rest to a later sweep."""
        # A segment may be in the middle of a swap. Readers no longer see its records; a later sweep removes the file.
        if log.offline_reason is not None or self._ports.is_being_compacted(log):
            return False
        try:
            segments = log.drop_segments_below(start_offset, min(work.left, SEGMENTS_AT_ONCE))
        except OSError as error:
            if is_scarcity(error):
                self._ports.report("retention_failed", {"partition": log.name, "error": str(error)})
            else:
                log.go_offline(f"renaming deleted segments failed: {error}")
            return False
        work.spend(len(segments))
        self._ports.deletions.add_segments(segments, log.settings.file_delete_delay_ms)
        return True
