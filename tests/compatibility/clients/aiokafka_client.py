"""aiokafka: asyncio, and the oldest versions of the protocol among the clients here."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import BrokerResponseError

from tests.compatibility.clients.client import CALL_SECONDS_MAX, SEND_BYTES_MAX, Codec, Refused, Watermarks, tell_too_few
from tests.compatibility.kafka_records import ReadRecord, SentRecord

LOG_APPEND_TIME = 1


class AiokafkaClient:
    name = "aiokafka"
    sets_timestamps = True

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    @asynccontextmanager
    async def producer(self, **settings: Any) -> AsyncIterator[Any]:
        common = {"bootstrap_servers": self._bootstrap_servers, "max_request_size": SEND_BYTES_MAX}
        producer = AIOKafkaProducer(**{**common, **settings})
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    @asynccontextmanager
    async def consumer(self, **settings: Any) -> AsyncIterator[Any]:
        common = {"bootstrap_servers": self._bootstrap_servers, "group_id": None, "enable_auto_commit": False}
        consumer = AIOKafkaConsumer(**{**common, "auto_offset_reset": "none", **settings})
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    def can_send(self, record: SentRecord) -> bool:
        return (record.key, record.value) != (None, None)

    def send(
        self, topic: str, records: Sequence[SentRecord], *, partition: int = 0, codec: Codec = Codec.NONE, acks: str = "all"
    ) -> list[int] | None:
        async def send() -> list[int] | None:
            compression = None if codec is Codec.NONE else codec.value
            async with self.producer(
                compression_type=compression, acks=acks if acks == "all" else int(acks), linger_ms=50
            ) as producer:
                futures = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition=partition,
                        timestamp_ms=record.timestamp or None,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                try:
                    acknowledged = await asyncio.wait_for(asyncio.gather(*futures), CALL_SECONDS_MAX)
                except BrokerResponseError as error:
                    raise Refused(error.errno, str(error)) from error
                return None if acks == "0" else [each.offset for each in acknowledged]

        return asyncio.run(send())

    def read(
        self, topic: str, count: int, *, partition: int = 0, offset: int = 0, isolation: str = "read_uncommitted"
    ) -> list[ReadRecord]:
        async def read() -> list[ReadRecord]:
            async with self.consumer(isolation_level=isolation) as consumer:
                where = TopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, offset)
                return await _take(consumer, count)

        return asyncio.run(read())

    def read_since(self, topic: str, count: int, timestamp: int, *, partition: int = 0) -> list[ReadRecord]:
        async def read() -> list[ReadRecord]:
            async with self.consumer() as consumer:
                where = TopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, (await consumer.offsets_for_times({where: timestamp}))[where].offset)
                return await _take(consumer, count)

        return asyncio.run(read())

    def watermarks(self, topic: str, partition: int = 0) -> Watermarks:
        async def ask() -> Watermarks:
            async with self.consumer() as consumer:
                where = TopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, 0)
                beginning, end = await consumer.beginning_offsets([where]), await consumer.end_offsets([where])
                return Watermarks(beginning[where], end[where])

        return asyncio.run(ask())

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        async def ask() -> int | None:
            async with self.consumer() as consumer:
                where = TopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, 0)
                found = (await consumer.offsets_for_times({where: timestamp}))[where]
                return None if found is None else int(found.offset)

        return asyncio.run(ask())


async def _take(consumer: Any, count: int) -> list[ReadRecord]:
    records: list[ReadRecord] = []
    while len(records) < count:
        try:
            polled = await consumer.getmany(timeout_ms=int(CALL_SECONDS_MAX * 1000), max_records=count - len(records))
        except BrokerResponseError as error:
            raise Refused(error.errno, str(error)) from error
        if not polled:
            raise tell_too_few(AiokafkaClient.name, len(records), count)
        records += [read_record(record) for batch in polled.values() for record in batch]
    return records


def read_record(record: Any) -> ReadRecord:
    is_log_append_time = record.timestamp_type == LOG_APPEND_TIME
    return ReadRecord(record.offset, record.timestamp, is_log_append_time, record.key, record.value, tuple(record.headers))
