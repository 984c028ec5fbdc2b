"""Heartbeat through the broker."""

from typing import Any

import pytest

from tests.broker.handlers.classic_members import Member, stable_group
from tests.broker.handlers.group_clients import find_coordinator
from tests.broker.harness import Machine
from tidelog.coordinator.shard import ShardState
from tidelog.wire.errors import ErrorCode


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    find_coordinator(machine.client())
    return machine


@pytest.mark.parametrize("version", range(5))
def test_every_version(machine: Machine, version: int) -> None:
    leader, follower = stable_group(machine)
    assert leader.heartbeat(version) == ErrorCode.NONE
    leader.send_join()
    assert follower.heartbeat(version) == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "other", "group_instance_id": None}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "other"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"group_instance_id": "i9"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 7}, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_bad_requests(machine: Machine, fields: dict[str, Any], code: ErrorCode) -> None:
    leader, _ = stable_group(machine, is_static=True)
    assert leader.heartbeat(**fields) == code


def test_a_silent_member_is_put_out_and_the_other_hears_of_it(machine: Machine) -> None:
    leader, follower = stable_group(machine)
    machine.run_for(9_000)
    assert leader.heartbeat() == ErrorCode.NONE
    machine.run_for(2_000)
    assert leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert follower.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_while_the_group_is_loaded_there_is_nothing_to_do(machine: Machine) -> None:
    (old,) = stable_group(machine, 1)
    assert machine.restart() is None
    member = Member(machine)
    member.member_id, member.generation = old.member_id, old.generation
    shard = machine.broker.coordinators.groups.shard_of("g")
    assert shard.state is ShardState.LOADING
    assert member.heartbeat() == ErrorCode.NONE
    machine.run_until(lambda: shard.state is ShardState.ACTIVE)
    assert member.heartbeat() == ErrorCode.NONE


def test_without_a_coordinator() -> None:
    member = Member(Machine())
    assert member.heartbeat() == ErrorCode.NOT_COORDINATOR
