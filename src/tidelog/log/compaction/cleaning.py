"""One pass of compaction over one log, from the key map to the last swap: what happens on the loop between the child's tasks.

    recovery point checkpointed -> map_keys -> (clean -> swap) for each group -> finished

Every step ends in an event, and before the next one the log is looked at again: when it went offline, was truncated, lost one
of the segments to retention, or the pass was told to stop, the child's files are removed and the pass is given up. A pass
that was given up, or died with the process, has left whole groups cleaned and the others as they were, which is a valid log;
the first dirty offset has not moved, so the next pass does it all again.

The I/O throttle works between tasks: a task that read and wrote N bytes is followed by a rest of N / rate. A group is at most
a segment, so that is how uneven it gets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog.log.compaction.clean import clean, remove_cleaned
from tidelog.log.compaction.key_map import remove_key_map
from tidelog.log.compaction.map_keys import map_keys
from tidelog.log.compaction.plan import CleaningPlan
from tidelog.log.compaction.tasks import CleanArguments, CleanResult, MapKeysArguments, MapKeysResult, from_json, to_json
from tidelog.log.errors import LogError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segment import LogSegment
from tidelog.log.swap import Swap
from tidelog.ports.executor import ChildTask, Completion, Executor


class OnFinished(Protocol):
    def __call__(self, cleaning: "Cleaning", error: BaseException | None) -> None:
        """``cleaning.end_offset`` is None when the pass was given up; ``error`` says when that was a failure."""
        ...


@dataclass(slots=True)
class PassCounts:
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    segments_replaced: int = 0


class Cleaning:
    """``rest`` is called after each task with the bytes it moved, and with what goes on when they are paid for."""

    def __init__(
        self,
        log: PartitionLog,
        executor: Executor,
        plan: CleaningPlan,
        key_map_bytes_max: int,
        rest: Callable[[int, Callable[[], None]], None],
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
        self._rest = rest
        self._delete_later = delete_later
        self._on_finished = on_finished
        self._truncations = log.truncations
        self._is_stopped = False
        self._map_end_offset = 0
        self._groups: list[list[LogSegment]] = []
        self._producers_with_data: list[int] = []

    def stop(self) -> None:
        """Give up at the next event. A swap that has begun is finished first: half of one cannot be undone."""
        self._is_stopped = True

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
        self._executor.submit_child(ChildTask(map_keys, to_json(arguments)), self._mapped)

    def _later_aborted(self) -> list[list[int]]:
        """From segments that still change, or whose index may not be written yet: the child cannot read those."""
        upper_offset = self._plan.upper_offset
        return [
            list(transaction)
            for segment in self.log.segments.from_offset(upper_offset)
            for transaction in segment.transaction_index.entries()
            if transaction.first_offset < upper_offset
        ]

    def _mapped(self, completion: Completion) -> None:
        if not self._may_go_on(self._plan.segments):
            # Whatever the child says then: it may have missed a file that was taken away meanwhile.
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
        task = ChildTask(clean, to_json(arguments))
        self._executor.submit_child(task, lambda completion: self._cleaned(group, completion))

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
        swap = Swap(self.log, self._executor, group, lambda originals, error: self._swapped(originals, error, moved_bytes))
        swap.start()

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
            self._rest(bytes_read + bytes_written, self._clean_next)

    # -- the end ---------------------------------------------------------------------------------------------------------------

    def _may_go_on(self, segments: Sequence[LogSegment]) -> bool:
        log = self.log
        if self._is_stopped or log.offline_reason is not None or log.truncations != self._truncations:
            return False
        in_use = {id(segment) for segment in log.segments}
        return all(id(segment) in in_use for segment in segments)

    def _finish(self, error: BaseException | None, cleaned_base_offset: int | None = None) -> None:
        """Take the scratch files away first: nothing of this pass touches the directory once ``on_finished`` is called."""
        disk, directory = self.log.environment.disk, self.log.directory

        def remove_scratch() -> None:
            remove_key_map(disk, directory)
            if cleaned_base_offset is not None:
                remove_cleaned(disk, directory, cleaned_base_offset)

        # Whether that worked does not matter: the next cleaning writes over them, and the next start removes them.
        self._executor.submit(remove_scratch, lambda _: self._on_finished(self, error))
