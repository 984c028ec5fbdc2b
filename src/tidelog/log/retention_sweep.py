"""Applies retention to every log of a data directory, a few logs at a time.

A sweep begins every ``log.retention.check.interval.ms`` and walks the logs in slices, so that ten thousand partitions do not
hold the loop. Logs whose start moved are gathered; one write of the log start offsets makes it durable for all of them, and
only then are their segments taken out.
"""

from collections.abc import Callable, Iterator

from tidelog.log.checkpoint_writer import CheckpointWriter
from tidelog.log.deletion_queue import DeletionQueue
from tidelog.log.environment import Report
from tidelog.log.errors import LogError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.retention import raise_log_start, retained_start_offset, take_out_below
from tidelog.ports.clock import Clock

# About a millisecond of work.
LOGS_PER_TICK = 50


class RetentionSweep:
    __slots__ = (
        "_clock",
        "_deletions",
        "_interval_ms",
        "_is_being_compacted",
        "_logs",
        "_next_ms",
        "_report",
        "_start_offsets",
        "_walk",
    )

    def __init__(
        self,
        clock: Clock,
        logs: Callable[[], list[PartitionLog]],
        start_offsets: CheckpointWriter,
        deletions: DeletionQueue,
        report: Report,
        interval_ms: int,
        is_being_compacted: Callable[[PartitionLog], bool],
    ) -> None:
        self._clock = clock
        self._logs = logs
        self._start_offsets = start_offsets
        self._deletions = deletions
        self._report = report
        self._interval_ms = interval_ms
        self._next_ms = clock.monotonic_ms() + interval_ms
        self._is_being_compacted = is_being_compacted
        self._walk: Iterator[list[PartitionLog]] | None = None

    def tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
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
        """Their log starts were raised: make it durable (``on_done`` hears of that), then take their segments out."""

        def written(error: BaseException | None) -> None:
            if error is None:
                for log in logs:
                    self._take_out(log)
            if on_done is not None:
                on_done(error)

        self._start_offsets.request(written)

    def _sweep(self) -> Iterator[list[PartitionLog]]:
        moved: list[PartitionLog] = []
        for number, log in enumerate(self._logs(), start=1):
            if log.offline_reason is None and self._expire(log):
                moved.append(log)
            if number % LOGS_PER_TICK == 0:
                yield moved
                moved = []
        yield moved

    def _expire(self, log: PartitionLog) -> bool:
        """Has its start moved, or does a segment lie below it that a crash brought back?"""
        now_ms = self._clock.now_ms()
        log.producers.remove_expired(now_ms)
        try:
            raise_log_start(log, retained_start_offset(log, now_ms))
        except (LogError, OSError) as error:
            self._report("retention_failed", {"partition": log.name, "error": str(error)})
            return False
        following = log.segments.base_offset_after(log.segments[0])
        return following is not None and following <= log.log_start_offset

    def _take_out(self, log: PartitionLog) -> None:
        # A segment may be in the middle of a swap. Its records are out of sight already; a later sweep removes the file.
        if log.offline_reason is not None or self._is_being_compacted(log):
            return
        try:
            # Not below the log start itself, which may have risen again since: a crash must find it written.
            segments = take_out_below(log, self._start_offsets.written.get((log.topic, log.partition), 0))
        except OSError as error:
            log.go_offline(f"renaming deleted segments failed: {error}")
            return
        self._deletions.add_segments(segments, log.settings.file_delete_delay_ms)
