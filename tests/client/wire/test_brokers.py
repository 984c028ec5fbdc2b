import socket
from collections.abc import Iterator

import pytest

from tests.client.wire.fake_broker import HANG_UP, FakeBroker
from tidelog.client.wire.brokers import Brokers, PartitionReplicas, by_topic
from tidelog.client.wire.errors import BrokerError, BrokerUnreachable, ConnectionLost, UnknownPartition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def brokers(fake: FakeBroker) -> Iterator[Brokers]:
    brokers = Brokers(f"127.0.0.1:{closed_port()},{fake.bootstrap_servers}", "test", 3.0, 10.0)
    yield brokers
    brokers.close()


def test_the_first_bootstrap_server_that_answers_is_enough(fake: FakeBroker, brokers: Brokers) -> None:
    fake.answer(ApiKey.METADATA, fake.metadata(7, {"b": 1, "a": 2}))
    found = brokers.metadata()
    assert found.brokers == {7: ("127.0.0.1", fake.port)}
    place = PartitionReplicas(7, (7,))
    assert list(found.partitions.items()) == [(("a", 0), place), (("a", 1), place), (("b", 0), place)]
    assert found.partitions_of("a") == [("a", 0), ("a", 1)]
    with pytest.raises(UnknownPartition, match="there is no topic c"):
        found.partitions_of("c")


def test_no_topic_is_created_by_asking(fake: FakeBroker, brokers: Brokers) -> None:
    brokers.metadata()
    (asked,) = fake.asked(ApiKey.METADATA)
    assert (asked.topics, asked.allow_auto_topic_creation) == (None, False)


def test_all_that_do_not_answer_are_named_once() -> None:
    ports = closed_port(), closed_port()
    brokers = Brokers(f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]},127.0.0.1:{ports[0]}", "test", 3.0, 3.0)
    with pytest.raises(BrokerUnreachable) as raised:
        brokers.metadata()
    assert str(raised.value) == "; ".join(f"no broker answers at 127.0.0.1:{port}: connection refused" for port in ports)


def test_a_broker_that_metadata_does_not_name(brokers: Brokers) -> None:
    brokers.metadata()
    with pytest.raises(BrokerError) as raised:
        brokers.request(9, ApiKey.LIST_TRANSACTIONS, {})
    assert raised.value.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_connection_is_kept_and_replaced_when_lost(fake: FakeBroker, brokers: Brokers) -> None:
    listing = {"error_code": 0, "unknown_state_filters": [], "transaction_states": []}
    fake.answer(ApiKey.LIST_TRANSACTIONS, listing, HANG_UP, listing)
    brokers.metadata()
    brokers.request(1, ApiKey.LIST_TRANSACTIONS, {})
    assert fake.connections == 1
    with pytest.raises(ConnectionLost):
        brokers.request(1, ApiKey.LIST_TRANSACTIONS, {})
    brokers.request(1, ApiKey.LIST_TRANSACTIONS, {})
    assert fake.connections == 2


def test_a_broker_that_stops_is_not_taken_for_one_that_requires_security(fake: FakeBroker, brokers: Brokers) -> None:
    """Both end the connection at the first words; the cluster has answered in plaintext before."""
    brokers.metadata()
    brokers.close()
    fake.answer(ApiKey.API_VERSIONS, HANG_UP)
    with pytest.raises(ConnectionLost, match="ended the connection at its first words"):
        brokers.borrow(1)


def test_a_broker_that_stops_at_the_first_request_of_a_connection_is_lost_as_well(fake: FakeBroker, brokers: Brokers) -> None:
    """A listener that requires SASL answers nothing but the greeting; this cluster has answered more before."""
    brokers.metadata()
    fake.answer(ApiKey.LIST_TRANSACTIONS, HANG_UP)
    connection = brokers.borrow(1)
    with pytest.raises(ConnectionLost):
        connection.request(ApiKey.LIST_TRANSACTIONS, {}, 10.0)


def test_partitions_by_topic() -> None:
    assert by_topic([("b", 1), ("a", 0), ("b", 0)]) == {"b": [1, 0], "a": [0]}
