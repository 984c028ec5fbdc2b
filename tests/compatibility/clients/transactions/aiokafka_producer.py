"""aiokafka's transactional producer. Each has an event loop in a thread of its own, so that it also works between calls."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced

from tests.compatibility.clients.client import CALL_SECONDS_MAX, Codec
from tests.compatibility.clients.groups.member import Partition
from tests.compatibility.clients.transactions.producer import TIMEOUT_MS, Fenced, Read

POLL_MS = 500
POLL_RECORDS_MAX = 20

T = TypeVar("T")


class LoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(CALL_SECONDS_MAX)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ProducerFenced as error:
        raise Fenced(str(error)) from error


class AiokafkaProducer:
    client = "aiokafka"

    def __init__(
        self, bootstrap_servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, codec: Codec = Codec.NONE
    ) -> None:
        self._thread = LoopThread()
        self._futures: list[Awaitable[Any]] = []

        async def start() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap_servers,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                compression_type=None if codec is Codec.NONE else codec.value,
                linger_ms=5,
            )
            await producer.start()
            return producer

        self._producer = self._thread.run(start())

    def begin(self) -> None:
        with _translated():
            self._thread.run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        with _translated():
            self._futures.append(self._thread.run(self._producer.send(topic, value, partition=partition)))

    def flush(self) -> None:
        futures, self._futures = self._futures, []

        async def wait() -> None:
            await asyncio.gather(*futures)

        with _translated():
            self._thread.run(wait())

    def send_offsets(self, reader: Any, offsets: Mapping[Partition, int]) -> None:
        wanted = {TopicPartition(*partition): offset for partition, offset in offsets.items()}
        with _translated():
            self._thread.run(self._producer.send_offsets_to_transaction(wanted, reader.group_metadata()))

    def commit(self) -> None:
        with _translated():
            self._thread.run(self._end(self._producer.commit_transaction))

    def abort(self) -> None:
        with _translated():
            self._thread.run(self._end(self._producer.abort_transaction))

    async def _end(self, end: Callable[[], Awaitable[None]]) -> None:
        """A producer that has heard meanwhile that it is fenced would fail an assertion of aiokafka's."""
        manager = self._producer._txn_manager
        if manager.is_fatal_error():
            await manager.wait_for_transaction_end()
        await end()

    def close(self) -> None:
        try:
            with _translated():
                self._thread.run(self._producer.stop())
        except Fenced:
            pass  # It knows.
        finally:
            self._thread.close()


class AiokafkaReader:
    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self._thread = LoopThread()
        self._group = group

        async def start() -> Any:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap_servers,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                fetch_max_wait_ms=50,
            )
            await consumer.start()
            return consumer

        self._consumer = self._thread.run(start())

    def poll(self) -> list[Read]:
        polled = self._thread.run(self._consumer.getmany(timeout_ms=POLL_MS, max_records=POLL_RECORDS_MAX))
        return [
            Read(Partition(record.topic, record.partition), record.offset, record.value)
            for records in polled.values()
            for record in records
        ]

    def rewind(self) -> None:
        async def rewind() -> None:
            for partition in self._consumer.assignment():
                self._consumer.seek(partition, await self._consumer.committed(partition) or 0)

        self._thread.run(rewind())

    def group_metadata(self) -> Any:
        return self._group

    def close(self) -> None:
        try:
            self._thread.run(self._consumer.stop())
        finally:
            self._thread.close()
