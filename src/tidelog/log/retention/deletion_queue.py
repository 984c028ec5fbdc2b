"""Segments and directories that have left their log, waiting to be removed.

They stay for ``file.delete.delay.ms`` under their ``.deleted`` or ``-delete`` name, so that a reader that is about to open one
finds it. Removal runs on the executor, because freeing a large file takes the file system milliseconds. A start removes what a
crash left.
"""

from collections import deque
from collections.abc import Callable

from tidelog.log import names
from tidelog.log.environment import Report
from tidelog.log.segments.segment import LogSegment
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.ports.executor import Completion, Executor

# The maximum number of removals in one job, so that a stop need not wait long for it.
REMOVALS_PER_JOB_MAX = 64


class DeletionQueue:
    __slots__ = ("_clock", "_disk", "_due", "_executor", "_in_flight", "_report")

    def __init__(self, disk: Disk, clock: Clock, executor: Executor, report: Report) -> None:
        self._disk = disk
        self._clock = clock
        self._executor = executor
        self._report = report
        self._due: deque[tuple[int, Callable[[], None]]] = deque()
        self._in_flight = False

    def __len__(self) -> int:
        return len(self._due)

    @property
    def is_idle(self) -> bool:
        return not self._in_flight

    def add_segments(self, segments: list[LogSegment], delay_ms: int) -> None:
        due_ms = self._clock.monotonic_ms() + delay_ms
        self._due.extend((due_ms, segment.remove) for segment in segments)

    def add_directory(self, path: str, delay_ms: int) -> None:
        disk = self._disk
        self._due.append((self._clock.monotonic_ms() + delay_ms, lambda: remove_tree(disk, path)))

    def tick(self) -> None:
        """Start removing what is due. Topics have different delays, so the whole queue is searched, not only its head."""
        if self._in_flight or not self._due:
            return
        now_ms = self._clock.monotonic_ms()
        due = [entry for entry in self._due if entry[0] <= now_ms][:REMOVALS_PER_JOB_MAX]
        if not due:
            return
        for entry in due:
            self._due.remove(entry)
        self._in_flight = True
        self._executor.submit(lambda: [remove() for _, remove in due], self._finish)

    def _finish(self, completion: Completion) -> None:
        self._in_flight = False
        if completion.error is not None:
            # Nothing depends on it: the next start removes what is left.
            self._report("deletion_failed", {"error": str(completion.error)})


def remove_tree(disk: Disk, path: str) -> None:
    """Remove a partition's directory: files only, one level deep."""
    for name in disk.list_directory(path):
        disk.remove(names.join(path, name))
    disk.remove_directory(path)
