"""Clients that push their own metrics (KIP-714): librdkafka and, under ``make compat``, Java's producer with Kafka's own tool."""

import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from tests.compatibility.apache_kafka import KafkaUnavailable, kafka_classpath, run_tool
from tests.compatibility.clients.waiting import wait_until
from tidelog.client.wire.connection import BrokerConnection
from tidelog.testing import Broker
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.protocol import ApiKey

CLIENT_METRICS = 16
INTERVAL_MS = 200
WAIT_SECONDS = 30.0
CONFIGS = {"tidelog.metrics.listener": "127.0.0.1:0"}
CLIENT_METRICS_COMMAND = "org.apache.kafka.tools.ClientMetricsCommand"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(configs=CONFIGS) as broker:
        yield broker


def subscribe(broker: Broker, name: str, **settings: str) -> None:
    configs = [{"name": key.replace("_", "."), "config_operation": 0, "value": value} for key, value in settings.items()]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    key, version = ApiKey.INCREMENTAL_ALTER_CONFIGS, 1
    host, port = broker.bootstrap_servers.split(":")
    connection = BrokerConnection(host, int(port), "test", WAIT_SECONDS, WAIT_SECONDS)
    try:
        connection.send(key, version, encode_request(key, version, {"resources": [resource]}), WAIT_SECONDS)
        answer = decode_response(key, version, *connection.receive(key, version, WAIT_SECONDS))
    finally:
        connection.close()
    assert [result.error_code for result in answer.responses] == [0]


def pushed(broker: Broker, client_id: str) -> dict[str, float]:
    """The client's metrics on /metrics, by name."""
    started = next(event for event in broker.events if event["event"] == "started")
    with urllib.request.urlopen(f"http://{started['metrics']}/metrics", timeout=WAIT_SECONDS) as response:
        families = text_string_to_metric_families(response.read().decode())
    samples = [sample for family in families if family.name == "tidelog_client_metric" for sample in family.samples]
    return {sample.labels["metric"]: sample.value for sample in samples if sample.labels["client_id"] == client_id}


def test_librdkafka_pushes_what_it_is_asked_for(broker: Broker) -> None:
    subscribe(broker, "producers", metrics="org.apache.kafka.producer.", interval_ms=str(INTERVAL_MS), match="client_id=loader")
    settings = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    asked, silent = (Producer({**settings, "client.id": name}) for name in ("loader", "other"))

    def has_pushed() -> bool:
        for producer in (asked, silent):
            producer.produce("orders", b"x")
            producer.flush(WAIT_SECONDS)
        return bool(pushed(broker, "loader"))

    wait_until(has_pushed, "the metrics of a client that was asked for them")
    assert all(name.startswith("org.apache.kafka.producer.") for name in pushed(broker, "loader"))
    assert pushed(broker, "other") == {}


@pytest.mark.apache_kafka
def test_kafkas_tool_makes_a_subscription_and_javas_producer_pushes(broker: Broker) -> None:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    bootstrap = ("--bootstrap-server", broker.bootstrap_servers)
    made = ("--name", "java", "--metrics", "org.apache.kafka.producer.", "--interval", "500", "--match", "client_id=perf.*")
    run_tool(CLIENT_METRICS_COMMAND, *bootstrap, "--alter", *made)
    described = run_tool(CLIENT_METRICS_COMMAND, *bootstrap, "--describe")
    assert "java" in described
    assert "interval.ms=500" in described
    assert run_tool(CLIENT_METRICS_COMMAND, *bootstrap, "--list").split() == ["java"]
    properties = (f"bootstrap.servers={broker.bootstrap_servers}", "client.id=perf")
    load = ("--topic", "orders", "--num-records", "300", "--record-size", "10", "--throughput", "100")
    run_tool(PRODUCER_PERFORMANCE, *load, "--producer-props", *properties)
    # The producer has ended, and its last values can still be read.
    assert any(name.startswith("org.apache.kafka.producer.") for name in pushed(broker, "perf"))
    run_tool(CLIENT_METRICS_COMMAND, *bootstrap, "--delete", "--name", "java")
    assert run_tool(CLIENT_METRICS_COMMAND, *bootstrap, "--list").split() == []
