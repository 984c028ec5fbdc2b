"""``AsyncProducer``: the asyncio twin of ``Producer``. Nothing here blocks the event loop.

It wraps the blocking producer with its buffer, levels of acks and polling thread, and awaits what that one would wait for: room
in the buffer, a partition count, a flush, the calls of a transaction. Reports arrive in the polling thread, which hands all of
them to the event loop with one wake-up, because a wake-up costs more than a report.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Any, NoReturn, Self

from tidelog.client.asyncio_consumer import AsyncConsumer
from tidelog.client.errors import BufferFull, Closed, TidelogError
from tidelog.client.futures import Delivered, Delivery
from tidelog.client.producer import CLOSE_TIMEOUT_SECONDS, Headers, Producer, ProducerMetrics
from tidelog.client.producer_handle import ProducerHandle
from tidelog.client.transaction import Transaction

_ROOM_SECONDS = 0.005


class AsyncDelivery(Delivery):
    """The future that ``await producer.send(...)`` returns; ``await`` it to learn where the message was written."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Delivered]:
        """Raises the TidelogError of a message that failed. Cancelling the wait does not recall the message."""
        if not self.done():
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            reports = _reports_of(loop)
            self.add_done_callback(lambda _: reports.add(future))
            self._hurry()
            yield from future
        return self.result()

    def _hurry(self) -> None:
        poller = self._state
        if poller is not None and not isinstance(poller, TidelogError):
            poller.hurry()


class _Reports:
    """Carries completed futures from the polling thread to the event loop."""

    __slots__ = ("_done", "_is_scheduled", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    def add(self, future: "asyncio.Future[None]") -> None:
        self._done.append(future)
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                # The loop is closed, so nobody waits any more.
                self._done.clear()

    def _deliver(self) -> None:
        # Clear the flag first: a future that is added from here on schedules a wake-up of its own.
        self._is_scheduled = False
        while self._done:
            future = self._done.popleft()
            if not future.done():
                future.set_result(None)


_reports: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Reports]" = weakref.WeakKeyDictionary()


def _reports_of(loop: asyncio.AbstractEventLoop) -> _Reports:
    found = _reports.get(loop)
    if found is None:
        found = _reports[loop] = _Reports(loop)
    return found


class _WouldBlock(Exception):
    """The buffer is full; ``attempt`` sends this message again."""

    def __init__(self, handle: ProducerHandle, delivery: Delivery, attempt: Callable[[], None], topic: str) -> None:
        super().__init__(topic)
        self.handle = handle
        self.delivery = delivery
        self.attempt = attempt


class _NonBlockingProducer(Producer):
    """Raises ``_WouldBlock`` where ``Producer`` waits, so that the caller can await instead."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._delivery = AsyncDelivery

    def _wait_for_room(self, handle: ProducerHandle, delivery: Delivery, attempt: Callable[[], None], topic: str) -> NoReturn:
        raise _WouldBlock(handle, delivery, attempt, topic)

    @property
    def max_block_ms(self) -> float:
        return self._max_block_ms

    def needs_partition_count(self, topic: str) -> bool:
        return self._partitioner is not None and self._counts.known(topic) is None

    def ask_partition_count(self, topic: str) -> None:
        self._counts.ask(self._handle.raw, self._handle.addresses, topic, self._max_block_ms / 1000)


class AsyncProducer:
    """The asyncio twin of ``Producer``, with the same arguments. Open it with ``async with``, or with ``await producer.start()``.

    async with AsyncProducer("127.0.0.1:9092") as producer:
        delivery = await producer.send("orders", payload, key="customer-42")   # waits only for room in the buffer
        print((await delivery).offset)                                          # waits for the acknowledgement
    """

    def __init__(self, bootstrap: str | Sequence[str], **arguments: Any) -> None:
        self._bootstrap = bootstrap
        self._arguments = arguments
        self._producer: _NonBlockingProducer | None = None

    async def start(self) -> None:
        """Wait for a broker: BrokerUnavailable names the addresses. This also raises InvalidArgument or TypeError for the
        arguments."""
        self._producer = await asyncio.to_thread(_NonBlockingProducer, self._bootstrap, **self._arguments)

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        acks: str | int | None = None,
    ) -> AsyncDelivery:
        """Like ``Producer.send``. While the buffer is full this waits, ``max_block_ms`` at most, and then raises BufferFull."""
        producer = self._opened
        if partition is None and producer.needs_partition_count(topic):
            await asyncio.to_thread(producer.ask_partition_count, topic)
        try:
            delivery = producer.send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp, acks=acks)
        except _WouldBlock as full:
            delivery = await self._wait_for_room(full, producer.max_block_ms, topic)
        assert isinstance(delivery, AsyncDelivery)
        return delivery

    async def _wait_for_room(self, full: _WouldBlock, max_block_ms: float, topic: str) -> Delivery:
        deadline = monotonic() + max_block_ms / 1000
        while True:
            await asyncio.sleep(max(0.0, min(_ROOM_SECONDS, deadline - monotonic())))
            try:
                # One attempt, without waiting.
                full.handle.wait_for_room(full.attempt, 0.0, topic)
            except BufferFull:
                if monotonic() >= deadline:
                    raise
            else:
                full.handle.next_number()
                return full.delivery

    def transaction(self) -> "AsyncTransaction":
        """``async with producer.transaction() as tx: await tx.send(...); await tx.send_offsets(consumer)``."""
        return AsyncTransaction(self, self._opened.transaction())

    async def flush(self, timeout: float | None = None) -> None:
        """See ``Producer.flush``."""
        await asyncio.to_thread(self._opened.flush, timeout)

    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """See ``Producer.close``."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close, timeout)

    async def partitions(self, topic: str) -> int:
        """See ``Producer.partitions``."""
        return await asyncio.to_thread(self._opened.partitions, topic)

    def metrics(self) -> ProducerMetrics:
        """See ``Producer.metrics``."""
        return self._opened.metrics()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._producer is not None:
            await asyncio.to_thread(self._producer.__exit__, kind, error, trace)

    @property
    def _opened(self) -> _NonBlockingProducer:
        if self._producer is None:
            raise Closed("the producer is not open: async with AsyncProducer(...) as producer: ...")
        return self._producer


class AsyncTransaction:
    """The asyncio twin of ``Transaction``."""

    def __init__(self, producer: AsyncProducer, transaction: Transaction) -> None:
        self._producer = producer
        self._transaction = transaction

    async def send(self, topic: str, value: Any = None, **arguments: Any) -> AsyncDelivery:
        """See ``Transaction.send``."""
        self._transaction.check_active()
        return await self._producer.send(topic, value, **arguments)

    async def send_offsets(self, consumer: Any, offsets: Sequence[Any] | None = None) -> None:
        """See ``Transaction.send_offsets``; ``consumer`` may also be an AsyncConsumer."""
        if isinstance(consumer, AsyncConsumer):
            own, metadata = await consumer.transaction_offsets()
            await asyncio.to_thread(self._transaction.send_positions, own if offsets is None else offsets, metadata)
        else:
            await asyncio.to_thread(self._transaction.send_offsets, consumer, offsets)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._transaction.begin)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A cancelled task must still end its transaction, or the next one could not begin.
        await asyncio.shield(asyncio.to_thread(self._transaction.__exit__, kind, error, trace))
