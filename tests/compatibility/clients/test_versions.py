"""What clients make of the versions that the broker offers.

The proxy notes which version of each API a client picks. That is a contract in both directions: a broker that advertised less
would push clients to older versions (names instead of topic ids, no leader epochs), and no client may ask for what is not there.
"""

from collections.abc import Iterator

import pytest

from tests.compatibility.clients.client import NOW
from tests.compatibility.clients.conftest import CLIENTS, MakeClient, topic_name
from tests.compatibility.clients.proxy import RecordingProxy
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
