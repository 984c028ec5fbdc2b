"""JoinGroup through the broker."""

from typing import Any

import pytest

from tests.broker.handlers.classic_members import GROUP, Member, stable_group
from tests.broker.handlers.group_clients import find_coordinator, wait_loaded
from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def join(client: FakeClient, version: int = 9, **fields: Any) -> DecodedMessage:
    asked: dict[str, Any] = {
        "group_id": GROUP,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    }
    return client.call(ApiKey.JOIN_GROUP, version, **asked | fields)


@pytest.fixture
def client(machine: Machine) -> FakeClient:
    client = machine.client()
    find_coordinator(client)
    return client


@pytest.mark.parametrize("version", range(10))
def test_every_version_joins(client: FakeClient, version: int) -> None:
    answer = join(client, version)
    if version >= 4:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert answer.protocol_name == (None if version >= 7 else "")
        assert (answer.generation_id, answer.leader, answer.members) == (-1, "", ())
        answer = join(client, version, member_id=answer.member_id)
    assert answer.error_code == ErrorCode.NONE
    assert answer.member_id.startswith("test-"), "the client's id"
    assert (answer.generation_id, answer.leader, answer.protocol_name) == (1, answer.member_id, "range")
    ((member_id, metadata),) = [(member.member_id, member.metadata) for member in answer.members]
    assert (member_id, metadata) == (answer.member_id, b"m")
    if version >= 7:
        assert answer.protocol_type == "consumer"


def test_version_0_has_no_rebalance_time_out(client: FakeClient) -> None:
    join(client, 0, session_timeout_ms=7000)
    machine = client.machine.broker.coordinators.groups.shard_of(GROUP).machine
    assert machine is not None
    group: Any = machine.groups.find(GROUP)
    assert [member.rebalance_timeout_ms for member in group.members.values()] == [7000]
    assert [member.client_host for member in group.members.values()] == ["/127.0.0.1"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "g" * 40_000}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": -1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "x" * 40_000}, ErrorCode.INVALID_REQUEST),
        ({"group_instance_id": "x" * 40_000}, ErrorCode.INVALID_REQUEST),
        ({"protocols": [{"name": "x" * 40_000, "metadata": b""}]}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_bad_requests(client: FakeClient, fields: dict[str, Any], code: ErrorCode) -> None:
    answer = join(client, **fields)
    assert answer.error_code == code
    assert answer.member_id == fields.get("member_id", "")
    assert not client.machine.facts("unexpected_error")


def test_a_group_id_is_checked_before_there_is_a_coordinator(machine: Machine) -> None:
    assert join(machine.client(), group_id="").error_code == ErrorCode.INVALID_GROUP_ID
    assert join(machine.client()).error_code == ErrorCode.NOT_COORDINATOR


def test_a_static_member_restarts_without_a_rebalance(client: FakeClient) -> None:
    leader, follower = stable_group(client.machine, is_static=True)
    restarted = Member(client.machine, "orders", instance=follower.instance)
    restarted.joined(restarted.begin_join())
    assert restarted.generation == follower.generation
    assert restarted.send_sync().answer().assignment == follower.member_id.encode()
    assert leader.heartbeat() == ErrorCode.NONE
    assert follower.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    assert client.machine.crash() is None
    wait_loaded(client.machine)
    after = Member(client.machine, "orders", instance=follower.instance)
    after.member_id, after.generation = restarted.member_id, restarted.generation
    assert after.heartbeat() == ErrorCode.NONE


def test_a_leader_that_restarts_skips_the_assignment_from_version_9(client: FakeClient) -> None:
    members = stable_group(client.machine, is_static=True)
    for version, skips in ((8, False), (9, True)):
        restarted = Member(client.machine, "orders", instance=members[0].instance, version=version)
        answer = restarted.joined(restarted.begin_join())
        assert answer.skip_assignment is skips
        assert (answer.leader == answer.member_id) is skips
        assert len(answer.members) == (2 if skips else 0)


def test_a_join_that_waits_when_the_broker_stops_is_answered(client: FakeClient) -> None:
    """Or given up with its connection; it must not keep the broker from stopping."""
    leader, _ = stable_group(client.machine)
    waiting = leader.send_join()
    assert not waiting.is_answered
    assert client.machine.stop() is None


def test_many_joins_on_one_connection_are_all_answered(client: FakeClient) -> None:
    leader, follower = stable_group(client.machine)
    count = len(leader.client.replies)
    for _ in range(5):
        leader.send_join()
    follower.joined(follower.send_join())
    client.machine.run_until(lambda: len(leader.client.replies) == count + 5)
    assert not client.machine.facts("unexpected_error")
