"""``AsyncQueue``: the same promises, and the event loop never waits."""

import asyncio
import threading
from contextlib import suppress

import pytest

from tests.client.queue.working import new_queue
from tests.toolkit_broker import ToolkitBroker
from tidelog.client import asyncio_queue
from tidelog.client.asyncio_queue import AsyncJob, AsyncQueue
from tidelog.client.errors import AlreadySettled, BrokerUnavailable, Closed, InvalidArgument, UnknownQueue


def test_jobs_are_sent_received_and_settled(kafka: ToolkitBroker) -> None:
    name = new_queue(kafka.bootstrap)

    async def run() -> None:
        async with AsyncQueue(kafka.bootstrap, name) as queue:
            sent = await asyncio.gather(*[queue.send(f"job {number}", key="k") for number in range(20)])
            assert sorted(each.offset or 0 for each in sent) == list(range(20))
            jobs: list[AsyncJob] = []
            while len(jobs) < 20:
                jobs += await queue.receive(20 - len(jobs), wait=10)
            assert {job.text() for job in jobs} == {f"job {number}" for number in range(20)}
            # While a receive waits, others settle.
            waiting = asyncio.create_task(queue.receive(wait=30))
            await asyncio.gather(*[job.ack() for job in jobs[2:]])
            with pytest.raises(AlreadySettled):
                await jobs[2].nack()
            await jobs[1].reject()
            await jobs[0].extend(1)
            await jobs[0].nack()
            (again,) = await waiting
            assert (again.offset, again.deliveries) == (jobs[0].offset, 2)
            await queue.ack([again])
            with pytest.raises(InvalidArgument, match="wait=-1"):
                await queue.receive(wait=-1)
        with pytest.raises(Closed):
            await queue.receive()

    asyncio.run(run())


def test_a_receive_that_is_cancelled_loses_no_job(kafka: ToolkitBroker) -> None:
    name = new_queue(kafka.bootstrap)

    async def run() -> None:
        async with AsyncQueue(kafka.bootstrap, name) as queue:
            await queue.receive()
            for number in range(5):
                task = asyncio.create_task(queue.receive(wait=30))
                await asyncio.sleep(0)
                sending = asyncio.create_task(queue.send(f"{number}"))
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                await sending
                (job,) = await queue.receive(wait=30)
                assert (job.text(), job.deliveries) == (f"{number}", 1)
                await job.ack()

    asyncio.run(run())


def test_the_error_of_a_receive_that_was_cancelled_is_not_raised_by_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    started, may_end = threading.Event(), threading.Event()

    class FailingOnce:
        """A queue whose first receive fails after it was cancelled."""

        def __init__(self, *_: object) -> None:
            self.given_back: list[object] = []

        def receive(self, *_: object) -> list[object]:
            if may_end.is_set():
                return []
            started.set()
            may_end.wait()
            raise BrokerUnavailable("gone for a moment")

        def give_back(self, jobs: list[object]) -> None:
            self.given_back += jobs

        def close(self) -> None:
            pass

    monkeypatch.setattr(asyncio_queue, "Queue", FailingOnce)

    async def run() -> None:
        async with AsyncQueue("127.0.0.1:1", "jobs") as queue:
            task = asyncio.create_task(queue.receive())
            await asyncio.to_thread(started.wait)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            may_end.set()
            assert await queue.receive() == []

    asyncio.run(run())


def test_a_queue_that_is_not_there_is_told(kafka: ToolkitBroker) -> None:
    async def run() -> None:
        with pytest.raises(UnknownQueue):
            async with AsyncQueue(kafka.bootstrap, "nowhere"):
                pass

    asyncio.run(run())
