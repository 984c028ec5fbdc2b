"""Idempotent producers: each record is in the log once and in order, however often its request had to be sent."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from tests.compatibility.clients.client import CALL_SECONDS_MAX
from tests.compatibility.clients.confluent_client import ConfluentClient
from tests.compatibility.clients.conftest import MakeTopic, topic_name
from tests.compatibility.clients.transactions.lossy_proxy import LossyProxy
from tests.compatibility.clients.waiting import wait_until
from tidelog.testing import Broker

RECORDS = 400
BATCH_RECORDS = 10
LOSE_EVERY = 4
KILLS = 5
_BASE_OFFSET_AND_LENGTH = struct.Struct(">qi")
_PRODUCER_POSITION = 43
_PRODUCER = struct.Struct(">qhi")
_COUNT_POSITION = 57
_COUNT = struct.Struct(">i")

Send = Callable[[str, str, int], list[int]]


class StoredBatch(NamedTuple):
    base_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


def stored_batches(data_path: str, topic: str) -> list[StoredBatch]:
    """What lies in the files of partition 0."""
    content = b"".join(path.read_bytes() for path in sorted((Path(data_path) / f"{topic}-0").glob("*.log")))
    batches, position = [], 0
    while position < len(content):
        base_offset, length = _BASE_OFFSET_AND_LENGTH.unpack_from(content, position)
        producer_id, producer_epoch, base_sequence = _PRODUCER.unpack_from(content, position + _PRODUCER_POSITION)
        (count,) = _COUNT.unpack_from(content, position + _COUNT_POSITION)
        batches.append(StoredBatch(base_offset, producer_id, producer_epoch, base_sequence, count))
        position += _BASE_OFFSET_AND_LENGTH.size + length
    return batches


def value_of(number: int) -> bytes:
    return b"%06d" % number


def send_with_confluent(bootstrap_servers: str, topic: str, records: int) -> list[int]:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "enable.idempotence": True,
            "batch.num.messages": BATCH_RECORDS,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "linger.ms": 1,
        }
    )
    offsets: dict[bytes, int] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets[message.value()] = message.offset()

    for number in range(records):
        producer.produce(topic, value_of(number), partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(2 * CALL_SECONDS_MAX) == 0
    return [offsets[value_of(number)] for number in range(records)]


def send_with_kafka_python(bootstrap_servers: str, topic: str, records: int) -> list[int]:
    """With its defaults, which are idempotent."""
    settings = {"batch_size": 300, "linger_ms": 1, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50}
    with closing(KafkaProducer(bootstrap_servers=bootstrap_servers, retry_backoff_ms=10, **settings)) as producer:
        futures = [producer.send(topic, value_of(number), partition=0) for number in range(records)]
        return [future.get(2 * CALL_SECONDS_MAX).offset for future in futures]


def send_with_aiokafka(bootstrap_servers: str, topic: str, records: int) -> list[int]:
    async def send() -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers, enable_idempotence=True, max_batch_size=300, linger_ms=1, retry_backoff_ms=10
        )
        await producer.start()
        try:
            futures = [await producer.send(topic, value_of(number), partition=0) for number in range(records)]
            return [each.offset for each in await asyncio.wait_for(asyncio.gather(*futures), 2 * CALL_SECONDS_MAX)]
        finally:
            await producer.stop()

    return asyncio.run(send())


SENDERS: dict[str, Send] = {
    "confluent-kafka": send_with_confluent,
    "kafka-python": send_with_kafka_python,
    "aiokafka": send_with_aiokafka,
}


@pytest.fixture(params=list(SENDERS))
def send(request: pytest.FixtureRequest) -> Send:
    return SENDERS[request.param]


def check_log(data_path: str, bootstrap_servers: str, topic: str, records: int, offsets: list[int]) -> None:
    """Every record once, in order, where the producer was told that it is; all of it by one producer, in its sequence."""
    read = ConfluentClient(bootstrap_servers).read(topic, records)
    assert [record.value for record in read] == [value_of(number) for number in range(records)]
    assert [record.offset for record in read] == list(range(records))
    assert ConfluentClient(bootstrap_servers).watermarks(topic) == (0, records)
    assert offsets == list(range(records))
    batches = stored_batches(data_path, topic)
    assert {(batch.producer_id >= 0, batch.producer_epoch) for batch in batches} == {(True, 0)}
    assert len({batch.producer_id for batch in batches}) == 1
    assert [batch.base_sequence for batch in batches] == [batch.base_offset for batch in batches]
    assert sum(batch.record_count for batch in batches) == records


def test_round_trip(send: Send, broker: Broker, new_topic: MakeTopic) -> None:
    topic = new_topic()

    offsets = send(broker.bootstrap_servers, topic, RECORDS)

    check_log(broker.data_path, broker.bootstrap_servers, topic, RECORDS, offsets)


def test_every_producer_has_an_id_of_its_own(broker: Broker, new_topic: MakeTopic) -> None:
    topic = new_topic()
    for send in SENDERS.values():
        send(broker.bootstrap_servers, topic, BATCH_RECORDS)

    assert len({batch.producer_id for batch in stored_batches(broker.data_path, topic)}) == len(SENDERS)


@pytest.fixture(scope="module")
def lossy() -> Iterator[tuple[LossyProxy, Broker]]:
    with (
        LossyProxy(LOSE_EVERY) as proxy,
        Broker(configs={"advertised.listeners": f"PLAINTEXT://{proxy.bootstrap_servers}"}) as broker,
    ):
        proxy.target_port = broker.port
        yield proxy, broker


# kafka-python leaves the sockets of broken connections to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_lost_answers_store_nothing_twice(send: Send, lossy: tuple[LossyProxy, Broker], request: pytest.FixtureRequest) -> None:
    proxy, broker = lossy
    topic = topic_name(request.node.name)
    create_topic(broker, topic)
    lost = proxy.lost
    proxy.is_losing = True

    offsets = send(proxy.bootstrap_servers, topic, RECORDS)

    proxy.is_losing = False
    assert proxy.lost > lost + 5
    check_log(broker.data_path, proxy.bootstrap_servers, topic, RECORDS, offsets)


def test_nothing_twice_over_kills_of_the_broker(tmp_path: Path) -> None:
    """What the broker knows of a producer it reads from its log again."""
    delivered: list[int] = []
    with Broker(persist=tmp_path / "data") as broker:
        create_topic(broker, "kills")
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "log_level": 0,
                "enable.idempotence": True,
                # Without this librdkafka forgets the only broker whenever it is down, and takes long to find it again (2.16).
                "metadata.recovery.strategy": "none",
                "batch.num.messages": BATCH_RECORDS,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "linger.ms": 1,
            }
        )

        def on_delivery(error: Any, message: Any) -> None:
            assert error is None, error
            delivered.append(message.offset())

        sent = 0

        def send_some(enough: int) -> bool:
            """There is always something under way when the broker is killed."""
            nonlocal sent
            while sent - len(delivered) < 20 * BATCH_RECORDS:
                producer.produce("kills", value_of(sent), partition=0, on_delivery=on_delivery)
                sent += 1
            producer.poll(0.01)
            return len(delivered) >= enough

        for _ in range(KILLS):
            enough = len(delivered) + 30 * BATCH_RECORDS
            wait_until(lambda: send_some(enough), "deliveries")  # noqa: B023 - called at once
            broker.kill()
            broker.start()
        assert producer.flush(2 * CALL_SECONDS_MAX) == 0
        check_log(broker.data_path, broker.bootstrap_servers, "kills", sent, delivered)


def create_topic(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(CALL_SECONDS_MAX)
