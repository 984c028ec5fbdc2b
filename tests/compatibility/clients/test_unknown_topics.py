"""Topics that nobody has created: made on demand where the broker may, an error that the client understands where it may not."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.errors import KafkaTimeoutError

from tests.compatibility.clients.aiokafka_client import AiokafkaClient
from tests.compatibility.clients.client import CALL_SECONDS_MAX, NOW, Client, Refused
from tests.compatibility.clients.confluent_client import ConfluentClient
from tests.compatibility.clients.conftest import topic_name
from tests.compatibility.clients.kafka_python_client import KafkaPythonClient
from tests.compatibility.clients.kcat_client import KcatClient
from tests.compatibility.kafka_records import SentRecord
from tidelog.testing import Broker

VALUE = b"value"


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Broker]:
    with Broker(configs={"auto.create.topics.enable": False}) as broker:
        yield broker


def topics_of(broker: Broker) -> set[str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    return set(admin.list_topics(timeout=CALL_SECONDS_MAX).topics)


def test_sending_creates_the_topic(client: Client) -> None:
    topic = topic_name(f"created-by-{client.name}")

    client.send(topic, [SentRecord(None, VALUE, NOW)])

    assert [record.value for record in client.read(topic, 1)] == [VALUE]


def test_a_reader_that_does_not_ask_for_it_creates_nothing(broker: Broker) -> None:
    topic = topic_name("only-read")

    # Told to read a topic that is not there, this client just looks for it again and again.
    with closing(ConfluentClient(broker.bootstrap_servers).consumer()) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = consumer.list_topics(topic, timeout=CALL_SECONDS_MAX).topics[topic]

    assert found.error.name() == "UNKNOWN_TOPIC_OR_PART"
    assert topic not in topics_of(broker)


def test_names_that_cannot_be_are_not_created(broker: Broker) -> None:
    producer = ConfluentClient(broker.bootstrap_servers).producer()
    errors: list[Any] = []
    producer.produce("not/a/name", VALUE, on_delivery=lambda error, _: errors.append(error.name()))

    assert producer.flush(CALL_SECONDS_MAX) == 0
    assert errors == ["TOPIC_EXCEPTION"]


def confluent_fails(bootstrap_servers: str, topic: str) -> str:
    settings = {"topic.metadata.propagation.max.ms": 500, "message.timeout.ms": 5_000}
    producer = ConfluentClient(bootstrap_servers).producer(**settings)
    errors: list[str] = []
    producer.produce(topic, VALUE, on_delivery=lambda error, _: errors.append(error.name()))
    assert producer.flush(CALL_SECONDS_MAX) == 0
    return errors[0]


def kafka_python_fails(bootstrap_servers: str, topic: str) -> str:
    with closing(KafkaPythonClient(bootstrap_servers).producer(max_block_ms=1_000)) as producer:
        with pytest.raises(KafkaTimeoutError) as failed:
            producer.send(topic, VALUE).get(CALL_SECONDS_MAX)
        return str(failed.value)


def aiokafka_fails(bootstrap_servers: str, topic: str) -> str:
    async def send() -> str:
        async with AiokafkaClient(bootstrap_servers).producer(request_timeout_ms=1_000) as producer:
            with pytest.raises(AiokafkaError) as failed:
                await producer.send_and_wait(topic, VALUE)
            return type(failed.value).__name__

    return asyncio.run(send())


def kcat_fails(bootstrap_servers: str, topic: str) -> str:
    client = KcatClient(bootstrap_servers)
    with pytest.raises(Refused) as failed:
        client.run("-P", "-t", topic, "-X", "topic.metadata.propagation.max.ms=500", text=VALUE + b"\n")
    return str(failed.value)


@pytest.mark.parametrize(
    ("send", "words"),
    [
        (confluent_fails, "UNKNOWN_TOPIC_OR_PART"),
        (kafka_python_fails, "metadata"),
        (aiokafka_fails, "UnknownTopicOrPartitionError"),
        (kcat_fails, "Unknown topic"),
    ],
)
def test_sending_fails_where_topics_are_not_created(send: Any, words: str, client_of: Any, strict_broker: Broker) -> None:
    topic = topic_name("not-created")
    if send is kcat_fails:
        client_of(KcatClient.name)  # Skips the test where kcat cannot be had.

    assert words in send(strict_broker.bootstrap_servers, topic)
    assert topics_of(strict_broker) == set()
