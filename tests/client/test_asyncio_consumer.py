"""The asyncio twins: the same promises, and an event loop that never waits."""

import asyncio
import threading
from typing import Any

import pytest

from tests.client.consuming import fill, filled_topic, new_group
from tests.client.producing import new_topic
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.asyncio_consumer import AsyncConsumer
from tidelog.client.asyncio_table import AsyncTable
from tidelog.client.errors import BrokerUnavailable, Closed, InvalidArgument
from tidelog.client.message import Message
from tidelog.client.topic_partition import TopicPartition

SECONDS_MAX = 120.0


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, SECONDS_MAX))


async def read(consumer: AsyncConsumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += await consumer.poll(count - len(found))
    return found


def test_reading_and_committing(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()

    async def main() -> None:
        async with AsyncConsumer(kafka.bootstrap, group=group, topics=[topic]) as consumer:
            assert [message.offset for message in await read(consumer, 4)] == [0, 1, 2, 3]
            assert await consumer.commit() == {TopicPartition(topic, 0): 4}
            assert await consumer.lag() == {TopicPartition(topic, 0): 6}
            await consumer.seek(topic, 0, offset=8)
            assert [message.offset for message in await read(consumer, 2)] == [8, 9]
            await consumer.pause()
            await consumer.resume()
            await consumer.seek_to_end(topic)
            assert await consumer.positions() == {TopicPartition(topic, 0): 10}
            await consumer.seek_to_beginning(topic)
            assert (await consumer.poll(1))[0].offset == 0
            await consumer.rewind()
            assert (await consumer.poll(1))[0].offset == 4
            assert await consumer.committed() == {TopicPartition(topic, 0): 4}
            assert await consumer.assignment() == [TopicPartition(topic, 0)]
        with pytest.raises(Closed):
            await consumer.poll()
        with pytest.raises(Closed):
            _ = consumer.blocking

    run(main())


def test_a_cancelled_poll_loses_nothing_and_counts_nothing(kafka: ToolkitBroker) -> None:
    topic, group = new_topic(kafka), new_group()

    async def main() -> None:
        async with AsyncConsumer(kafka.bootstrap, group=group, topics=[topic]) as consumer:
            while not await consumer.assignment():
                await consumer.poll(timeout=0.05)
            found: list[int] = []
            for number in range(40):
                fill(kafka.bootstrap, topic, [str(number)])
                try:
                    found += [message.offset for message in await asyncio.wait_for(consumer.poll(timeout=5), number / 2000)]
                except TimeoutError:
                    # What the poll may have in its hands is not covered.
                    committed = await consumer.commit()
                    assert committed.get(TopicPartition(topic, 0), len(found)) == len(found)
            found += [message.offset for message in await read(consumer, 40 - len(found))]
            assert found == list(range(40))

    run(main())


def test_iteration(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()

    async def main() -> None:
        async with AsyncConsumer(kafka.bootstrap, group=group, topics=[topic]) as consumer:
            async for message in consumer:
                if message.offset == 3:
                    assert await consumer.commit() == {TopicPartition(topic, 0): 4}
                    break
            assert [message.offset for message in await read(consumer, 6)] == [4, 5, 6, 7, 8, 9]

    run(main())


def test_callbacks_are_called_in_the_polling_thread(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()
    told: list[tuple[str, list[TopicPartition], bool]] = []

    async def main() -> None:
        loop_thread = threading.current_thread()

        def on_assigned(partitions: list[TopicPartition]) -> None:
            told.append(("assigned", partitions, threading.current_thread() is loop_thread))
            consumer.blocking.seek(topic, 0, offset=7)

        def on_revoked(partitions: list[TopicPartition]) -> None:
            told.append(("revoked", partitions, threading.current_thread() is loop_thread))

        async def coroutine(partitions: list[TopicPartition]) -> None:
            raise AssertionError

        with pytest.raises(InvalidArgument, match="plain function"):
            AsyncConsumer(kafka.bootstrap, group=group, on_lost=coroutine)
        consumer = AsyncConsumer(kafka.bootstrap, group=group, topics=[topic], on_assigned=on_assigned, on_revoked=on_revoked)
        async with consumer:
            assert [message.offset for message in await read(consumer, 3)] == [7, 8, 9]

    run(main())
    assert told == [("assigned", [TopicPartition(topic, 0)], False), ("revoked", [TopicPartition(topic, 0)], False)]


def test_the_event_loop_does_not_wait(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)

    async def main() -> None:
        async with AsyncConsumer(kafka.bootstrap, topics=[topic]) as consumer:
            turns = 0
            poll = asyncio.ensure_future(consumer.poll(timeout=0.5))
            while not poll.done():
                await asyncio.sleep(0.001)
                turns += 1
            assert turns > 5

    run(main())


def test_errors_come_with_the_first_call() -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgument):
            await AsyncConsumer("127.0.0.1:1", guarantee="twice").poll()
        with pytest.raises(BrokerUnavailable):
            async with AsyncConsumer("127.0.0.1:1", connect_timeout=0.3):
                pass
        with pytest.raises(BrokerUnavailable):
            await AsyncTable("t", bootstrap="127.0.0.1:1", connect_timeout=0.3).wait_ready()

    run(main())


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
def test_table(kafka: ToolkitBroker, storage: str, tmp_path: Any) -> None:
    topic = new_topic(kafka)
    for number in range(3):
        fill(kafka.bootstrap, topic, [str(number)], key=f"key-{number}".encode())
    place = "memory" if storage == "memory" else f"sqlite:{tmp_path / 'table.db'}"

    async def main() -> None:
        changed: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

        async def on_change(key: str, value: Any) -> None:
            await changed.put((key, value))

        table = AsyncTable(topic, bootstrap=kafka.bootstrap, values="json", storage=place, on_change=on_change)
        async with table:
            await table.wait_ready(SECONDS_MAX)
            assert table.ready
            assert (await table.get("key-1"), await table.get("nobody"), await table.get("nobody", 5)) == (1, None, 5)
            assert (await table.contains("key-2"), await table.contains("nobody"), await table.count()) == (True, False, 3)
            assert [row async for row in table.rows()] == [("key-0", 0), ("key-1", 1), ("key-2", 2)]
            fill(kafka.bootstrap, topic, ["9"], key=b"key-1")
            assert await changed.get() == ("key-1", 9)
        with pytest.raises(Closed):
            await table.get("key-1")

    run(main())
