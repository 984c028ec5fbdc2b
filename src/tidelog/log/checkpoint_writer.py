"""Writes one offset checkpoint file of a data directory on the executor, one write at a time.

The offsets are taken on the loop when a write begins; a request that comes while one is under way waits for the next, whose
offsets are then at least as new as the request.
"""

from collections.abc import Callable, Mapping

from tidelog.log.checkpoints import write_offset_checkpoint
from tidelog.log.environment import Report
from tidelog.ports.disk import Disk
from tidelog.ports.executor import Completion, Executor
from tidelog.records.topic_partition import TopicPartition

OnWritten = Callable[[BaseException | None], None]


class CheckpointWriter:
    __slots__ = ("_disk", "_executor", "_in_flight", "_path", "_report", "_take", "_waiting", "_wanted", "written")

    def __init__(
        self, disk: Disk, executor: Executor, report: Report, path: str, take: Callable[[], Mapping[TopicPartition, int]]
    ) -> None:
        """``take`` gives the offsets to write, as they are now."""
        self._disk = disk
        self._executor = executor
        self._report = report
        self._path = path
        self._take = take
        self._in_flight = False
        self._wanted = False
        self._waiting: list[OnWritten] = []
        # What the file on the disk is known to hold.
        self.written: Mapping[TopicPartition, int] = {}

    @property
    def is_idle(self) -> bool:
        return not self._in_flight and not self._wanted

    def request(self, on_written: OnWritten | None = None) -> None:
        self._wanted = True
        if on_written is not None:
            self._waiting.append(on_written)
        if not self._in_flight:
            self._start()

    def write_now(self) -> None:
        """For starting and stopping. Blocks until it is durable."""
        offsets = dict(self._take())
        write_offset_checkpoint(self._disk, self._path, offsets)
        self.written = offsets

    def _start(self) -> None:
        offsets = dict(self._take())
        waiting, self._waiting = self._waiting, []
        self._wanted = False
        self._in_flight = True
        disk, path = self._disk, self._path
        self._executor.submit(
            lambda: write_offset_checkpoint(disk, path, offsets), lambda completion: self._finish(offsets, waiting, completion)
        )

    def _finish(self, offsets: Mapping[TopicPartition, int], waiting: list[OnWritten], completion: Completion) -> None:
        self._in_flight = False
        if completion.error is None:
            self.written = offsets
        else:
            self._report("checkpoint_not_written", {"path": self._path, "error": str(completion.error)})
        for on_written in waiting:
            on_written(completion.error)
        if self._wanted and not self._in_flight:
            self._start()
