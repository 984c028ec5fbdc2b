"""Transactional producers on the broker that all client tests share; each test has transactional ids and topics of its own."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.compatibility.clients.conftest import topic_name
from tests.compatibility.clients.transactions.aiokafka_producer import AiokafkaProducer, AiokafkaReader
from tests.compatibility.clients.transactions.confluent_producer import ConfluentProducer, ConfluentReader
from tests.compatibility.clients.transactions.kafka_python_producer import KafkaPythonProducer, KafkaPythonReader
from tests.compatibility.clients.transactions.producer import GroupReader, TransactionalProducer
from tidelog.testing import Broker

PRODUCERS: dict[str, type[TransactionalProducer]] = {
    producer.client: producer for producer in (ConfluentProducer, KafkaPythonProducer, AiokafkaProducer)
}
READERS: dict[str, type[GroupReader]] = {
    ConfluentProducer.client: ConfluentReader,
    KafkaPythonProducer.client: KafkaPythonReader,
    AiokafkaProducer.client: AiokafkaReader,
}

MakeProducer = Callable[..., TransactionalProducer]
MakeReader = Callable[[str, str, str], GroupReader]


@pytest.fixture(params=list(PRODUCERS))
def name(request: pytest.FixtureRequest) -> str:
    """Each client that has transactions in turn."""
    return str(request.param)


@pytest.fixture
def transactional_id(request: pytest.FixtureRequest) -> str:
    return topic_name(request.node.name)


@pytest.fixture
def new_producer(broker: Broker, transactional_id: str) -> Iterator[MakeProducer]:
    """Makes a producer with the test's transactional id, which thereby fences the one before."""
    made: list[TransactionalProducer] = []

    def make(client: str, transactional_id: str = transactional_id, **settings: Any) -> TransactionalProducer:
        made.append(PRODUCERS[client](broker.bootstrap_servers, transactional_id, **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.close()


@pytest.fixture
def new_reader(broker: Broker) -> Iterator[MakeReader]:
    """Makes a member of a group: client, group, topic."""
    made: list[GroupReader] = []

    def make(client: str, group: str, topic: str) -> GroupReader:
        made.append(READERS[client](broker.bootstrap_servers, group, topic))
        return made[-1]

    yield make
    for reader in made:
        reader.close()
