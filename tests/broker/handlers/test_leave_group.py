"""LeaveGroup through the broker."""

import pytest

from tests.broker.handlers.classic_members import GROUP, stable_group
from tests.broker.handlers.group_clients import find_coordinator
from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


@pytest.fixture
def client(machine: Machine) -> FakeClient:
    client = machine.client()
    find_coordinator(client)
    return client


@pytest.mark.parametrize("version", range(3))
def test_one_member_per_request(client: FakeClient, version: int) -> None:
    leader, follower = stable_group(client.machine)
    assert client.call(ApiKey.LEAVE_GROUP, version, group_id=GROUP, member_id=leader.member_id).error_code == ErrorCode.NONE
    assert follower.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    for group_id in (GROUP, "none"):
        answer = client.call(ApiKey.LEAVE_GROUP, version, group_id=group_id, member_id=leader.member_id)
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.call(ApiKey.LEAVE_GROUP, version, group_id="", member_id="me").error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(3, 6))
def test_several_members_each_with_its_error(client: FakeClient, version: int) -> None:
    leader, follower, _ = stable_group(client.machine, 3, is_static=True)
    members = [
        {"member_id": leader.member_id, "group_instance_id": leader.instance},
        {"member_id": "", "group_instance_id": follower.instance},
        {"member_id": "me", "group_instance_id": None},
        {"member_id": "me", "group_instance_id": "i2"},
    ]
    answer = client.call(ApiKey.LEAVE_GROUP, version, group_id=GROUP, members=members)
    assert answer.error_code == ErrorCode.NONE
    assert [(member.member_id, member.group_instance_id, member.error_code) for member in answer.members] == [
        (leader.member_id, leader.instance, ErrorCode.NONE),
        ("", follower.instance, ErrorCode.NONE),
        ("me", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("me", "i2", ErrorCode.FENCED_INSTANCE_ID),
    ]


def test_a_group_that_does_not_exist(client: FakeClient) -> None:
    members = [{"member_id": "me", "group_instance_id": None}]
    answer = client.call(ApiKey.LEAVE_GROUP, 5, group_id="none", members=members)
    assert (answer.error_code, [member.error_code for member in answer.members]) == (0, [ErrorCode.UNKNOWN_MEMBER_ID])
    assert client.call(ApiKey.LEAVE_GROUP, 5, group_id="", members=members).error_code == ErrorCode.INVALID_GROUP_ID


def test_without_a_coordinator(machine: Machine) -> None:
    answer = machine.client().call(
        ApiKey.LEAVE_GROUP, 5, group_id=GROUP, members=[{"member_id": "me", "group_instance_id": None}]
    )
    assert (answer.error_code, answer.members) == (ErrorCode.NOT_COORDINATOR, ())
