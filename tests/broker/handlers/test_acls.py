"""DescribeAcls, CreateAcls and DeleteAcls while there is no authorizer (gotcha 11)."""

import pytest

from tests.broker.harness import FakeClient
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

SECURITY_DISABLED = ErrorCode.SECURITY_DISABLED
CREATION = {"resource_name": "x", "principal": "User:x", "host": "*"}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_gotcha_11_describing_says_that_security_is_disabled(client: FakeClient, version: int) -> None:
    response = client.call(ApiKey.DESCRIBE_ACLS, version)
    assert (response.error_code, response.resources) == (SECURITY_DISABLED, ())
    assert response.error_message


@pytest.mark.parametrize("version", [1, 2, 3])
def test_gotcha_11_creating_says_it_for_each(client: FakeClient, version: int) -> None:
    response = client.call(ApiKey.CREATE_ACLS, version, creations=[CREATION, CREATION])
    assert [result.error_code for result in response.results] == [SECURITY_DISABLED] * 2


@pytest.mark.parametrize("version", [1, 2, 3])
def test_gotcha_11_deleting_says_it_for_each_filter(client: FakeClient, version: int) -> None:
    response = client.call(ApiKey.DELETE_ACLS, version, filters=[{}, {}, {}])
    assert [result.error_code for result in response.filter_results] == [SECURITY_DISABLED] * 3
