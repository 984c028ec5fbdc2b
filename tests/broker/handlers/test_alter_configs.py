import pytest

from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


def alter(client: FakeClient, *topics: str, version: int = 2, validate_only: bool = False, **configs: str) -> list[int]:
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    resources = [{"resource_type": 2, "resource_name": topic, "configs": settings} for topic in topics]
    response = client.call(ApiKey.ALTER_CONFIGS, version, resources=resources, validate_only=validate_only)
    return [result.error_code for result in response.responses]


@pytest.mark.parametrize("version", range(3))
def test_a_topic_gets_exactly_what_is_named(client: FakeClient, machine: Machine, version: int) -> None:
    client.create_topic(retention_bytes="77")
    client.append()
    assert alter(client, "orders", version=version, retention_ms="5000") == [0]
    settings = machine.broker.partitions.find("orders", None, 0).log.settings
    assert (settings.retention_ms, settings.retention_bytes) == (5000, -1)


def test_each_resource_stands_for_itself(client: FakeClient) -> None:
    client.create_topic()
    assert alter(client, "missing", "orders", retention_ms="1") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert alter(client, "orders", nonsense="1") == [ErrorCode.INVALID_CONFIG]
    assert alter(client, "orders", "orders", retention_ms="1") == [ErrorCode.INVALID_REQUEST]


def test_validating_changes_nothing(client: FakeClient, machine: Machine) -> None:
    client.create_topic()
    assert alter(client, "orders", validate_only=True, retention_ms="1") == [0]
    assert machine.broker.settings.values("orders")["retention.ms"] == 604_800_000
