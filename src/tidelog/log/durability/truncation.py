"""Cut a log back so that a crash at any moment is not taken for lost data.

What the disk says of the log is lowered first, one file after the other: the durable mark, the recovery point, the first dirty
offset of compaction and, when the cut goes below it, the log start. Only then are the segments cut. A crash in between finds a
log that is longer than what is said of it, which is harmless.
"""

from collections.abc import Callable

from tidelog.log.compaction.cleaner import Cleaner
from tidelog.log.durability.checkpoints import CheckpointWriter
from tidelog.log.durability.durable_marks import MarkFlusher
from tidelog.log.durability.group_commit import GroupCommit
from tidelog.log.errors import LogError, LogOffline
from tidelog.log.partition_log import PartitionLog
from tidelog.records.errors import RecordError


class DurableTruncation:
    """One truncation under way. Nothing is appended to the log between ``start`` and ``on_done``."""

    def __init__(
        self,
        log: PartitionLog,
        offset: int,
        *,
        commit: GroupCommit,
        marks: MarkFlusher,
        recovery_points: CheckpointWriter,
        log_starts: CheckpointWriter,
        cleaner: Cleaner,
        cleaner_offsets: CheckpointWriter,
        on_done: Callable[[BaseException | None], None],
    ) -> None:
        self._log = log
        self._offset = offset
        self._end_offset = offset
        self._commit = commit
        self._marks = marks
        self._recovery_points = recovery_points
        self._log_starts = log_starts
        self._cleaner = cleaner
        self._cleaner_offsets = cleaner_offsets
        self._on_done = on_done

    def start(self) -> None:
        self._log.begin_truncation()
        self._cleaner.abort(self._log, self._lower_mark)

    def _lower_mark(self) -> None:
        log = self._log
        try:
            self._end_offset = end_offset = log.end_offset_after_cut(self._offset)
        except (LogError, OSError) as failure:
            self._finish(log.go_offline(f"truncating to offset {self._offset} failed: {failure}"))
            return
        log.lower_recovery_point(end_offset)
        self._commit.give_up(log, end_offset, LogError(f"{log.name} was truncated to offset {end_offset}"))
        self._cleaner.lower(log, end_offset)
        if end_offset < log.durable.offset:
            self._marks.lower(log, end_offset)
        self._marks.flush(self._lower_recovery_point)

    def _lower_recovery_point(self, error: BaseException | None) -> None:
        if error is None:
            self._recovery_points.request(self._lower_dirty_offset)
        else:
            self._finish(error)

    def _lower_dirty_offset(self, error: BaseException | None) -> None:
        if error is None:
            self._cleaner_offsets.request(self._lower_log_start)
        else:
            self._finish(error)

    def _lower_log_start(self, error: BaseException | None) -> None:
        if error is None and self._end_offset < self._log.log_start_offset:
            self._log.lower_start(self._end_offset)
            self._log_starts.request(self._cut)
        else:
            self._cut(error)

    def _cut(self, error: BaseException | None) -> None:
        log = self._log
        if error is None:
            try:
                log.cut_to(self._offset)
            except LogOffline as failure:
                error = failure
            except (LogError, RecordError, OSError) as failure:
                error = log.go_offline(f"truncating to offset {self._offset} failed: {failure}")
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        log = self._log
        if error is not None and log.offline_reason is None:
            # Nothing was cut: what was durable is so still, and its loss must not pass for a torn tail.
            self._marks.record(log)
        log.end_truncation()
        self._on_done(error)
