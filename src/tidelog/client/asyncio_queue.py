"""``AsyncQueue``: the asyncio twin of ``Queue``. Nothing here blocks the event loop.

It wraps a blocking queue: one thread receives, others settle, so that a job is acknowledged while a receive waits. A receive that
is cancelled continues in its thread for a moment; what it gets is put back, and comes next again.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from tidelog.client.errors import Closed
from tidelog.client.futures import Delivered, Delivery
from tidelog.client.producer import Headers
from tidelog.client.queue.job import Job
from tidelog.client.queue.queue import Queue

# How long a receive in its thread may outlive one that was cancelled.
_RECEIVE_SECONDS = 0.25
# Settlements wait for the broker's disk, and those that wait at the same time share a request.
SETTLING_THREADS = 16

T = TypeVar("T")


class AsyncJob:
    """The asyncio twin of ``Job``: the same fields, and the calls are awaited. ``blocking`` is the job itself."""

    __slots__ = ("_queue", "blocking")

    def __init__(self, queue: "AsyncQueue", job: Job) -> None:
        self._queue = queue
        self.blocking = job

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blocking, name)

    async def ack(self) -> None:
        """See ``Job.ack``."""
        await self._queue.ack((self,))

    async def nack(self, delay: float = 0.0) -> None:
        """See ``Job.nack``."""
        await self._queue.nack((self,), delay)

    async def reject(self) -> None:
        """See ``Job.reject``."""
        await self._queue.reject((self,))

    async def extend(self, seconds: float) -> None:
        """See ``Job.extend``."""
        await self._queue.extend((self,), seconds)

    def __repr__(self) -> str:
        return f"<AsyncJob {self.blocking}>"


class AsyncQueue:
    """Has the arguments and the promises of ``Queue``; what blocks there is awaited here. It connects with its first call, or at
    ``async with``."""

    def __init__(self, bootstrap: str | Sequence[str], name: str, **arguments: Any) -> None:
        self._bootstrap = bootstrap
        self._name = name
        self._arguments = arguments
        self._queue: Queue | None = None
        self._is_closed = False
        self._opening = asyncio.Lock()
        self._receiving = asyncio.Lock()
        self._abandoned: Future[list[Job]] | None = None
        self._receiver = ThreadPoolExecutor(1, "tidelog-async-receive")
        self._helpers = ThreadPoolExecutor(SETTLING_THREADS, "tidelog-async-queue")

    @property
    def blocking(self) -> Queue:
        """The wrapped queue; Closed before it is open and after it is closed."""
        if self._queue is None or self._is_closed:
            raise Closed(f"the queue {self._name} is not open")
        return self._queue

    async def __aenter__(self) -> Self:
        try:
            await self._opened()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def send(
        self,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        delay: float = 0.0,
        at: int | datetime | None = None,
        ttl: float | None = None,
    ) -> Delivered:
        """Send a job; returns when it is acknowledged by all in-sync replicas. Send many at once with ``asyncio.gather``. See
        ``Queue.send`` for the arguments."""
        queue = await self._opened()
        delivery = await self._call(lambda: queue.send(value, key=key, headers=headers, delay=delay, at=at, ttl=ttl))
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        def report(_: Delivery) -> None:
            loop.call_soon_threadsafe(wake)

        delivery.add_done_callback(report)
        await done
        return delivery.result()

    async def receive(self, max_messages: int = 10, wait: float = 0.0) -> list[AsyncJob]:
        """See ``Queue.receive``. A receive that is cancelled loses no job."""
        queue = await self._opened()
        async with self._receiving:
            await self._finish_abandoned(queue)
            deadline = monotonic() + wait
            while True:
                left = deadline - monotonic()
                # A wait that is out of range goes through, to be refused by its name.
                seconds = min(_RECEIVE_SECONDS, max(0.0, left)) if wait >= 0 else wait
                jobs = await self._receive_once(queue, max_messages, seconds)
                if jobs or monotonic() >= deadline:
                    return [AsyncJob(self, job) for job in jobs]

    async def ack(self, jobs: Iterable[AsyncJob]) -> None:
        """See ``Queue.ack``."""
        plain = [job.blocking for job in jobs]
        await self._call(lambda: self.blocking.ack(plain))

    async def reject(self, jobs: Iterable[AsyncJob]) -> None:
        """See ``Queue.reject``."""
        plain = [job.blocking for job in jobs]
        await self._call(lambda: self.blocking.reject(plain))

    async def nack(self, jobs: Iterable[AsyncJob], delay: float = 0.0) -> None:
        """See ``Queue.nack``."""
        plain = [job.blocking for job in jobs]
        await self._call(lambda: self.blocking.nack(plain, delay))

    async def extend(self, jobs: Iterable[AsyncJob], seconds: float) -> None:
        """See ``Queue.extend``."""
        plain = [job.blocking for job in jobs]
        await self._call(lambda: self.blocking.extend(plain, seconds))

    async def close(self) -> None:
        """See ``Queue.close``."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._queue is not None:
            await self._call(self._queue.close)
        self._receiver.shutdown(wait=False)
        self._helpers.shutdown(wait=False)

    async def _opened(self) -> Queue:
        async with self._opening:
            if self._is_closed:
                raise Closed(f"the queue {self._name} is closed")
            if self._queue is None:
                self._queue = await self._call(lambda: Queue(self._bootstrap, self._name, **self._arguments))
            return self._queue

    async def _receive_once(self, queue: Queue, max_messages: int, seconds: float) -> list[Job]:
        running = self._receiver.submit(copy_context().run, queue.receive, max_messages, seconds)
        try:
            return await asyncio.shield(asyncio.wrap_future(running))
        except asyncio.CancelledError:
            self._abandoned = running
            raise

    async def _finish_abandoned(self, queue: Queue) -> None:
        abandoned = self._abandoned
        if abandoned is None:
            return
        try:
            jobs = await asyncio.shield(asyncio.wrap_future(abandoned))
        except Exception:
            # It concerned whoever cancelled. If its reason lasts, the next receive gets an error of its own.
            jobs = []
        self._abandoned = None
        queue.give_back(jobs)

    async def _call(self, function: Callable[[], T]) -> T:
        # The trace of the task is a context variable.
        return await asyncio.get_running_loop().run_in_executor(self._helpers, copy_context().run, function)
