"""DeleteGroups through the broker."""

import pytest

from tests.broker.handlers.classic_members import GROUP, stable_group
from tests.broker.handlers.group_clients import commit, committed, find_coordinator, wait_loaded
from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


@pytest.fixture
def client(machine: Machine) -> FakeClient:
    client = machine.client()
    client.create_topic("orders", 3)
    find_coordinator(client)
    return client


@pytest.mark.parametrize("version", range(3))
def test_each_group_by_itself(client: FakeClient, version: int) -> None:
    stable_group(client.machine)
    commit(client, {"orders": {0: 7}}, group_id="offsets")
    asked = ["none", GROUP, "offsets", ""]
    results = client.call(ApiKey.DELETE_GROUPS, version, groups_names=asked).results
    assert [(result.group_id, result.error_code) for result in results] == [
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
        (GROUP, ErrorCode.NON_EMPTY_GROUP),
        ("offsets", ErrorCode.NONE),
        ("", ErrorCode.GROUP_ID_NOT_FOUND),
    ]


def test_what_is_deleted_stays_deleted(client: FakeClient) -> None:
    (member,) = stable_group(client.machine, 1)
    commit(client, {"orders": {0: 7, 1: 8}}, group_id=GROUP, member_id=member.member_id, generation=member.generation)
    left = client.call(
        ApiKey.LEAVE_GROUP, 5, group_id=GROUP, members=[{"member_id": member.member_id, "group_instance_id": None}]
    )
    assert left.error_code == ErrorCode.NONE
    assert committed(client, group_id=GROUP) == 7
    (result,) = client.call(ApiKey.DELETE_GROUPS, 2, groups_names=[GROUP]).results
    assert result.error_code == ErrorCode.NONE
    assert client.machine.crash() is None
    wait_loaded(client.machine)
    fresh = client.machine.client()
    assert committed(fresh, group_id=GROUP) == -1
    (group,) = fresh.call(ApiKey.DESCRIBE_GROUPS, 6, groups=[GROUP]).groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_with_more_offsets_than_fit_into_a_batch(client: FakeClient) -> None:
    """Long names, so that not many are needed."""
    group_id = "g" * 20_000
    client.create_topic("many", 100)
    commit(client, {"many": dict.fromkeys(range(40), 5)}, group_id=group_id)
    commit(client, {"many": dict.fromkeys(range(40, 80), 5)}, group_id=group_id)
    (result,) = client.call(ApiKey.DELETE_GROUPS, 2, groups_names=[group_id]).results
    assert result.error_code == ErrorCode.NONE
    assert committed(client, "many", 79, group_id) == -1
    (group,) = client.call(ApiKey.DESCRIBE_GROUPS, 5, groups=[group_id]).groups
    assert group.group_state == "Dead"


def test_a_group_deleted_under_a_member_that_is_gone(client: FakeClient) -> None:
    """Its consumer, which comes back, hears that it is unknown, and joins again."""
    (member,) = stable_group(client.machine, 1)
    client.machine.run_for(11_000)
    (result,) = client.call(ApiKey.DELETE_GROUPS, 2, groups_names=[GROUP]).results
    assert result.error_code == ErrorCode.NONE
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.send_join().answer().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    member.member_id = ""
    member.joined(member.begin_join())


def test_without_a_coordinator(machine: Machine) -> None:
    (result,) = machine.client().call(ApiKey.DELETE_GROUPS, 2, groups_names=[GROUP]).results
    assert result.error_code == ErrorCode.NOT_COORDINATOR
