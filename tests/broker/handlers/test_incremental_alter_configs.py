from typing import Any

import pytest

from tests.broker.harness import NODE_ID, FakeClient, Machine
from tidelog.log.settings import LogSettings
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

TOPIC_TYPE, BROKER_TYPE = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(
    client: FakeClient, *changes: tuple[str, int, str | None], kind: int = TOPIC_TYPE, name: str = "orders", **fields: Any
) -> int:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    (result,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], **fields).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert bool(result.error_message) == bool(result.error_code)
    return int(result.error_code)


def settings(machine: Machine) -> LogSettings:
    return machine.broker.partitions.find("orders", None, 0).log.settings


@pytest.fixture
def topic(client: FakeClient) -> FakeClient:
    client.create_topic(retention_bytes="77")
    client.append()
    return client


def test_a_setting_counts_at_once_and_the_others_stay(topic: FakeClient, machine: Machine) -> None:
    assert alter(topic, ("retention.ms", SET, "5000")) == 0
    assert (settings(machine).retention_ms, settings(machine).retention_bytes) == (5000, 77)
    assert alter(topic, ("retention.ms", DELETE, None)) == 0
    assert settings(machine).retention_ms == 604_800_000


def test_lists_grow_and_shrink(topic: FakeClient, machine: Machine) -> None:
    assert alter(topic, ("cleanup.policy", APPEND, "compact")) == 0
    assert (settings(machine).delete, settings(machine).compact) == (True, True)
    assert alter(topic, ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert (settings(machine).delete, settings(machine).compact) == (False, True)


def test_settings_outlive_a_crash(topic: FakeClient, machine: Machine) -> None:
    alter(topic, ("retention.ms", SET, "5000"))
    assert machine.crash() is None
    assert settings(machine).retention_ms == 5000


def test_a_setting_of_all_brokers_reaches_every_topic(topic: FakeClient, machine: Machine) -> None:
    assert alter(topic, ("log.retention.ms", SET, "9000"), kind=BROKER_TYPE, name="") == 0
    assert settings(machine).retention_ms == 9000
    assert alter(topic, ("log.retention.ms", SET, "8000"), kind=BROKER_TYPE, name=str(NODE_ID)) == 0
    assert settings(machine).retention_ms == 8000


def test_validating_changes_nothing(topic: FakeClient, machine: Machine) -> None:
    assert alter(topic, ("retention.ms", SET, "5000"), validate_only=True) == 0
    assert settings(machine).retention_ms == 604_800_000


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("nonsense", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_bad_changes_are_refused(topic: FakeClient, change: tuple[str, int, str | None], code: ErrorCode) -> None:
    assert alter(topic, change) == code


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC_TYPE, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER_TYPE, "9", ErrorCode.BROKER_ID_NOT_REGISTERED),
        (16, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_resources_that_cannot_be_changed(client: FakeClient, kind: int, name: str, code: ErrorCode) -> None:
    assert alter(client, ("retention.ms", SET, "1"), kind=kind, name=name) == code


def test_max_message_bytes_counts_from_the_next_append_on(topic: FakeClient) -> None:
    assert alter(topic, ("max.message.bytes", SET, "10")) == 0
    assert topic.append().error is ErrorCode.MESSAGE_TOO_LARGE


def test_a_topic_that_becomes_strict_again_is_synced_at_once(client: FakeClient, machine: Machine) -> None:
    client.create_topic("orders", flush_messages="1000000")
    assert client.append().error is ErrorCode.NONE
    log = machine.broker.partitions.find("orders", None, 0).log
    assert log.high_watermark > log.durable.offset
    alter(client, ("flush.messages", SET, "1"))
    machine.run_for(50)
    assert log.durable.offset == 1
