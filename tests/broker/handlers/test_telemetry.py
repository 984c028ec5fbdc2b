"""Client metrics (KIP-714): subscriptions, pushes, their error codes in Kafka's order, and the bounds on what is kept."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.broker.harness import FakeClient, Machine
from tests.wire.otlp_messages import attribute, double, gauge, message, metrics_data
from tidelog.broker import client_metrics
from tidelog.broker.client_metrics import ShownValue, uuid_text
from tidelog.records.compression import CompressionType, compress
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

CLIENT_METRICS = 16
SET, DELETE = 0, 1
NO_ID = bytes(16)
MINUTE_MS = 60_000
ONE_VALUE = metrics_data(gauge("org.apache.kafka.producer.x", double(4, 1.5) + attribute("node_id", message(1, "7"))))


def alter(client: FakeClient, name: str, **settings: str | None) -> ErrorCode:
    configs = [
        {"name": key.replace("_", "."), "config_operation": DELETE if value is None else SET, "value": value}
        for key, value in settings.items()
    ]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    (result,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource]).responses
    return ErrorCode(result.error_code)


def subscribe(client: FakeClient, instance_id: bytes = NO_ID) -> DecodedMessage:
    return client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=instance_id)


@dataclass
class Pusher:
    client: FakeClient
    instance_id: bytes
    subscription_id: int

    @classmethod
    def of(cls, client: FakeClient) -> "Pusher":
        answer = subscribe(client)
        assert answer.error_code == 0
        return cls(client, answer.client_instance_id, answer.subscription_id)

    def push(self, metrics: bytes = ONE_VALUE, **fields: Any) -> ErrorCode:
        wanted = {
            "client_instance_id": self.instance_id,
            "subscription_id": self.subscription_id,
            "terminating": False,
            "compression_type": 0,
            "metrics": metrics,
            **fields,
        }
        return ErrorCode(self.client.call(ApiKey.PUSH_TELEMETRY, 0, **wanted).error_code)


def shown(machine: Machine) -> list[ShownValue]:
    return list(machine.broker.client_metrics.values())


def identified(machine: Machine, name: str = "librdkafka", version: str = "2.16.0") -> FakeClient:
    client = machine.client()
    client.call(ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version=version)
    return client


def test_a_client_that_nobody_asks_for_anything(client: FakeClient) -> None:
    answer = subscribe(client)
    assert (answer.error_code, answer.requested_metrics, answer.push_interval_ms) == (0, (), 5 * MINUTE_MS)
    assert answer.client_instance_id != NO_ID
    assert (answer.accepted_compression_types, answer.telemetry_max_bytes) == ((4, 3, 1, 2), 1 << 20)
    assert answer.delta_temporality is False, "a last value that is a difference says nothing"


def test_subscriptions_that_match_are_joined(machine: Machine) -> None:
    admin = machine.client()
    assert (
        alter(admin, "a", metrics="org.apache.kafka.producer.,x", interval_ms="60000", match="client_id=te.*") is ErrorCode.NONE
    )
    match = "client_software_name=librd.*,client_software_version=2\\..*,client_source_address=127.*"
    assert alter(admin, "b", metrics="y", interval_ms="90000", match=match) is ErrorCode.NONE
    assert alter(admin, "others", metrics="*", interval_ms="100", match="client_software_name=librd") is ErrorCode.NONE
    joined = subscribe(identified(machine))
    assert (joined.requested_metrics, joined.push_interval_ms) == (("org.apache.kafka.producer.", "x", "y"), MINUTE_MS)
    assert subscribe(identified(machine, "apache-kafka-java")).requested_metrics == ("org.apache.kafka.producer.", "x")
    assert alter(admin, "all", metrics="*") is ErrorCode.NONE
    assert subscribe(identified(machine)).requested_metrics == ("*",)
    own = subscribe(machine.client())
    assert (
        alter(admin, "one", metrics="z", interval_ms="200", match=f"client_instance_id={uuid_text(own.client_instance_id)}") == 0
    )
    assert subscribe(machine.client(), own.client_instance_id).push_interval_ms == 200
    assert subscribe(machine.client()).push_interval_ms == MINUTE_MS


def test_the_last_values_are_shown(machine: Machine) -> None:
    assert alter(machine.client(), "all", metrics="*", interval_ms="1000") is ErrorCode.NONE
    pusher = Pusher.of(identified(machine))
    assert pusher.push() is ErrorCode.NONE
    place = ("test", uuid_text(pusher.instance_id), "librdkafka 2.16.0", "org.apache.kafka.producer.x")
    assert shown(machine) == [(*place, "node_id=7", 1.5)]
    for kind in CompressionType:
        machine.run_for(1000)
        data = metrics_data(gauge("org.apache.kafka.producer.x", double(4, float(kind))))
        assert pusher.push(compress(kind, data), compression_type=kind) is ErrorCode.NONE
        assert shown(machine) == [(*place, "", float(kind))]
    # Metrics that a client no longer has are gone, and a client that is silent for long is gone with its values.
    machine.run_for(1000)
    assert pusher.push(b"") is ErrorCode.NONE
    machine.run_for(MINUTE_MS)
    assert len(shown(machine)) == 1
    machine.run_for(2)
    assert shown(machine) == []
    assert machine.broker.client_metrics.instance_count == 0


def test_pushes_and_gets_have_their_interval(machine: Machine) -> None:
    assert alter(machine.client(), "all", metrics="*", interval_ms="1000") is ErrorCode.NONE
    pusher = Pusher.of(machine.client())
    assert subscribe(pusher.client, pusher.instance_id).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    # Clients wait for half an interval to one and a half before the first push.
    machine.run_for(500)
    assert pusher.push() is ErrorCode.NONE
    machine.run_for(998)
    assert pusher.push() is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert subscribe(pusher.client, pusher.instance_id).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    machine.run_for(2)
    assert pusher.push() is ErrorCode.NONE
    # A client that lost its connection may ask on another one at once.
    pusher.client.session.closed()
    again = subscribe(machine.client(), pusher.instance_id)
    assert (again.error_code, again.subscription_id) == (0, pusher.subscription_id)


def test_a_changed_subscription_is_asked_for_again_at_once(machine: Machine) -> None:
    admin = machine.client()
    assert alter(admin, "all", metrics="*") is ErrorCode.NONE
    pusher = Pusher.of(machine.client())
    assert alter(admin, "all", metrics="org.apache.kafka.consumer.") is ErrorCode.NONE
    assert pusher.push() is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    again = subscribe(pusher.client, pusher.instance_id)
    assert (again.error_code, again.requested_metrics) == (0, ("org.apache.kafka.consumer.",))
    assert again.client_instance_id == pusher.instance_id
    pusher.subscription_id = again.subscription_id
    assert pusher.push(compression_type=9) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert subscribe(pusher.client, pusher.instance_id).error_code == 0
    assert pusher.push() is ErrorCode.NONE
    # A change of other settings does not matter.
    admin.create_topic()
    assert subscribe(pusher.client, pusher.instance_id).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_the_last_push_before_the_end(machine: Machine) -> None:
    pusher = Pusher.of(machine.client())
    assert pusher.push() is ErrorCode.NONE
    assert pusher.push() is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert pusher.push(terminating=True) is ErrorCode.NONE
    assert pusher.push(terminating=True) is ErrorCode.INVALID_REQUEST
    assert len(shown(machine)) == 1


def test_what_cannot_be_taken(machine: Machine) -> None:
    machine = Machine({"telemetry.max.bytes": "2000"})
    bomb = compress(CompressionType.ZSTD, bytes(1_000_000))
    assert len(bomb) < 2000
    for metrics, fields, code in (
        (bytes(2001), {}, ErrorCode.TELEMETRY_TOO_LARGE),
        (bomb, {"compression_type": 4}, ErrorCode.TELEMETRY_TOO_LARGE),
        (b"\x0a", {}, ErrorCode.INVALID_RECORD),
        (b"zstd?", {"compression_type": 4}, ErrorCode.INVALID_RECORD),
        (ONE_VALUE, {"client_instance_id": NO_ID}, ErrorCode.INVALID_REQUEST),
        (ONE_VALUE, {"client_instance_id": bytes(15) + b"\x01"}, ErrorCode.INVALID_REQUEST),
    ):
        assert Pusher.of(machine.client()).push(metrics, **fields) is code
    assert shown(machine) == []


def test_a_broker_that_has_not_heard_of_a_client_takes_its_push(machine: Machine) -> None:
    pusher = Pusher.of(machine.client())
    assert machine.restart() is None
    pusher.client = machine.client()
    assert pusher.push() is ErrorCode.NONE
    assert len(shown(machine)) == 1


def test_clients_and_values_are_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "INSTANCES_MAX", 3)
    monkeypatch.setattr(client_metrics, "VALUES_PER_CLIENT_MAX", 4)
    monkeypatch.setattr(client_metrics, "VALUES_MAX", 6)
    many = metrics_data(gauge("m", *(double(4, 1.0) + attribute("n", message(1, str(n))) for n in range(5))))
    pushers = [Pusher.of(machine.client()) for _ in range(3)]
    for pusher in pushers[:2]:
        assert pusher.push(many) is ErrorCode.NONE
    # Each push had one value too many, and the older client's values made room.
    assert {value.instance_id for value in shown(machine)} == {uuid_text(pushers[1].instance_id)}
    assert len(shown(machine)) == 4
    metrics = machine.broker.client_metrics
    assert (metrics.pushes, metrics.values_dropped) == (2, 1 + 1 + 4)
    for _ in range(3):
        Pusher.of(machine.client())
    assert (metrics.instance_count, shown(machine)) == (3, [])


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"metrics": "a,b", "interval_ms": "100", "match": "client_id=a|b"}, ErrorCode.NONE),
        ({"interval_ms": "99"}, ErrorCode.INVALID_REQUEST),
        ({"interval_ms": "3600001"}, ErrorCode.INVALID_REQUEST),
        ({"nonsense": "1"}, ErrorCode.INVALID_REQUEST),
        ({"match": "client_id"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id="}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_shoe=1"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_source_port=1"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=("}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_settings_of_a_subscription(client: FakeClient, settings: dict[str, str], code: ErrorCode) -> None:
    assert alter(client, "s", **settings) is code
    assert alter(client, "", **settings) is ErrorCode.INVALID_REQUEST


def test_subscriptions_are_listed_described_and_deleted(client: FakeClient) -> None:
    def described() -> list[tuple[str, str, int]]:
        resource = {"resource_type": CLIENT_METRICS, "resource_name": "s", "configuration_keys": None}
        (result,) = client.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource]).results
        assert result.error_code == 0
        return [(config.name, config.value, config.config_source) for config in result.configs]

    def listed(version: int) -> list[str]:
        response = client.call(ApiKey.LIST_CONFIG_RESOURCES, version, resource_types=[CLIENT_METRICS])
        return [resource.resource_name for resource in response.config_resources]

    client.create_topic()
    assert described() == []
    assert alter(client, "s", metrics="a,b", interval_ms="1000") is ErrorCode.NONE
    assert described() == [("metrics", "a,b", 7), ("interval.ms", "1000", 7)]
    assert (listed(0), listed(1)) == (["s"], ["s"])
    assert alter(client, "s", metrics=None, interval_ms=None, match=None) is ErrorCode.NONE
    assert (listed(0), described()) == ([], [])
