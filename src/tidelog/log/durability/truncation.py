"""Truncates a log, or begins it again at a later offset, in such a way that a crash at any moment does not look like lost data.

What the disk says about the log is lowered first, one file after the other: the durable mark, the recovery point, compaction's
first dirty offset and, when the cut goes below it, the log start. Only then are the segments cut. A crash in between finds a log
that is longer than the files say, which is harmless.

A log that begins again (its records are replaced by a snapshot that ends at a later offset) is cut in the same way, and before
the cut its new start is written. A crash in between finds a log that starts at or above its end; opening it drops the records.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.log.compaction.cleaner import Cleaner
from tidelog.log.durability.checkpoints import CheckpointWriter
from tidelog.log.durability.durable_marks import MarkFlusher
from tidelog.log.durability.group_commit import GroupCommit
from tidelog.log.errors import LogError, LogOffline
from tidelog.log.partition_log import PartitionLog
from tidelog.records.errors import RecordError

OnTruncated = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class TruncationPorts:
    """Everything that stores how long a log is."""

    commit: GroupCommit
    marks: MarkFlusher
    recovery_points: CheckpointWriter
    log_starts: CheckpointWriter
    cleaner: Cleaner
    cleaner_offsets: CheckpointWriter


class DurableTruncation:
    """One truncation under way. Nothing is appended to the log between ``start`` and ``on_done``."""

    __slots__ = ("_end_offset", "_is_new_beginning", "_log", "_offset", "_on_done", "_ports")

    def __init__(
        self, ports: TruncationPorts, log: PartitionLog, offset: int, on_done: OnTruncated, *, is_new_beginning: bool = False
    ) -> None:
        """Cut at ``offset``; or, if ``is_new_beginning``, drop all records and begin there."""
        self._ports = ports
        self._log = log
        self._offset = offset
        self._is_new_beginning = is_new_beginning
        self._end_offset = offset
        self._on_done = on_done

    def start(self) -> None:
        self._log.begin_truncation()
        self._ports.cleaner.abort(self._log, self._lower_mark)

    def _lower_mark(self) -> None:
        log, commit, marks = self._log, self._ports.commit, self._ports.marks
        try:
            self._end_offset = end_offset = self._kept_end_offset()
        except (LogError, OSError) as failure:
            self._finish(log.go_offline(f"truncating to offset {self._offset} failed: {failure}"))
            return
        log.lower_recovery_point(end_offset)
        commit.fail_waiters_above(log, end_offset, LogError(f"{log.name} was truncated to offset {end_offset}"))
        self._ports.cleaner.lower(log, end_offset)
        if end_offset < log.durable.offset:
            marks.lower(log, end_offset)
        marks.flush(self._lower_recovery_point)

    def _kept_end_offset(self) -> int:
        """The end of what is kept of the log as it is now."""
        return self._log.segments[0].base_offset if self._is_new_beginning else self._log.end_offset_after_cut(self._offset)

    def _lower_recovery_point(self, error: BaseException | None) -> None:
        if error is None:
            self._ports.recovery_points.request(self._lower_dirty_offset)
        else:
            self._finish(error)

    def _lower_dirty_offset(self, error: BaseException | None) -> None:
        if error is None:
            self._ports.cleaner_offsets.request(self._lower_log_start)
        else:
            self._finish(error)

    def _lower_log_start(self, error: BaseException | None) -> None:
        if error is None and self._is_new_beginning:
            self._log.raise_start(self._offset)
            self._ports.log_starts.request(self._cut)
        elif error is None and self._end_offset < self._log.log_start_offset:
            self._log.lower_start(self._end_offset)
            self._ports.log_starts.request(self._cut)
        else:
            self._cut(error)

    def _cut(self, error: BaseException | None) -> None:
        log = self._log
        if error is None:
            try:
                log.start_over_at(self._offset) if self._is_new_beginning else log.cut_to(self._offset)
            except LogOffline as failure:
                error = failure
            except (LogError, RecordError, OSError) as failure:
                error = log.go_offline(f"truncating to offset {self._offset} failed: {failure}")
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        log = self._log
        if error is not None and log.offline_reason is None:
            # Nothing was cut: what was durable still is, and losing it must not look like a torn tail.
            self._ports.marks.record(log)
        log.end_truncation()
        self._on_done(error)
