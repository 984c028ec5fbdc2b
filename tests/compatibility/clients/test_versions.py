"""What clients make of the versions that the broker offers, and of what it does not have yet.

The proxy notes which version of each API a client picks. That is a contract in both directions: a broker that advertised less
would push clients to older versions (names instead of topic ids, no leader epochs), and no client may ask for what is not there.
"""

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import IncompatibleBrokerVersion as AiokafkaIncompatible
from confluent_kafka import KafkaException
from kafka import KafkaProducer
from kafka.errors import IncompatibleBrokerVersion

from tests.compatibility.clients.client import CALL_SECONDS_MAX, NOW
from tests.compatibility.clients.confluent_client import ConfluentClient
from tests.compatibility.clients.conftest import CLIENTS, MakeClient, topic_name
from tests.compatibility.clients.proxy import RecordingProxy
from tests.compatibility.clients.waiting import wait_until
from tests.compatibility.kafka_records import SentRecord
from tidelog.broker.handlers import TABLE
from tidelog.testing import Broker
from tidelog.wire.protocol import ApiKey

# The newest that each client knows, of what is served. Fetch 13 and newer names topics by their ids.
PICKED = {
    "confluent-kafka": {
        ApiKey.API_VERSIONS: 3,
        ApiKey.METADATA: 13,
        ApiKey.PRODUCE: 10,
        ApiKey.FETCH: 16,
        ApiKey.LIST_OFFSETS: 7,
    },
    "kafka-python": {ApiKey.API_VERSIONS: 4, ApiKey.METADATA: 13, ApiKey.PRODUCE: 9, ApiKey.FETCH: 12, ApiKey.LIST_OFFSETS: 11},
    "aiokafka": {ApiKey.API_VERSIONS: 0, ApiKey.METADATA: 5, ApiKey.PRODUCE: 7, ApiKey.FETCH: 11, ApiKey.LIST_OFFSETS: 3},
}
HAS_IDEMPOTENCE = ApiKey.INIT_PRODUCER_ID in TABLE


@pytest.fixture
def proxy() -> Iterator[RecordingProxy]:
    with RecordingProxy() as proxy:
        configs = {"advertised.listeners": f"PLAINTEXT://{proxy.bootstrap_servers}"}
        with Broker(configs=configs) as broker:
            proxy.target_port = broker.port
            yield proxy


def use(name: str, proxy: RecordingProxy) -> None:
    client, topic = CLIENTS[name](proxy.bootstrap_servers), topic_name("versions")
    client.send(topic, [SentRecord(None, b"value", NOW)])
    client.read(topic, 1)
    client.watermarks(topic)


@pytest.mark.parametrize("name", list(PICKED))
def test_versions_that_clients_pick(name: str, proxy: RecordingProxy) -> None:
    use(name, proxy)

    assert {api_key: proxy.versions(api_key) for api_key in PICKED[name]} == {
        api_key: [version] for api_key, version in PICKED[name].items()
    }


@pytest.mark.parametrize("name", list(CLIENTS))
def test_nothing_is_asked_for_that_is_not_served(name: str, client_of: MakeClient, proxy: RecordingProxy) -> None:
    client_of(name)  # Skips the test where the client cannot be had.

    use(name, proxy)

    asked = set(proxy.requests)
    assert asked
    for request in asked:
        low, high = TABLE[request.api_key].versions
        assert low <= request.version <= high, request


def confluent_is_told(bootstrap_servers: str) -> str:
    producer = ConfluentClient(bootstrap_servers).producer(**{"enable.idempotence": True})
    producer.produce("orders", b"value")
    with pytest.raises(KafkaException) as failed:
        wait_until(lambda: producer.poll(0.1), "an error")
    return str(failed.value.args[0].name())


def kafka_python_is_told(bootstrap_servers: str) -> str:
    """Idempotence is what it does unless it is told not to."""
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers)
    try:
        with pytest.raises(IncompatibleBrokerVersion) as failed:
            producer.send("orders", b"value").get(CALL_SECONDS_MAX)
        return str(failed.value)
    finally:
        producer.close(timeout=1)


def aiokafka_is_told(bootstrap_servers: str) -> str:
    async def start() -> str:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, enable_idempotence=True)
        with pytest.raises(AiokafkaIncompatible) as failed:
            await producer.start()
        await producer.stop()
        return str(failed.value)

    return asyncio.run(start())


@pytest.mark.skipif(HAS_IDEMPOTENCE, reason="the broker has idempotence now: what clients do without it cannot be tried")
@pytest.mark.parametrize("is_told", [confluent_is_told, kafka_python_is_told, aiokafka_is_told])
def test_idempotent_producers_are_told_that_the_broker_cannot(is_told: Callable[[str], str], broker: Broker) -> None:
    """At once, by their own check of what is advertised, not by a time-out."""
    assert re.search("_UNSUPPORTED_FEATURE|InitProducerId", is_told(broker.bootstrap_servers))
