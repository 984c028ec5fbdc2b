"""DescribeGroups through the broker."""

import pytest

from tests.broker.handlers.classic_members import GROUP, stable_group
from tests.broker.handlers.group_clients import commit, find_coordinator, subscription
from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

NOT_ASKED_FOR = -(2**31)


@pytest.fixture
def client(machine: Machine) -> FakeClient:
    client = machine.client()
    find_coordinator(client)
    return client


@pytest.mark.parametrize("version", range(7))
def test_a_stable_group_in_every_version(client: FakeClient, version: int) -> None:
    members = stable_group(client.machine, is_static=True)
    (group,) = client.call(ApiKey.DESCRIBE_GROUPS, version, groups=[GROUP]).groups
    assert (group.error_code, group.group_id, group.group_state) == (0, GROUP, "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    shown = {member.member_id: member for member in group.members}
    assert shown.keys() == {member.member_id for member in members}
    for member in members:
        described = shown[member.member_id]
        assert (described.client_id, described.client_host) == ("test", "/127.0.0.1")
        assert described.member_metadata == subscription("orders")
        assert described.member_assignment == member.member_id.encode()
        assert described.group_instance_id == (member.instance if version >= 4 else None)
    assert group.authorized_operations == NOT_ASKED_FOR


@pytest.mark.parametrize("version", range(7))
def test_a_group_that_does_not_exist(client: FakeClient, version: int) -> None:
    (group,) = client.call(ApiKey.DESCRIBE_GROUPS, version, groups=["none"]).groups
    assert (group.group_id, group.group_state, group.members) == ("none", "Dead", ())
    assert group.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
    if version >= 6:
        assert group.error_message == "Group none is not found."


def test_several_groups_in_the_order_of_the_request(client: FakeClient) -> None:
    client.create_topic("orders")
    stable_group(client.machine, 1)
    commit(client, {"orders": {0: 1}}, group_id="offsets")
    asked = ["none", GROUP, "offsets", ""]
    groups = client.call(ApiKey.DESCRIBE_GROUPS, 5, groups=asked).groups
    assert [(group.group_id, group.group_state) for group in groups] == [
        ("none", "Dead"),
        (GROUP, "Stable"),
        ("offsets", "Empty"),
        ("", "Dead"),
    ]
    assert client.call(ApiKey.DESCRIBE_GROUPS, 5, groups=[]).groups == ()


def test_what_one_may_do_with_a_group(client: FakeClient) -> None:
    stable_group(client.machine, 1)
    (group,) = client.call(ApiKey.DESCRIBE_GROUPS, 5, groups=[GROUP], include_authorized_operations=True).groups
    operations = (3, 6, 8, 10, 11)  # Read, delete, describe, describe and alter configs.
    assert group.authorized_operations == sum(1 << operation for operation in operations)


def test_without_a_coordinator(machine: Machine) -> None:
    (group,) = machine.client().call(ApiKey.DESCRIBE_GROUPS, 6, groups=[GROUP]).groups
    assert (group.group_id, group.error_code) == (GROUP, ErrorCode.NOT_COORDINATOR)
