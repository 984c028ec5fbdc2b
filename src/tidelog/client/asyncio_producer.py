"""``Producer`` for asyncio: nothing here makes the event loop wait.

The blocking producer is within, with its buffer, levels of acks and polling thread. What it would wait for is awaited instead:
room in the buffer, a partition count, a flush, the calls of a transaction. Reports arrive in the polling thread and are handed
to the event loop in bundles, one wake-up for as many as there are: a wake-up costs more than a report.
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
    """What ``await producer.send(...)`` returns: ``await`` it for where the message is."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Delivered]:
        """Raises what went wrong, a TidelogError. Cancelling the wait does not take the message back."""
        if not self.done():
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            reports = _reports_of(loop)
            self.add_done_callback(lambda _: reports.add(future))
            self._hurry()
            yield from future
        return self.result()

    def _hurry(self) -> None:
        settler = self._state
        if settler is not None and not isinstance(settler, TidelogError):
            settler.hurry()


class _Reports:
    """Futures that are done, on their way from the polling thread to the event loop."""

    __slots__ = ("_done", "_is_coming", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[asyncio.Future[None]] = deque()
        self._is_coming = False

    def add(self, future: "asyncio.Future[None]") -> None:
        self._done.append(future)
        if not self._is_coming:
            self._is_coming = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                # The loop is closed: nobody waits any more.
                self._done.clear()

    def _deliver(self) -> None:
        # First the flag: what is added from here on makes a wake-up of its own.
        self._is_coming = False
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
    """The buffer is full; ``attempt`` tries this message again."""

    def __init__(self, handle: ProducerHandle, delivery: Delivery, attempt: Callable[[], None], topic: str) -> None:
        super().__init__(topic)
        self.handle = handle
        self.delivery = delivery
        self.attempt = attempt


class _Within(Producer):
    """The producer within: says that it would wait, and lets the caller do that."""

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
    """As ``Producer``, with the same arguments; opened by ``async with``, or by ``await producer.start()``.

    async with AsyncProducer("127.0.0.1:9092") as producer:
        delivery = await producer.send("orders", payload, key="customer-42")   # waits only for room in the buffer
        print((await delivery).offset)                                          # waits for the acknowledgement
    """

    def __init__(self, bootstrap: str | Sequence[str], **arguments: Any) -> None:
        self._bootstrap = bootstrap
        self._arguments = arguments
        self._producer: _Within | None = None

    async def start(self) -> None:
        """Wait for a broker: BrokerUnavailable names the addresses. InvalidArgument and TypeError for the arguments come here."""
        self._producer = await asyncio.to_thread(_Within, self._bootstrap, **self._arguments)

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
        """As ``Producer.send``; waits while the buffer is full, ``max_block_ms`` at most, then BufferFull."""
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
                # One attempt, without a wait.
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
        """As ``Producer.flush``."""
        await asyncio.to_thread(self._opened.flush, timeout)

    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """As ``Producer.close``."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close, timeout)

    async def partitions(self, topic: str) -> int:
        """As ``Producer.partitions``."""
        return await asyncio.to_thread(self._opened.partitions, topic)

    def metrics(self) -> ProducerMetrics:
        """As ``Producer.metrics``."""
        return self._opened.metrics()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._producer is not None:
            await asyncio.to_thread(self._producer.__exit__, kind, error, trace)

    @property
    def _opened(self) -> _Within:
        if self._producer is None:
            raise Closed("the producer is not open: async with AsyncProducer(...) as producer: ...")
        return self._producer


class AsyncTransaction:
    """As ``Transaction``."""

    def __init__(self, producer: AsyncProducer, transaction: Transaction) -> None:
        self._producer = producer
        self._transaction = transaction

    async def send(self, topic: str, value: Any = None, **arguments: Any) -> AsyncDelivery:
        """As ``Transaction.send``."""
        self._transaction.check_active()
        return await self._producer.send(topic, value, **arguments)

    async def send_offsets(self, consumer: Any, offsets: Sequence[Any] | None = None) -> None:
        """As ``Transaction.send_offsets``; ``consumer`` may be an AsyncConsumer too."""
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
