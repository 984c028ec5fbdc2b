"""Validates the batches that are too large to be validated while their request is handled.

Each request is one job with one or more batches, validated one after the other. Codecs run in a helper thread. Walking records
is Python, which a thread cannot take off the loop, so it is done in slices of a few milliseconds: one slice in each turn of the
loop, however many jobs there are.

At most ``OPEN_JOBS_MAX`` jobs are under way at a time, and the others wait in the order of their arrival. This bounds the memory
that decompressed batches take: only open jobs have any.

A job is cancelled with the connection of its client. Nothing was promised for its records, and nothing is written.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from tidelog.broker.timers import Timer, Timers
from tidelog.log.append_check import BatchValidation, WorkBudget
from tidelog.log.time_budget import TimeBudget
from tidelog.ports.clock import Clock
from tidelog.ports.executor import Completion, Executor

# One decompresses while the other is walked.
OPEN_JOBS_MAX = 2
# The records between two looks at the clock (half a millisecond of Python), and the looks in a slice.
STEP_RECORDS = 1000
STEPS_PER_SLICE = 10


class ValidationJob:
    """The batches of one request. ``validated`` is called once, unless the job was cancelled."""

    __slots__ = ("_batches", "_on_error", "_queue", "_validated", "is_cancelled", "is_in_thread")

    def __init__(
        self,
        queue: "ValidationQueue",
        batches: Sequence[BatchValidation],
        on_error: Callable[[BatchValidation, Exception], None],
        validated: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._batches = deque(batches)
        # Both are dropped when the job is over, because whoever submitted it refers to it too.
        self._on_error: Callable[[BatchValidation, Exception], None] | None = on_error
        self._validated: Callable[[], None] | None = validated
        self.is_cancelled = False
        self.is_in_thread = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self._batches.clear()
        self._on_error = self._validated = None
        self._queue.cancelled(self)

    def step(self, executor: Executor) -> bool:
        """Do some work, or hand it to a thread; returns whether the job is complete."""
        batch = self._batches[0]
        work = batch.work
        if work is not None:
            self.is_in_thread = True
            executor.submit(work, partial(self._finish_work, batch))
            return False
        self._attempt(batch, partial(batch.advance, WorkBudget(STEP_RECORDS, 0)))
        return not self._batches

    def _finish_work(self, batch: BatchValidation, completion: Completion) -> None:
        self.is_in_thread = False
        if not self.is_cancelled:
            self._attempt(batch, partial(batch.finish_work, completion.result, completion.error))
        self._queue.returned(self, is_complete=not self._batches)

    def _attempt(self, batch: BatchValidation, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._batches.popleft()
            if self._on_error is not None:
                self._on_error(batch, error)
        else:
            if batch.is_complete:
                self._batches.popleft()

    def complete(self) -> None:
        validated, self._validated, self._on_error = self._validated, None, None
        if validated is not None:
            validated()


class ValidationQueue:
    __slots__ = ("_clock", "_executor", "_open", "_slice", "_timers", "_waiting")

    def __init__(self, executor: Executor, timers: Timers, clock: Clock) -> None:
        self._executor = executor
        self._timers = timers
        self._clock = clock
        self._waiting: deque[ValidationJob] = deque()
        # Jobs take turns in this order.
        self._open: deque[ValidationJob] = deque()
        self._slice: Timer | None = None

    @property
    def job_count(self) -> int:
        return len(self._open) + len(self._waiting)

    def submit(
        self,
        batches: Sequence[BatchValidation],
        on_error: Callable[[BatchValidation, Exception], None],
        validated: Callable[[], None],
    ) -> ValidationJob:
        """Validate ``batches``, whose bytes are kept. ``on_error`` gets each that is refused; ``validated`` is called after the
        last one, never from within this call."""
        job = ValidationJob(self, batches, on_error, validated)
        self._waiting.append(job)
        self._open_some()
        return job

    def cancelled(self, job: ValidationJob) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
        elif not job.is_in_thread:  # A thread holds the memory until it ends, so the job stays open until then.
            self._close(job)

    def returned(self, job: ValidationJob, *, is_complete: bool) -> None:
        """A thread has ended its work for the job."""
        if is_complete:
            self._close(job)
            job.complete()
        else:
            self._schedule_slice()

    def _close(self, job: ValidationJob) -> None:
        if job in self._open:
            self._open.remove(job)
            self._open_some()

    def _open_some(self) -> None:
        while self._waiting and len(self._open) < OPEN_JOBS_MAX:
            self._open.append(self._waiting.popleft())
        self._schedule_slice()

    def _schedule_slice(self) -> None:
        if self._slice is None and any(not job.is_in_thread for job in self._open):
            self._slice = self._timers.schedule(0, self._run_slice)

    def _run_slice(self) -> None:
        self._slice = None
        budget = TimeBudget(self._clock, STEPS_PER_SLICE)
        while not budget.is_over and (job := self._next_job()) is not None:
            budget.spend()
            if job.step(self._executor):
                self._close(job)
                job.complete()
        self._schedule_slice()

    def _next_job(self) -> ValidationJob | None:
        for _ in range(len(self._open)):
            job = self._open[0]
            self._open.rotate(-1)
            if not job.is_in_thread:
                return job
        return None
