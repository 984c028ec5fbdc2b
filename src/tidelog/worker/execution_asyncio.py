"""Slots for asynchronous handlers: tasks of one asyncio loop, up to ``concurrency`` at a time.

The loop is the caller's (``run_async``) or one in a thread of its own (``LoopThread``). A task takes bundles for as long as there
are any and then ends; new ones are started as they are wanted.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from time import monotonic_ns

from tidelog.metrics.histogram import Histogram
from tidelog.worker.attempt import Outcome
from tidelog.worker.execution import Bundle, Execution
from tidelog.worker.job import Job

JOIN_SECONDS_MAX = 5.0


class LoopThread:
    """An asyncio loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def close(self) -> None:
        """What still runs on it is cancelled."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(JOIN_SECONDS_MAX)


class AsyncioSlots:
    def __init__(
        self,
        execution: Execution,
        attempt: Callable[[Job], Awaitable[Outcome]],
        concurrency: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._execution = execution
        self._attempt = attempt
        self._concurrency = concurrency
        self._loop = loop
        self._active = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._histogram = Histogram()
        execution.histograms.append(self._histogram)

    def want(self, count: int) -> None:
        more = min(count, self._concurrency - self._active)
        if more > 0 and not self._is_closed:
            self._active += more
            self._loop.call_soon_threadsafe(self._start, more)

    def close(self) -> None:
        """Handlers that are still running are cancelled."""
        self._is_closed = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _start(self, count: int) -> None:
        for _ in range(count):
            task = self._loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def became_idle(self) -> None:
        self._active -= 1

    async def _work(self) -> None:
        turn = self._execution.turn
        bundle = turn(None, monotonic_ns())
        while bundle is not None:
            await self._run(bundle)
            bundle = turn(bundle, monotonic_ns())

    async def _run(self, bundle: Bundle) -> None:
        execution, attempt, observe = self._execution, self._attempt, self._histogram.observe
        begun_ns = bundle.begun_ns
        job = bundle.current
        try:
            while job is not None:
                outcome = await attempt(job)
                now_ns = monotonic_ns()
                observe(now_ns - begun_ns)
                begun_ns = now_ns
                job = execution.next(bundle, job, outcome, now_ns)
        except asyncio.CancelledError as error:
            if self._is_closed:
                raise
            bundle.report.fatal = error
        except BaseException as error:
            bundle.report.fatal = error
