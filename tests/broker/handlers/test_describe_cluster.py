import pytest

from tests.broker.harness import CLUSTER_ID, HOST, NODE_ID, PORT, FakeClient, Machine
from tidelog.metadata.records import BrokerEndpoint, RegisterBrokerRecord
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


@pytest.mark.parametrize("version", range(3))
def test_the_cluster(client: FakeClient, version: int) -> None:
    response = client.call(ApiKey.DESCRIBE_CLUSTER, version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, CLUSTER_ID, NODE_ID)
    assert [(broker.broker_id, broker.host, broker.port) for broker in response.brokers] == [(NODE_ID, HOST, PORT)]
    assert response.cluster_authorized_operations == -(2**31)


def test_operations_are_told_to_who_asks(client: FakeClient) -> None:
    response = client.call(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
    assert response.cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_other_endpoints_are_refused(client: FakeClient, endpoint_type: int, code: ErrorCode) -> None:
    response = client.call(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type)
    assert response.error_code == code
    assert response.error_message


def test_fenced_brokers_are_told_to_who_asks(client: FakeClient, machine: Machine) -> None:
    fenced = RegisterBrokerRecord(broker_id=2, end_points=(BrokerEndpoint("PLAINTEXT", "other", 1, 0),), fenced=True)
    assert machine.wait(lambda done: machine.broker.controller.propose([fenced], done)) is None
    assert [broker.broker_id for broker in client.call(ApiKey.DESCRIBE_CLUSTER, 2).brokers] == [NODE_ID]
    everyone = client.call(ApiKey.DESCRIBE_CLUSTER, 2, include_fenced_brokers=True).brokers
    assert [(broker.broker_id, broker.is_fenced) for broker in everyone] == [(NODE_ID, False), (2, True)]
