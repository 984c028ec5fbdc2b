from typing import Any

import pytest

from tests.broker.harness import HOST, NODE_ID, PORT, FakeClient, Machine
from tidelog.config.broker import BROKER
from tidelog.config.topic import TOPIC
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

TOPIC_TYPE, BROKER_TYPE, BROKER_LOGGER_TYPE = 2, 4, 8
DYNAMIC_TOPIC, STATIC_BROKER, DEFAULT = 1, 4, 5


def describe(
    client: FakeClient, kind: int, name: str, keys: list[str] | None = None, *, version: int = 4, **fields: Any
) -> DecodedMessage:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (result,) = client.call(ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], **fields).results
    assert isinstance(result, DecodedMessage)
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def test_all_settings_of_a_topic(client: FakeClient) -> None:
    client.create_topic(retention_ms="1000")
    result = describe(client, TOPIC_TYPE, "orders")
    assert {config.name for config in result.configs} == set(TOPIC.settings)
    found = {config.name: config for config in result.configs}
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("1000", DYNAMIC_TOPIC)
    assert (found["segment.bytes"].value, found["segment.bytes"].config_source) == ("1073741824", DEFAULT)
    assert not found["retention.ms"].read_only
    assert all(config.synonyms == () and config.documentation is None for config in result.configs)


def test_some_settings_and_an_empty_list_for_all(client: FakeClient) -> None:
    client.create_topic()
    some = describe(client, TOPIC_TYPE, "orders", ["retention.ms", "nonsense"])
    assert [config.name for config in some.configs] == ["retention.ms"]
    assert len(describe(client, TOPIC_TYPE, "orders", []).configs) == len(TOPIC.settings)


def test_gotcha_12_synonyms_name_the_value_in_force_first() -> None:
    client = Machine({"log.retention.ms": "7000"}).client()
    client.create_topic(retention_ms="1000")
    result = describe(client, TOPIC_TYPE, "orders", ["retention.ms"], include_synonyms=True)
    synonyms = [(synonym.name, synonym.value, synonym.source) for synonym in result.configs[0].synonyms]
    assert synonyms[:2] == [("retention.ms", "1000", DYNAMIC_TOPIC), ("log.retention.ms", "7000", STATIC_BROKER)]


def test_documentation_and_type_come_from_version_3_on(client: FakeClient) -> None:
    client.create_topic()
    (config,) = describe(client, TOPIC_TYPE, "orders", ["retention.ms"], version=3, include_documentation=True).configs
    assert (config.config_type, config.documentation) == (5, TOPIC.settings["retention.ms"].documentation)


def test_the_advertised_listener_in_force_counts_as_set() -> None:
    """Tools look for it among the static settings, whether somebody set it or not."""
    for machine in (Machine(), Machine({"advertised.listeners": f"{HOST}:{PORT}"})):
        (config,) = describe(machine.client(), BROKER_TYPE, str(NODE_ID), ["advertised.listeners"]).configs
        assert (config.value, config.config_source) == (f"PLAINTEXT://{HOST}:{PORT}", STATIC_BROKER)


def test_gotcha_11_the_brokers_settings_and_the_one_that_kafka_ui_reads(client: FakeClient) -> None:
    result = describe(client, BROKER_TYPE, str(NODE_ID))
    assert {config.name for config in result.configs} == set(BROKER.settings)
    found = {config.name: config for config in result.configs}
    assert found["inter.broker.protocol.version"].value
    assert (found["node.id"].value, found["node.id"].config_source, found["node.id"].read_only) == ("1", STATIC_BROKER, True)


def test_what_was_set_for_all_brokers(client: FakeClient) -> None:
    assert describe(client, BROKER_TYPE, "").configs == ()
    change = {"name": "log.retention.ms", "config_operation": 0, "value": "5"}
    resource = {"resource_type": BROKER_TYPE, "resource_name": "", "configs": [change]}
    client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
    assert [(config.name, config.value) for config in describe(client, BROKER_TYPE, "").configs] == [("log.retention.ms", "5")]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC_TYPE, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC_TYPE, "bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER_TYPE, "7", ErrorCode.INVALID_REQUEST),
        (BROKER_TYPE, "x", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER_TYPE, "1", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_described(client: FakeClient, kind: int, name: str, code: ErrorCode) -> None:
    result = describe(client, kind, name)
    assert (result.error_code, result.configs) == (code, ())
    assert result.error_message


def test_one_bad_resource_does_not_fail_the_others(client: FakeClient) -> None:
    client.create_topic()
    resources = [{"resource_type": TOPIC_TYPE, "resource_name": name} for name in ("missing", "orders")]
    results = client.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources).results
    assert [result.error_code for result in results] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


def test_a_resource_that_is_named_again_and_again_is_described_once(client: FakeClient) -> None:
    client.create_topic()
    resources = [{"resource_type": TOPIC_TYPE, "resource_name": name} for name in ("orders", "missing") * 50]
    response = client.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources)
    assert [result.resource_name for result in response.results] == ["orders", "missing"]
