import pytest

from tests.broker.harness import NODE_ID, FakeClient
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([], [("orders", TOPIC), (str(NODE_ID), BROKER)]),
        ([BROKER, BROKER], [(str(NODE_ID), BROKER)]),
        ([TOPIC], [("orders", TOPIC)]),
        ([CLIENT_METRICS, GROUP], []),
    ],
)
def test_what_can_have_settings(client: FakeClient, types: list[int], expected: list[tuple[str, int]]) -> None:
    client.create_topic()
    response = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=types)
    assert response.error_code == 0
    assert [(resource.resource_name, resource.resource_type) for resource in response.config_resources] == expected


def test_groups_that_have_settings_are_listed(client: FakeClient) -> None:
    configs = [{"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "50000"}]
    resource = {"resource_type": GROUP, "resource_name": "billing", "configs": configs}
    client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
    response = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[GROUP])
    assert [(resource.resource_name, resource.resource_type) for resource in response.config_resources] == [("billing", GROUP)]


def test_version_0_asks_for_client_metrics_only(client: FakeClient) -> None:
    client.create_topic()
    response = client.call(ApiKey.LIST_CONFIG_RESOURCES, 0)
    assert (response.error_code, response.config_resources) == (0, ())


def test_an_unknown_type_is_refused(client: FakeClient) -> None:
    response = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[TOPIC, 3])
    assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, ())
