"""``Consumer`` for asyncio: nothing here blocks the event loop.

It wraps a blocking consumer, which it calls in two threads: one polls, the other does everything else. A poll that is cancelled
continues in its thread for a moment; its messages are put back, come next again, and count as not handed out.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from tidelog.client.commits import COMMIT_TIMEOUT_SECONDS
from tidelog.client.consumer import MAX_RECORDS, Consumer
from tidelog.client.errors import Closed, InvalidArgument
from tidelog.client.message import Message, Messages
from tidelog.client.topic_partition import TopicPartition

# How long a poll in its thread may outlive one that was cancelled, and so how long close() waits for it.
_POLL_SECONDS = 0.25
_CALLBACKS = ("on_assigned", "on_revoked", "on_lost")

T = TypeVar("T")


class AsyncConsumer:
    """Has the arguments and the promises of ``Consumer``; what blocks there is awaited here.

    It connects with its first call, or at ``async with``. ``on_assigned``, ``on_revoked`` and ``on_lost`` are plain functions,
    called in the polling thread while the group waits; they may use ``blocking``, the wrapped Consumer, and
    ``loop.call_soon_threadsafe``.
    """

    def __init__(self, bootstrap: str | Sequence[str], **arguments: Any) -> None:
        for name in _CALLBACKS:
            if inspect.iscoroutinefunction(arguments.get(name)):
                # In the event loop it could not use the consumer, whose poll waits for it.
                raise InvalidArgument(
                    f"{name} must be a plain function: it is called in the polling thread while the group waits"
                )
        self._bootstrap = bootstrap
        self._arguments = arguments
        self._consumer: Consumer | None = None
        self._is_closed = False
        self._poller = ThreadPoolExecutor(1, "tidelog-async-poll")
        self._helper = ThreadPoolExecutor(1, "tidelog-async-consumer")
        self._polling = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._abandoned: Future[Messages] | None = None
        self._rest: deque[Message] = deque()
        self._rest_generation = 0

    @property
    def blocking(self) -> Consumer:
        """The wrapped consumer; Closed before it is open and after it is closed."""
        if self._consumer is None or self._is_closed:
            raise Closed("the consumer is not open")
        return self._consumer

    # -- reading -------------------------------------------------------------------------------------------------------------

    async def poll(self, max_records: int = MAX_RECORDS, timeout: float = 1.0) -> Messages:
        """See ``Consumer.poll``. A poll that is cancelled loses no message."""
        consumer = await self._opened()
        async with self._polling:
            await self._finish_abandoned_poll()
            self._give_back_rest(consumer)
            deadline = monotonic() + timeout
            while True:
                wait = min(_POLL_SECONDS, max(0.0, deadline - monotonic()))
                messages = await self._poll_once(consumer, max_records, wait)
                if messages or monotonic() >= deadline:
                    return messages

    def __aiter__(self) -> Self:
        """Messages one by one, without end. A ``commit()`` in the loop covers those that it has seen."""
        return self

    async def __anext__(self) -> Message:
        consumer = await self._opened()
        while True:
            if self._rest and self._rest_generation == consumer.generation:
                return self._rest.popleft()
            batch = await self.poll()
            self._rest, self._rest_generation = deque(batch), consumer.generation

    async def commit(
        self, what: Any = None, *, asynchronous: bool = False, timeout: float = COMMIT_TIMEOUT_SECONDS
    ) -> dict[TopicPartition, int]:
        """See ``Consumer.commit``."""
        consumer = await self._opened()
        await self._finish_abandoned_poll()
        if what is None and self._rest and consumer.guarantee == "at-least-once":
            what = await self._call(consumer.positions)
            for message in reversed(self._rest):
                what[TopicPartition(message.topic, message.partition)] = message.offset
        return await self._call(lambda: consumer.commit(what, asynchronous=asynchronous, timeout=timeout))

    async def close(self) -> None:
        """See ``Consumer.close``."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._consumer is not None:
            await self._call(self._consumer.close)
        self._poller.shutdown(wait=False)
        self._helper.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # -- position, as in Consumer --------------------------------------------------------------------------------------------

    async def seek(
        self, topic: str, partition: int | None = None, *, offset: int | None = None, timestamp: int | datetime | None = None
    ) -> None:
        """See ``Consumer.seek``."""
        await self._call_between_polls(lambda consumer: consumer.seek(topic, partition, offset=offset, timestamp=timestamp))

    async def seek_to_beginning(self, topic: str, partition: int | None = None) -> None:
        """See ``Consumer.seek_to_beginning``."""
        await self._call_between_polls(lambda consumer: consumer.seek_to_beginning(topic, partition))

    async def seek_to_end(self, topic: str, partition: int | None = None) -> None:
        """See ``Consumer.seek_to_end``."""
        await self._call_between_polls(lambda consumer: consumer.seek_to_end(topic, partition))

    async def rewind(self) -> None:
        """See ``Consumer.rewind``."""
        await self._call_between_polls(lambda consumer: consumer.rewind())

    async def transaction_offsets(self) -> tuple[list[Any], Any]:
        """See ``Consumer.transaction_offsets``; what iteration has not handed out yet is put back first."""
        return await self._call_between_polls(lambda consumer: consumer.transaction_offsets())

    async def pause(self, partitions: Sequence[tuple[str, int]] | None = None) -> None:
        """See ``Consumer.pause``."""
        await self._call_between_polls(lambda consumer: consumer.pause(partitions))

    async def resume(self, partitions: Sequence[tuple[str, int]] | None = None) -> None:
        """See ``Consumer.resume``."""
        await self._call_between_polls(lambda consumer: consumer.resume(partitions))

    async def assign(self, partitions: Sequence[tuple[str, int] | tuple[str, int, int]]) -> None:
        """See ``Consumer.assign``."""
        await self._call_between_polls(lambda consumer: consumer.assign(partitions))

    async def assignment(self) -> list[TopicPartition]:
        """See ``Consumer.assignment``."""
        return await self._call_consumer(lambda consumer: consumer.assignment())

    async def positions(self) -> dict[TopicPartition, int]:
        """See ``Consumer.positions``."""
        await self._finish_abandoned_poll()
        return await self._call_consumer(lambda consumer: consumer.positions())

    async def committed(self) -> dict[TopicPartition, int]:
        """See ``Consumer.committed``."""
        return await self._call_consumer(lambda consumer: consumer.committed())

    async def lag(self) -> dict[TopicPartition, int]:
        """See ``Consumer.lag``."""
        return await self._call_consumer(lambda consumer: consumer.lag())

    # -- details -------------------------------------------------------------------------------------------------------------

    async def _opened(self) -> Consumer:
        if self._is_closed:
            raise Closed("the consumer is closed")
        if self._consumer is None:
            async with self._opening:
                if self._consumer is None:
                    self._consumer = await self._call(lambda: Consumer(self._bootstrap, **self._arguments))
        return self._consumer

    async def _poll_once(self, consumer: Consumer, max_records: int, wait: float) -> Messages:
        future = self._poller.submit(consumer.poll, max_records, wait)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            self._abandoned = future
            future.add_done_callback(lambda done: _put_back(consumer, done))
            raise

    async def _finish_abandoned_poll(self) -> None:
        """Wait until the messages of a cancelled poll are put back."""
        while self._abandoned is not None:
            await asyncio.wait([asyncio.wrap_future(self._abandoned)])
            self._abandoned = None

    def _give_back_rest(self, consumer: Consumer) -> None:
        if self._rest:
            rest, self._rest = self._rest, deque()
            consumer.put_back(rest)

    async def _call_between_polls(self, call: Callable[[Consumer], T]) -> T:
        consumer = await self._opened()
        await self._finish_abandoned_poll()
        async with self._polling:
            self._give_back_rest(consumer)
            return await self._call(lambda: call(consumer))

    async def _call_consumer(self, call: Callable[[Consumer], T]) -> T:
        consumer = await self._opened()
        return await self._call(lambda: call(consumer))

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._helper, call)


def _put_back(consumer: Consumer, done: "Future[Messages]") -> None:
    if not done.cancelled() and done.exception() is None and done.result():
        try:
            consumer.put_back(done.result())
        except Closed:
            # They are not committed, so the next owner of their partitions reads them.
            return
