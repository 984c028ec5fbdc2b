"""Takes durable marks to the journal within a second, one flush at a time.

The loop records marks as commits end; the executor writes them. A flush that fails is tried once more with a file written anew
(the old one's pages prove nothing after a failed sync); a second failure says that the disk is gone, and the directory's owner
is told.
"""

from collections.abc import Callable

from tidelog.log.durable_marks import DurableMarks, JournalWrite
from tidelog.log.environment import NO_ROOM, Report
from tidelog.log.partition_log import PartitionLog
from tidelog.ports.clock import Clock
from tidelog.ports.executor import Completion, Executor

# Marks may be one second late in all: half of it to wait, half for the disk.
FLUSH_MS = 500
FAILURES_MAX = 2

OnFlushed = Callable[[BaseException | None], None]


class MarkFlusher:
    __slots__ = ("_clock", "_executor", "_failures", "_in_flight", "_marks", "_on_broken", "_report", "_since_ms", "_waiting")

    def __init__(
        self, marks: DurableMarks, clock: Clock, executor: Executor, report: Report, on_broken: Callable[[BaseException], None]
    ) -> None:
        self._marks = marks
        self._clock = clock
        self._executor = executor
        self._report = report
        self._on_broken = on_broken
        self._in_flight = False
        self._failures = 0
        self._since_ms: int | None = None
        self._waiting: list[OnFlushed] = []

    def record(self, log: PartitionLog) -> None:
        self._marks.record(log.name, log.topic_id, log.durable.offset)
        self._note_pending()

    def lower(self, log: PartitionLog, offset: int) -> None:
        """Before a truncation: flush it, and truncate only when that is done."""
        self._marks.record(log.name, log.topic_id, offset)
        self._note_pending()

    def forget(self, name: str) -> None:
        self._marks.forget(name)
        self._note_pending()

    def forget_all_but(self, known: set[str]) -> None:
        """A crash may keep that a partition was deleted and lose that its mark was forgotten."""
        for name in self._marks.names():
            if name not in known:
                self.forget(name)

    @property
    def is_idle(self) -> bool:
        """Also when the disk was given up: nobody must wait for marks that will never be written."""
        return not self._in_flight and (not self._marks.has_pending or self._failures >= FAILURES_MAX)

    def tick(self) -> None:
        if self._since_ms is not None and self._clock.monotonic_ms() - self._since_ms >= FLUSH_MS:
            self.flush()

    def flush(self, on_flushed: OnFlushed | None = None) -> None:
        """Write what was recorded before this call. ``on_flushed`` hears when it is durable, or of the error."""
        if on_flushed is not None:
            self._waiting.append(on_flushed)
        if not self._in_flight:
            self._start()

    def flush_now(self) -> None:
        """For starting and stopping. Blocks until everything recorded is durable."""
        self._since_ms = None
        self._marks.flush()

    def _note_pending(self) -> None:
        if self._since_ms is None:
            self._since_ms = self._clock.monotonic_ms()

    def _start(self) -> None:
        write = self._marks.begin_flush()
        waiting, self._waiting = self._waiting, []
        self._since_ms = None
        if write is None:
            for on_flushed in waiting:
                on_flushed(None)
            return
        self._in_flight = True
        self._executor.submit(write.run, lambda completion: self._finish(write, waiting, completion))

    def _finish(self, write: JournalWrite, waiting: list[OnFlushed], completion: Completion) -> None:
        self._in_flight = False
        error = completion.error
        self._marks.finish_flush(write, error)
        if error is not None:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                # Nothing can be appended either; the marks stay pending and the next tick tries again.
                self._note_pending()
                for on_flushed in waiting:
                    on_flushed(error)
                return
            self._failures += 1
            self._report("durable_marks_not_written", {"error": str(error), "failures": self._failures})
            if self._failures >= FAILURES_MAX:
                self._on_broken(error)
                queued, self._waiting = self._waiting, []
                for on_flushed in waiting + queued:
                    on_flushed(error)
                return
            self._waiting = waiting + self._waiting
            self._start()
            return
        self._failures = 0
        for on_flushed in waiting:
            on_flushed(None)
        if self._waiting:
            self._start()
