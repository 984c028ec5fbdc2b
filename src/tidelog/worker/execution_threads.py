"""Slots for synchronous handlers: threads, started as they are wanted, up to ``concurrency``.

A thread with nothing to do waits for a ticket; it takes bundles for as long as there are any, without being told. The threads are
daemons: a worker that was told to stop now does not wait for a handler that does not return.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic_ns

from tidelog.metrics.histogram import Histogram
from tidelog.worker.attempt import Outcome
from tidelog.worker.execution import Bundle, Execution
from tidelog.worker.job import Job

_STOP = False
_GO = True


class ThreadSlots:
    def __init__(self, execution: Execution, attempt: Callable[[Job], Outcome], concurrency: int, name: str) -> None:
        self._execution = execution
        self._attempt = attempt
        self._concurrency = concurrency
        self._name = name
        self._tickets: SimpleQueue[bool] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def want(self, count: int) -> None:
        tickets = min(count, self._idle)
        self._idle -= tickets
        for _ in range(tickets):
            self._tickets.put(_GO)
        for _ in range(min(count - tickets, self._concurrency - self._threads)):
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def close(self) -> None:
        """Threads end when what they are at ends."""
        self._is_closed = True
        for _ in range(self._concurrency):
            self._tickets.put(_STOP)

    def became_idle(self) -> None:
        self._idle += 1

    def _work(self) -> None:
        histogram = Histogram()
        self._execution.histograms.append(histogram)
        turn = self._execution.turn
        bundle: Bundle | None = None
        while not self._is_closed:
            bundle = turn(bundle, monotonic_ns())
            if bundle is not None:
                self._run(bundle, histogram)
            elif self._tickets.get() is _STOP:
                return
        if bundle is not None:
            turn(bundle, monotonic_ns())

    def _run(self, bundle: Bundle, histogram: Histogram) -> None:
        attempt, next_job = self._attempt, self._execution.next
        counts = histogram.counts
        begun_ns = bundle.begun_ns
        job = bundle.current
        try:
            while job is not None:
                outcome = attempt(job)
                now_ns = monotonic_ns()
                taken_ns = now_ns - begun_ns
                counts[taken_ns.bit_length()] += 1
                histogram.sum += taken_ns
                begun_ns = now_ns
                job = next_job(bundle, job, outcome, now_ns)
        except BaseException as error:
            bundle.report.fatal = error
