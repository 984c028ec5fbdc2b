"""Wrong turns, and the exact code that Kafka gives for each.

The group has two static members, is stable in generation 1, and was asked in no other way; ``fresh`` is empty and has an id that
is pending.
"""

from collections.abc import Callable

import pytest

from tests.groups.classic.bench import GroupBench, Join, Sync
from tidelog.wire.errors import ErrorCode

STICKY = (("sticky", b""),)


class Wrong:
    def __init__(self) -> None:
        self.bench = bench = GroupBench()
        self.leader, self.follower = bench.stable(2, instances=True)
        self.pending = bench.join(group_id="fresh").response.member_id


def code_of(asked: Join | Sync) -> ErrorCode:
    assert asked.code is not None
    return asked.code


JOINS: dict[str, tuple[Callable[[Wrong], Join], ErrorCode]] = {
    "unknown group, known id": (lambda w: w.bench.join("me", group_id="none"), ErrorCode.UNKNOWN_MEMBER_ID),
    "unknown member": (lambda w: w.bench.join("me"), ErrorCode.UNKNOWN_MEMBER_ID),
    "unknown instance with an id": (lambda w: w.bench.join(w.leader, "instance-9"), ErrorCode.UNKNOWN_MEMBER_ID),
    "another member's instance": (lambda w: w.bench.join(w.leader, "instance-1"), ErrorCode.FENCED_INSTANCE_ID),
    "member of an empty group": (lambda w: w.bench.join("me", group_id="fresh"), ErrorCode.UNKNOWN_MEMBER_ID),
    "other protocol type": (lambda w: w.bench.join(protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "no common protocol": (lambda w: w.bench.join(protocols=STICKY), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "no common protocol, known": (
        lambda w: w.bench.join(w.leader, "instance-0", protocols=STICKY),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "no protocols": (lambda w: w.bench.join(protocols=()), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "new group, no protocols": (
        lambda w: w.bench.join(protocols=(), group_id="new"),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "new group, no protocol type": (
        lambda w: w.bench.join(protocol_type="", group_id="new"),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "empty group, no protocol type": (
        lambda w: w.bench.join(w.pending, protocol_type="", group_id="fresh"),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "a pending id as a static member": (
        lambda w: w.bench.join(w.pending, "instance-0", group_id="fresh"),
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ),
    "no id yet": (lambda w: w.bench.join(), ErrorCode.MEMBER_ID_REQUIRED),
}

SYNCS: dict[str, tuple[Callable[[Wrong], Sync], ErrorCode]] = {
    "unknown group": (lambda w: w.bench.sync("me", 1, group_id="none"), ErrorCode.UNKNOWN_MEMBER_ID),
    "empty group": (lambda w: w.bench.sync(w.pending, 0, group_id="fresh"), ErrorCode.UNKNOWN_MEMBER_ID),
    "unknown member": (lambda w: w.bench.sync("me", 1), ErrorCode.UNKNOWN_MEMBER_ID),
    "fenced instance": (lambda w: w.bench.sync(w.leader, 1, instance="instance-1"), ErrorCode.FENCED_INSTANCE_ID),
    "unknown instance": (lambda w: w.bench.sync(w.leader, 1, instance="instance-9"), ErrorCode.UNKNOWN_MEMBER_ID),
    "fenced before generation": (lambda w: w.bench.sync(w.leader, 9, instance="instance-1"), ErrorCode.FENCED_INSTANCE_ID),
    "older generation": (lambda w: w.bench.sync(w.leader, 0), ErrorCode.ILLEGAL_GENERATION),
    "newer generation": (lambda w: w.bench.sync(w.leader, 2), ErrorCode.ILLEGAL_GENERATION),
    "other protocol type": (
        lambda w: w.bench.sync(w.leader, 1, protocol_type="connect", protocol_name="range"),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "other protocol": (
        lambda w: w.bench.sync(w.leader, 1, protocol_type="consumer", protocol_name="sticky"),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "generation before protocol": (lambda w: w.bench.sync(w.leader, 2, protocol_type="connect"), ErrorCode.ILLEGAL_GENERATION),
}

HEARTBEATS: dict[str, tuple[Callable[[Wrong], ErrorCode], ErrorCode]] = {
    "unknown group": (lambda w: w.bench.heartbeat("me", 1, group_id="none"), ErrorCode.UNKNOWN_MEMBER_ID),
    "empty group": (lambda w: w.bench.heartbeat("me", 0, group_id="fresh"), ErrorCode.UNKNOWN_MEMBER_ID),
    "unknown member": (lambda w: w.bench.heartbeat("me", 1), ErrorCode.UNKNOWN_MEMBER_ID),
    "fenced instance": (lambda w: w.bench.heartbeat(w.leader, 1, "instance-1"), ErrorCode.FENCED_INSTANCE_ID),
    "unknown instance": (lambda w: w.bench.heartbeat(w.leader, 1, "instance-9"), ErrorCode.UNKNOWN_MEMBER_ID),
    "older generation": (lambda w: w.bench.heartbeat(w.leader, 0), ErrorCode.ILLEGAL_GENERATION),
    "newer generation": (lambda w: w.bench.heartbeat(w.leader, 2), ErrorCode.ILLEGAL_GENERATION),
    "right": (lambda w: w.bench.heartbeat(w.leader, 1, "instance-0"), ErrorCode.NONE),
}


@pytest.mark.parametrize("case", JOINS)
def test_join(case: str) -> None:
    ask, code = JOINS[case]
    assert code_of(ask(Wrong())) is code


@pytest.mark.parametrize("case", SYNCS)
def test_sync(case: str) -> None:
    ask, code = SYNCS[case]
    assert code_of(ask(Wrong())) is code


@pytest.mark.parametrize("case", HEARTBEATS)
def test_heartbeat(case: str) -> None:
    ask, code = HEARTBEATS[case]
    assert ask(Wrong()) is code


def test_sync_and_heartbeat_in_each_state_of_a_rebalance() -> None:
    wrong = Wrong()
    bench = wrong.bench
    bench.join(wrong.leader, "instance-0")
    assert bench.sync(wrong.follower, 1).code is ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(wrong.follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    bench.join(wrong.follower, "instance-1")
    assert bench.heartbeat(wrong.follower, 1) is ErrorCode.ILLEGAL_GENERATION
    assert bench.heartbeat(wrong.follower, 2) is ErrorCode.NONE, "while the leader assigns there is nothing to do"
    assert bench.sync(wrong.follower, 1).code is ErrorCode.ILLEGAL_GENERATION


def test_leave_of_a_group_that_does_not_exist() -> None:
    (result,) = GroupBench().leave(("me", None))
    assert result.error is ErrorCode.UNKNOWN_MEMBER_ID
