"""The threads and asyncio tasks that run bundles of messages.

The asyncio loop is the caller's (``run_async``) or one in a thread of its own (``LoopThread``).
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from time import monotonic_ns

from tidelog.metrics.histogram import Histogram
from tidelog.worker.execution import Bundle, HandlerExecution
from tidelog.worker.handler import AttemptOutcome
from tidelog.worker.partitions import WorkItem

_STOP = False
_GO = True
JOIN_SECONDS_MAX = 5.0


class ThreadSlots:
    """Threads for a synchronous handler, started as they are wanted, up to ``concurrency``.

    A thread with nothing to do waits for a ticket. It takes bundles for as long as there are any. The threads are daemons: a
    worker that was told to stop now does not wait for a handler that does not return.
    """

    def __init__(
        self, execution: HandlerExecution, attempt: Callable[[WorkItem], AttemptOutcome], concurrency: int, name: str
    ) -> None:
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
        """Close. Each thread ends when its current message ends."""
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
        attempt, next_item = self._attempt, self._execution.next
        # This is ``Histogram.observe`` without a call for each message.
        counts, total_ns = histogram.counts, 0
        begun_ns = bundle.begun_ns
        item = bundle.current
        try:
            while item is not None:
                outcome = attempt(item)
                now_ns = monotonic_ns()
                taken_ns = now_ns - begun_ns
                counts[taken_ns.bit_length()] += 1
                total_ns += taken_ns
                begun_ns = now_ns
                item = next_item(bundle, item, outcome, now_ns)
        except BaseException as error:
            bundle.crash(error)
        finally:
            histogram.add_to_sum(total_ns)


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
        """Cancel what still runs on it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(JOIN_SECONDS_MAX)


class AsyncioSlots:
    """Tasks for an asynchronous handler, up to ``concurrency`` at a time. A task takes bundles for as long as there are any and
    then ends; new ones are started as they are wanted."""

    def __init__(
        self,
        execution: HandlerExecution,
        attempt: Callable[[WorkItem], Awaitable[AttemptOutcome]],
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
        """Cancel handlers that are still running."""
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
        item = bundle.current
        try:
            while item is not None:
                outcome = await attempt(item)
                now_ns = monotonic_ns()
                observe(now_ns - begun_ns)
                begun_ns = now_ns
                item = execution.next(bundle, item, outcome, now_ns)
        except asyncio.CancelledError as error:
            if self._is_closed:
                raise
            bundle.crash(error)
        except BaseException as error:
            bundle.crash(error)
