"""AsyncProducer: the same promises, and the event loop never waits."""

import asyncio
import inspect
import secrets
from collections.abc import Coroutine
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.client.producing import new_topic, read, values
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.asyncio_consumer import AsyncConsumer
from tidelog.client.asyncio_producer import AsyncProducer
from tidelog.client.errors import (
    BrokerUnavailable,
    BufferFull,
    Closed,
    InvalidArgument,
    MessageTooLarge,
    SerializationError,
    Shed,
)
from tidelog.client.producer import Producer
from tidelog.client.tracing import extract, with_traceparent

NEVER_MS = 60_000


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 120))


def test_every_call_of_producer_has_its_twin() -> None:
    calls = {name for name, _ in inspect.getmembers(Producer) if not name.startswith("_")}
    assert [name for name in sorted(calls) if not hasattr(AsyncProducer, name)] == []
    for name in ("send", "flush", "close"):
        ours = list(inspect.signature(getattr(Producer, name)).parameters.values())
        assert list(inspect.signature(getattr(AsyncProducer, name)).parameters.values()) == ours, name


def test_messages_are_where_their_futures_say(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)

    async def send() -> None:
        async with AsyncProducer(kafka.bootstrap) as producer:
            deliveries = [await producer.send(topic, b"%d" % number) for number in range(3000)]
            delivered = await asyncio.gather(*deliveries)
            assert [place.offset for place in delivered] == list(range(3000))
            assert (await deliveries[7]).offset == 7, "awaited twice"
            for number in range(3000, 3003):
                one_by_one = await (await producer.send(topic, b"%d" % number))
                assert one_by_one.offset == number
            assert deliveries[7].result(0) == delivered[7]
            await producer.flush(10)
            assert producer.metrics().delivered == 3003
            assert await producer.partitions(topic) == 1

    run(send())
    assert values(read(kafka, topic, 3003)) == [b"%d" % number for number in range(3003)]


def test_the_end_of_the_block_waits_for_what_was_sent(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, partitions=3)

    async def send() -> None:
        async with AsyncProducer(kafka.bootstrap, partitioner="round_robin") as producer:
            for number in range(9):
                await producer.send(topic, {"number": number}, key="k", headers={"a": b"1"}, timestamp=1_700_000_000_000)
        with pytest.raises(Closed):
            await producer.send(topic, b"late")

    run(send())
    assert [message.partition() for message in read(kafka, topic, 9)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_the_loop_goes_on_while_the_buffer_is_full(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)

    async def send() -> None:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.001)
                turns += 1

        ticking = asyncio.create_task(tick())
        async with AsyncProducer(kafka.bootstrap, buffer_messages=5, linger_ms=300) as producer:
            for number in range(15):
                await producer.send(topic, b"%d" % number)
        assert turns > 10
        ticking.cancel()

    run(send())
    assert values(read(kafka, topic, 15)) == [b"%d" % number for number in range(15)]


def test_a_buffer_that_stays_full(kafka: ToolkitBroker) -> None:
    topic, clicks = new_topic(kafka), new_topic(kafka)

    async def send() -> None:
        arguments = {"buffer_messages": 5, "linger_ms": NEVER_MS, "max_block_ms": 100, "low_value_topics": {clicks: "shed"}}
        async with AsyncProducer(kafka.bootstrap, **arguments) as producer:
            for _ in range(5):
                await producer.send(topic, b"x")
            began = monotonic()
            with pytest.raises(BufferFull):
                await producer.send(topic, b"x")
            assert 0.1 <= monotonic() - began < 5
            with pytest.raises(Shed):
                await (await producer.send(clicks, b"x"))
            assert producer.metrics().shed == 1
            assert producer.metrics().sent == 5

    run(send())
    read(kafka, topic, 5)


def test_what_goes_wrong(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, config={"max.message.bytes": "1000"})

    async def send() -> None:
        with pytest.raises(Closed, match="async with"):
            await AsyncProducer(kafka.bootstrap).send(topic, b"x")
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
            await AsyncProducer("127.0.0.1:1", connect_timeout=0.5).start()
        with pytest.raises(InvalidArgument):
            await AsyncProducer(kafka.bootstrap, acks="some").start()
        async with AsyncProducer(kafka.bootstrap, compression="none") as producer:
            with pytest.raises(SerializationError):
                await producer.send(topic, object())
            with pytest.raises(MessageTooLarge):
                await (await producer.send(topic, b"x" * 5000))
            await producer.send(topic, b"x" * 5000)
            with pytest.raises(MessageTooLarge):
                await producer.flush(30)

    run(send())


def test_a_wait_can_be_cancelled(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)

    async def send() -> None:
        async with AsyncProducer(kafka.bootstrap, linger_ms=NEVER_MS) as producer:
            delivery = await producer.send(topic, b"x")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(delivery, 0.05)
            await producer.flush(30)
            assert (await delivery).offset == 0

    run(send())


def test_the_trace_context_travels(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def send() -> None:
        async with AsyncProducer(kafka.bootstrap) as producer:
            with with_traceparent(trace):
                await producer.send(topic, b"x")

    run(send())
    found = extract(read(kafka, topic, 1)[0].headers())
    assert found is not None
    assert found[:35] == trace[:35]


def test_transactions(kafka: ToolkitBroker) -> None:
    source, target, group = new_topic(kafka), new_topic(kafka), f"group-{secrets.token_hex(4)}"
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([source])

    async def aborted(producer: AsyncProducer) -> None:
        async with producer.transaction() as tx:
            await (await tx.send(target, b"aborted"))
            raise KeyError

    async def send() -> None:
        async with AsyncProducer(kafka.bootstrap) as plain:
            await plain.send(source, b"1")
        async with AsyncProducer(kafka.bootstrap, transactional_id=group) as producer:
            with pytest.raises(KeyError):
                await aborted(producer)
            (message,) = await asyncio.to_thread(consumer.consume, 1, 30)
            async with producer.transaction() as tx:
                await tx.send(target, b"seen " + message.value())
                await tx.send_offsets(consumer)
            with pytest.raises(InvalidArgument):
                await tx.send(target, b"late")

    run(send())
    (place,) = consumer.committed(consumer.assignment(), timeout=10)
    consumer.close()
    assert place.offset == 1
    assert values(read(kafka, target, 1)) == [b"seen 1"]


def test_transactions_with_the_asyncio_consumer(kafka: ToolkitBroker) -> None:
    """Two messages are taken one by one out of a batch of five: only they are committed."""
    source, target, group = new_topic(kafka), new_topic(kafka), f"group-{secrets.token_hex(4)}"

    async def send() -> None:
        async with AsyncProducer(kafka.bootstrap) as plain:
            for number in range(5):
                await plain.send(source, b"%d" % number)
        async with (
            AsyncProducer(kafka.bootstrap, transactional_id=group) as producer,
            AsyncConsumer(kafka.bootstrap, group=group, topics=[source], guarantee="exactly-once") as consumer,
        ):
            for _ in range(2):
                async with producer.transaction() as tx:
                    for _ in range(2):
                        message = await anext(consumer)
                        await tx.send(target, message.value)
                    await tx.send_offsets(consumer)
            assert sum((await consumer.committed()).values()) == 4

    run(send())
    assert values(read(kafka, target, 4)) == [b"0", b"1", b"2", b"3"]
