"""Quotas beside Apache Kafka: the same calls are answered alike, and a client over its quota is held as long and in the same way.
Kafka's own tool sets and reads ours. Runs under ``make compat``."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.apache_kafka import ApacheKafka, KafkaUnavailable, kafka_classpath, run_tool, wait_until
from tests.compatibility.kafka_client import admin_client, create_topic
from tests.faults.peers import Peer, api_versions_request, batch_of, produce_request
from tidelog.client.quotas import Entity, QuotaAdmin
from tidelog.client.wire.errors import BrokerError
from tidelog.testing import Broker
from tidelog.wire.produce import ProduceResponse, decode_produce_response
from tidelog.wire.protocol import ApiKey, parse_response_header

pytestmark = pytest.mark.apache_kafka

# The client id of ``Peer``.
PEER: Entity = {"client-id": "peer"}
ALTERATIONS: list[tuple[Entity, dict[str, float | None]]] = [
    ({"client-id": "a"}, {"producer_byte_rate": 1000.0, "request_percentage": 12.5}),
    ({"client-id": "a"}, {"producer_byte_rate": None, "consumer_byte_rate": 5.0}),
    ({"client-id": None}, {"controller_mutation_rate": 0.5}),
    ({"user": "u", "client-id": None}, {"producer_byte_rate": 7.0}),
    ({"user": None}, {"producer_byte_rate": 8.0}),
    ({"ip": "10.0.0.1"}, {"connection_creation_rate": 9.0}),
    ({"ip": None}, {"connection_creation_rate": 10.0}),
    ({"client-id": "b"}, {"producer_byte_rate": 1.5}),
    ({"client-id": "b"}, {"producer_byte_rate": 0.0}),
    ({"client-id": "b"}, {"request_percentage": -1.0}),
    ({"client-id": "b"}, {"no_such_quota": 1.0}),
    ({"client-id": "b"}, {"no_such_quota": None}),
    ({"client-id": "b"}, {"connection_creation_rate": 1.0}),
    ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
    ({"ip": "10.0.0.1", "user": "u"}, {"connection_creation_rate": 1.0}),
    ({"ip": "10.0.0.1"}, {"connection_creation_rate": 2.0**31}),
    ({"client-id": ""}, {"producer_byte_rate": 1.0}),
    ({"group": "g"}, {"producer_byte_rate": 1.0}),
    ({}, {"producer_byte_rate": 1.0}),
]
FILTERS: list[Entity | None] = [None, {"client-id": "a"}, {"client-id": None}, {"user": "u"}, {"ip": None}, {"group": "g"}]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    with ApacheKafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def tidelog() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def story(bootstrap_servers: str) -> list[Any]:
    """What is answered to all of it, in words that do not depend on who wrote them."""
    told: list[Any] = []
    with QuotaAdmin(bootstrap_servers) as admin:
        for entity, quotas in ALTERATIONS:
            for validate_only in (True, False):
                code = "NONE"
                try:
                    admin.alter(entity, quotas, validate_only=validate_only)
                except BrokerError as error:
                    code = error.code.name
                told.append((dict(entity), quotas, code))
        for wanted in FILTERS:
            try:
                told.append((wanted, admin.describe(wanted)))
            except BrokerError as error:
                told.append((wanted, error.code.name))
        for each in admin.describe():
            admin.alter(each.entity, dict.fromkeys(each.quotas))
        told.append(admin.describe())
    return told


def test_the_same_calls_are_answered_alike(kafka: ApacheKafka, tidelog: Broker) -> None:
    ours, theirs = story(tidelog.bootstrap_servers), story(kafka.bootstrap_servers)
    for our, their in zip(ours, theirs, strict=True):
        assert our == their
    assert ours[-1] == []


def produce(peer: Peer, value_bytes: int, and_then: bytes = b"") -> tuple[float, ProduceResponse]:
    """With another request right behind it."""
    began = time.monotonic()
    peer.send(produce_request("held", batch_of(value_bytes), correlation_id=7) + and_then)
    frame = peer.read_response()
    assert frame is not None
    correlation_id, position = parse_response_header(ApiKey.PRODUCE, 9, memoryview(frame))
    assert correlation_id == 7
    return time.monotonic() - began, decode_produce_response(9, memoryview(frame), position)


def hold(server: ApacheKafka | Broker) -> tuple[int, float]:
    """One produce request far over its quota with another request right behind it: the time it is told, and after how long the
    second one is answered."""
    create_topic(admin_client(server.bootstrap_servers), "held")
    with Peer(server.port) as peer:
        wait_until(lambda: produce(peer, 10)[1].topics[0].partitions[0].error == 0, "the new topic has a leader")
    with QuotaAdmin(server.bootstrap_servers) as admin:
        admin.alter(PEER, {"producer_byte_rate": 10_000.0})
    try:
        with Peer(server.port) as peer:
            began = time.monotonic()
            answered_seconds, response = produce(peer, 120_000, api_versions_request(8))
            assert response.topics[0].partitions[0].error == 0
            assert answered_seconds < response.throttle_time_ms / 1000
            second = peer.read_response()
            assert second is not None
            assert int.from_bytes(second[:4], "big") == 8
            return response.throttle_time_ms, time.monotonic() - began
    finally:
        with QuotaAdmin(server.bootstrap_servers) as admin:
            admin.alter(PEER, {"producer_byte_rate": None})


def test_a_client_over_its_quota_is_held_as_long_and_in_the_same_way(kafka: ApacheKafka, tidelog: Broker) -> None:
    """The answer comes at once and says for how long, and what the client sent with it waits."""
    their_ms, their_seconds = hold(kafka)
    our_ms, our_seconds = hold(tidelog)
    assert their_ms == pytest.approx(2_000, rel=0.1)
    assert our_ms == pytest.approx(their_ms, rel=0.05)
    assert their_seconds >= their_ms / 1000
    assert our_seconds >= our_ms / 1000


def test_kafkas_own_tool_sets_reads_and_deletes_ours(tidelog: Broker, kafka: ApacheKafka, tmp_path: Path) -> None:
    def tool(*words: str) -> str:
        return run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", tidelog.bootstrap_servers, *words)

    client = ("--entity-type", "clients", "--entity-name", "loader")
    tool("--alter", "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048", *client)
    tool("--alter", "--add-config", "request_percentage=200", "--entity-type", "users", "--entity-default")
    tool("--alter", "--add-config", "connection_creation_rate=50", "--entity-type", "ips", "--entity-name", "10.0.0.1")
    described = tool("--describe", "--entity-type", "clients")
    assert "Quota configs for client-id 'loader' are" in described
    assert "producer_byte_rate=1024.0" in described
    assert "request_percentage=200.0" in tool("--describe", "--entity-type", "users", "--entity-default")
    assert "connection_creation_rate=50.0" in tool("--describe", "--entity-type", "ips", "--entity-name", "10.0.0.1")
    tool("--alter", "--delete-config", "producer_byte_rate,consumer_byte_rate", *client)
    with QuotaAdmin(tidelog.bootstrap_servers) as admin:
        assert [each.entity for each in admin.describe()] == [{"ip": "10.0.0.1"}, {"user": None}]
