"""SyncGroup through the broker."""

from typing import Any

import pytest

from tests.broker.handlers.classic_members import Member, stable_group
from tests.broker.handlers.group_clients import find_coordinator, wait_loaded
from tests.broker.harness import Machine
from tidelog.wire.errors import ErrorCode


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    find_coordinator(machine.client())
    return machine


@pytest.mark.parametrize("version", range(6))
def test_every_version_gets_its_assignment(machine: Machine, version: int) -> None:
    member = Member(machine, "orders")
    member.joined(member.begin_join())
    answer = member.send_sync({member.member_id: b"mine"}, version).answer()
    assert (answer.error_code, answer.assignment) == (ErrorCode.NONE, b"mine")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "other"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"member_id": "other", "group_instance_id": None}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "i9"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "i1"}, ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_bad_requests(machine: Machine, fields: dict[str, Any], code: ErrorCode) -> None:
    leader, _ = stable_group(machine, is_static=True)
    answer = leader.send_sync(**fields).answer()
    assert (answer.error_code, answer.assignment) == (code, b"")


def test_an_assignment_that_was_heard_of_survives_a_crash(machine: Machine) -> None:
    members = stable_group(machine, 3)
    assert machine.crash() is None
    wait_loaded(machine)
    for old in members:
        member = Member(machine)
        member.member_id, member.generation = old.member_id, old.generation
        assert member.heartbeat() == ErrorCode.NONE
        assert member.send_sync().answer().assignment == old.member_id.encode()


def test_an_assignment_that_is_too_large_is_an_error_for_everybody(machine: Machine) -> None:
    leader, follower = stable_group(machine)
    joins = [leader.send_join(), follower.send_join()]
    for member, waiting in zip((leader, follower), joins, strict=True):
        member.joined(waiting)
    waiting = follower.send_sync()
    assert leader.send_sync({leader.member_id: b"x" * 2_000_000}).answer().error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert waiting.answer().error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert machine.facts("group_metadata_too_large")
    assert not machine.facts("unexpected_error")
    joins = [leader.send_join(), follower.send_join()]
    for member, again in zip((leader, follower), joins, strict=True):
        member.joined(again)
