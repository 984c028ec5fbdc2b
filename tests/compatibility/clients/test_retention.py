"""Old segments are deleted while consumers read: one that was too slow is told, and goes on where the log begins now."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import pairwise
from typing import Any

import pytest
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import TopicPartition
from kafka import TopicPartition as KafkaPythonPartition

from tests.compatibility.clients.aiokafka_client import AiokafkaClient
from tests.compatibility.clients.batches import segment_count
from tests.compatibility.clients.client import CALL_SECONDS_MAX, MEBIBYTE, NOW, Client, Refused
from tests.compatibility.clients.confluent_client import ConfluentClient
from tests.compatibility.clients.conftest import MakeTopic
from tests.compatibility.clients.kafka_python_client import KafkaPythonClient
from tests.compatibility.clients.waiting import wait_until
from tests.compatibility.kafka_records import SentRecord
from tidelog.testing import Broker

SEGMENT_BYTES = MEBIBYTE
RETENTION = {"segment.bytes": SEGMENT_BYTES, "retention.bytes": 2 * SEGMENT_BYTES, "file.delete.delay.ms": 0}
VALUE = b"x" * 10_000
# More than any client here reads ahead, several times what is retained.
COUNT = 1_000
FETCH_BYTES = 64 * 1024

NextOffset = Callable[[], int]


@contextmanager
def confluent_reader(bootstrap_servers: str, topic: str) -> Iterator[NextOffset]:
    settings = {"auto.offset.reset": "earliest", "queued.max.messages.kbytes": 64, "fetch.message.max.bytes": FETCH_BYTES}
    with closing(ConfluentClient(bootstrap_servers).consumer(**settings)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def next_offset() -> int:
            message = consumer.poll(CALL_SECONDS_MAX)
            assert message is not None
            assert message.error() is None, message.error()
            return int(message.offset())

        yield next_offset


@contextmanager
def kafka_python_reader(bootstrap_servers: str, topic: str) -> Iterator[NextOffset]:
    settings = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": FETCH_BYTES, "max_poll_records": 1}
    with closing(KafkaPythonClient(bootstrap_servers).consumer(**settings)) as consumer:
        where = KafkaPythonPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 0)

        def next_offset() -> int:
            (records,) = consumer.poll(int(CALL_SECONDS_MAX * 1000)).values()
            return int(records[0].offset)

        yield next_offset


@contextmanager
def aiokafka_reader(bootstrap_servers: str, topic: str) -> Iterator[NextOffset]:
    settings = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": FETCH_BYTES}
    context = AiokafkaClient(bootstrap_servers).consumer(**settings)
    where = AiokafkaPartition(topic, 0)

    # Whatever is done with this client is done in a coroutine: it asks for the running loop.
    async def enter() -> Any:
        consumer = await context.__aenter__()
        consumer.assign([where])
        consumer.seek(where, 0)
        return consumer

    async def leave() -> None:
        await context.__aexit__(None, None, None)

    with asyncio.Runner() as runner:
        consumer = runner.run(enter())

        async def next_record() -> int:
            return int((await asyncio.wait_for(consumer.getone(), CALL_SECONDS_MAX)).offset)

        try:
            yield lambda: runner.run(next_record())
        finally:
            runner.run(leave())


@pytest.mark.parametrize("reader", [confluent_reader, kafka_python_reader, aiokafka_reader])
def test_reader_overtaken_by_retention_goes_on_at_the_log_start(
    reader: Callable[[str, str], AbstractContextManager[NextOffset]], broker: Broker, new_topic: MakeTopic
) -> None:
    topic = new_topic(configs=RETENTION)
    client = ConfluentClient(broker.bootstrap_servers)
    client.send(topic, [SentRecord(None, VALUE, NOW) for _ in range(20)])

    with reader(broker.bootstrap_servers, topic) as next_offset:
        read = [next_offset()]
        client.send(topic, [SentRecord(None, VALUE, NOW) for _ in range(COUNT)])
        wait_until(lambda: client.watermarks(topic).log_start_offset > COUNT // 2, "segments deleted")
        while read[-1] < COUNT + 19:
            read.append(next_offset())

    gaps = [(before, after) for before, after in pairwise(read) if after != before + 1]
    assert read[0] == 0
    # What it had read ahead, then from the log start on, nothing left out.
    assert len(gaps) == 1
    assert gaps[0][0] < COUNT // 2 < gaps[0][1]


def test_reader_without_a_way_out_is_told(client: Client, new_topic: MakeTopic) -> None:
    topic = new_topic(configs=RETENTION)
    for _ in range(5):
        client.send(topic, [SentRecord(None, VALUE, NOW) for _ in range(COUNT // 5)])
    wait_until(lambda: client.watermarks(topic).log_start_offset > 0, "segments deleted")

    with pytest.raises(Refused, match=r"(?i)offset.*out of range|OffsetOutOfRange"):
        client.read(topic, 1, offset=0)
    assert client.read(topic, 1, offset=COUNT - 1)[0].offset == COUNT - 1


def test_reading_across_segments_while_they_roll(client: Client, broker: Broker, new_topic: MakeTopic) -> None:
    topic = new_topic(configs={"segment.bytes": SEGMENT_BYTES})
    for _ in range(5):
        client.send(topic, [SentRecord(None, VALUE, NOW) for _ in range(COUNT // 5)])

    assert segment_count(broker.data_path, topic) >= COUNT * len(VALUE) // SEGMENT_BYTES
    assert [record.offset for record in client.read(topic, COUNT)] == list(range(COUNT))
