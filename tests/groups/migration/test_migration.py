"""A group goes from the classic protocol to KIP-848 and back, with its members."""

from typing import Any

import pytest

from tests.groups.consumer.bench import GROUP, ConsumerBench, Member
from tests.groups.migration.bench import REBALANCE_MS, SESSION_MS, ClassicClient, classic_group, subscription
from tests.groups.shard_bench import topic_id
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.requests import LeaveResult, LeavingMember
from tidelog.groups.consumer.group import ConsumerGroup, MemberState
from tidelog.groups.consumer_protocol import decode_assignment, encode_assignment
from tidelog.groups.group import GroupType
from tidelog.groups.records import GroupMetadataRecord
from tidelog.wire.errors import ErrorCode

ORDERS = topic_id("orders")


def two_classic_members(settings: dict[str, Any] | None = None) -> tuple[ConsumerBench, ClassicClient, ClassicClient]:
    bench = ConsumerBench({"orders": 4}, settings)
    first, second = ClassicClient(bench), ClassicClient(bench, is_eager=True)
    classic_group(bench, first, second, assignments=[{"orders": (0, 1)}, {"orders": (2, 3)}])
    return bench, first, second


def kind(bench: ConsumerBench) -> GroupType:
    group = bench.machine.groups.find(GROUP)
    assert group is not None
    return group.type


def test_members_keep_what_they_have_when_the_first_of_the_new_kind_joins() -> None:
    bench, first, second = two_classic_members()
    generation = first.generation
    member = bench.join("new")
    assert kind(bench) is GroupType.CONSUMER
    members = bench.group.members
    assert members[first.member_id].assigned == {ORDERS: {0: generation, 1: generation}}
    assert members[first.member_id].member_epoch == generation
    assert (member.epoch, member.owned) == (generation + 1, {}), "others have to give up first"
    for _ in range(4):
        first.live()
        second.live()
        member.heartbeat()
    assert bench.group.state_name == "Stable"
    shares = [*first.owned["orders"], *second.owned["orders"], *member.indexes()]
    assert (sorted(shares), first.generation, second.generation) == ([0, 1, 2, 3], generation + 1, generation + 1)
    assert (set(first.owned["orders"]) <= {0, 1}, set(second.owned["orders"]) <= {2, 3}) == (True, True)
    described = bench.machine.consumer.describe(GROUP)["members"]
    assert [shown["member_type"] for shown in described] == [0, 0, 1]


def test_a_restart_after_the_upgrade() -> None:
    bench, first, second = two_classic_members()
    member = bench.join("new")
    before = dict(bench.group.members)
    bench.restart()
    assert (kind(bench), bench.group.members) == (GroupType.CONSUMER, before)
    for _ in range(4):
        first.live()
        second.live()
        member.heartbeat()
    assert bench.group.state_name == "Stable"


def test_who_waits_in_a_rebalance_joins_again() -> None:
    bench, first, second = two_classic_members()
    third = ClassicClient(bench)
    third.ask_to_join()
    assert third.joined == [], "it waits for the others"
    member = bench.join("new")
    assert [response.error for response in third.joined] == [ErrorCode.REBALANCE_IN_PROGRESS]
    for _ in range(5):
        first.live()
        second.live()
        member.heartbeat()
    assert bench.group.state_name == "Reconciling", "the one that waited has not come back, and holds nothing"
    bench.run_for(SESSION_MS + 1)
    assert not bench.group.members.keys() - {"new"}, "classic members have sessions of their own length"


def test_an_empty_classic_group_just_changes() -> None:
    bench, first, second = two_classic_members()
    first.leave()
    second.leave()
    assert (kind(bench), bench.join("new").indexes()) == (GroupType.CLASSIC, [0, 1, 2, 3])
    assert kind(bench) is GroupType.CONSUMER
    bench.members["new"].leave()
    client = ClassicClient(bench)
    client.ask_to_join()
    bench.run_for(1)
    assert (kind(bench), client.joined[-1].error) == (GroupType.CLASSIC, ErrorCode.NONE)
    bench.restart()
    assert kind(bench) is GroupType.CLASSIC


def test_the_last_of_the_new_kind_goes_and_the_others_are_a_classic_group_again() -> None:
    bench, first, second = two_classic_members()
    member = bench.join("new")
    for _ in range(4):
        first.live()
        second.live()
        member.heartbeat()
    epoch = bench.group.group_epoch
    targets = {name: bench.group.target[name] for name in (first.member_id, second.member_id)}
    member.leave()
    assert kind(bench) is GroupType.CLASSIC
    live = {(type(record), *record[:-1]): record for record in bench.records()}
    (written,) = [record for record in live.values() if record.value is not None]
    assert isinstance(written, GroupMetadataRecord)
    assert written.value is not None
    shares = {shown.member_id: decode_assignment(shown.assignment).partitions for shown in written.value.members}
    assert {name: {ORDERS: share["orders"]} for name, share in shares.items()} == targets
    timers = bench.machine.environment.timers
    assert ("member session", GROUP, first.member_id) not in timers, "its time-outs are the classic group's now"
    bench.run_for(1)
    group = bench.machine.groups.find(GROUP)
    assert isinstance(group, ClassicGroup)
    assert (group.state_name, group.generation, sorted(group.members)) == (
        "PreparingRebalance",
        epoch,
        sorted([first.member_id, second.member_id]),
    )
    assert [first.heartbeat(), second.heartbeat()] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    first.ask_to_join()
    second.ask_to_join()
    assert first.joined[-1].generation == second.joined[-1].generation == epoch + 1
    bench.restart()
    assert kind(bench) is GroupType.CLASSIC


def test_a_new_kind_of_member_whose_session_ends_is_the_last_one_too() -> None:
    bench, first, second = two_classic_members({"group.consumer.session.timeout.ms": 7_000})
    bench.join("new")
    bench.run_for(5_000)
    first.heartbeat()
    second.heartbeat()
    bench.run_for(2_001)
    assert kind(bench) is GroupType.CLASSIC


def test_a_static_member_comes_back_with_the_classic_protocol() -> None:
    bench = ConsumerBench()
    bench.join("new", instance_id="i")
    client = ClassicClient(bench, instance_id="i")
    assert client.join() is ErrorCode.NONE
    assert client.owned == {"orders": (0, 1, 2, 3)}
    bench.run_for(1)
    assert kind(bench) is GroupType.CLASSIC
    bench.run_for(1)
    client.live()
    bench.run_for(1)
    assert client.joined[-1].error is ErrorCode.NONE


def test_a_static_member_comes_back_with_the_new_protocol() -> None:
    bench = ConsumerBench()
    client = ClassicClient(bench, instance_id="i")
    classic_group(bench, client, assignments=[{"orders": (0, 1, 2, 3)}])
    member = bench.join("new", instance_id="i")
    bench.settle()
    assert (member.indexes(), list(bench.group.members)) == ([0, 1, 2, 3], ["new"])
    assert client.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize(
    ("policy", "may_upgrade", "may_downgrade"),
    [("bidirectional", True, True), ("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_the_policy(policy: str, may_upgrade: bool, may_downgrade: bool) -> None:
    settings = {"group.consumer.migration.policy": policy}
    bench, _, _ = two_classic_members(settings)
    if may_upgrade:
        bench.join("new")
        assert kind(bench) is GroupType.CONSUMER
    else:
        code, message = bench.refusal(join_request(bench))
        assert (code, "online upgrade is disabled" in message) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
        assert kind(bench) is GroupType.CLASSIC
    bench = ConsumerBench(settings=settings)
    bench.join("new")
    client = ClassicClient(bench)
    assert client.join() is (ErrorCode.INCONSISTENT_GROUP_PROTOCOL if policy == "disabled" else ErrorCode.NONE)
    bench.members["new"].leave()
    expected = GroupType.CLASSIC if may_downgrade and policy != "disabled" else GroupType.CONSUMER
    assert kind(bench) is expected


def join_request(bench: ConsumerBench) -> Any:
    return Member(bench, "new").request(rebalance_timeout_ms=1, subscribed_topic_names=["orders"], owned={})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("connect", "because the group does not use the consumer embedded protocol."),
        ("malformed", "because the embedded consumer protocol is malformed."),
        ("custom", "because an unsupported custom assignor is in use."),
        ("size", "because the group size exceeds the consumer group maximum size."),
    ],
)
def test_groups_that_cannot_be_upgraded(change: str, reason: str) -> None:
    bench, first, _ = two_classic_members({"group.consumer.max.size": 1} if change == "size" else None)
    group = bench.machine.groups.find(GROUP)
    assert isinstance(group, ClassicGroup)
    if change == "connect":
        group.protocol_type = "connect"
    elif change == "malformed":
        group.members[first.member_id].protocols = (("range", b"\0"),)
    elif change == "custom":
        group.members[first.member_id].assignment = encode_assignment({}, 1)[:-4] + b"\0\0\0\x01x"
    code, message = bench.refusal(join_request(bench))
    assert (code, message.split(". ")[0].rstrip(".") + ".") == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {GROUP} to consumer group {reason}",
    )


# -- classic members of a consumer group ----------------------------------------------------------------------------------------


def with_classic_member() -> tuple[ConsumerBench, ClassicClient]:
    bench = ConsumerBench()
    member = bench.join("new")
    client = ClassicClient(bench)
    assert client.join() is ErrorCode.NONE
    for _ in range(3):
        member.heartbeat()
        client.live()
    assert bench.group.state_name == "Stable"
    return bench, client


def test_a_classic_member_joins_a_consumer_group() -> None:
    bench, client = with_classic_member()
    assert sorted([*client.owned["orders"], *bench.members["new"].indexes()]) == [0, 1, 2, 3]
    joined = client.joined[-1]
    assert (joined.leader, joined.members, joined.protocol_type, joined.protocol_name) == ("", (), "consumer", "range")
    assert bench.group.members[client.member_id].classic is not None


def test_a_classic_member_hears_of_rebalances_and_gives_up_first() -> None:
    bench, client = with_classic_member()
    had = client.owned["orders"]
    other, another = bench.join("other"), bench.join("another")
    assert client.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    client.ask_to_sync()
    assert client.synced[-1].error is ErrorCode.REBALANCE_IN_PROGRESS
    client.ask_to_join()
    assert bench.group.members[client.member_id].state is MemberState.UNREVOKED_PARTITIONS, "it says that it has two"
    bench.members["new"].heartbeat()
    other.heartbeat()
    another.heartbeat()
    assert not {*other.indexes(), *another.indexes()} & set(had)
    for _ in range(4):
        client.live()
        for member in (bench.members["new"], other, another):
            member.heartbeat()
    assert bench.group.state_name == "Stable"
    assert set(client.owned["orders"]) <= set(had)
    shares = [*client.owned["orders"], *other.indexes(), *another.indexes(), *bench.members["new"].indexes()]
    assert sorted(shares) == [0, 1, 2, 3]


def test_member_ids_are_given_out_first() -> None:
    bench, _ = with_classic_member()
    client = ClassicClient(bench)
    client.ask_to_join(requires_known_member_id=True)
    assert (client.joined[-1].error, len(client.joined[-1].member_id)) == (ErrorCode.MEMBER_ID_REQUIRED, 36)
    client.member_id = client.joined[-1].member_id
    client.ask_to_join(requires_known_member_id=True)
    assert client.joined[-1].error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", subscription(["orders"])),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("range", b"\0"),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "i", "member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_joins_that_are_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    bench, _ = with_classic_member()
    client = ClassicClient(bench)
    client.ask_to_join(**fields)
    assert client.joined[-1].error is code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "new"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": None, "protocol_type": None}, ErrorCode.NONE),
    ],
)
def test_syncs(fields: dict[str, Any], code: ErrorCode) -> None:
    _, client = with_classic_member()
    client.ask_to_sync(**fields)
    assert client.synced[-1].error is code


def test_heartbeats_of_strangers() -> None:
    bench, client = with_classic_member()
    client.generation += 1
    assert client.heartbeat() is ErrorCode.ILLEGAL_GENERATION
    client.member_id = "new"
    assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.group.has_members


def test_classic_members_leave() -> None:
    bench, client = with_classic_member()
    leaving = [LeavingMember("x", None), LeavingMember("new", None), LeavingMember(client.member_id, None)]
    results = bench.call(lambda machine: machine.classic.leave(GROUP, [*leaving, leaving[-1]]))
    assert results == [
        LeaveResult("x", None, ErrorCode.UNKNOWN_MEMBER_ID),
        LeaveResult("new", None, ErrorCode.UNKNOWN_MEMBER_ID),
        LeaveResult(client.member_id, None, ErrorCode.NONE),
        LeaveResult(client.member_id, None, ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    bench.settle()
    assert bench.members["new"].indexes() == [0, 1, 2, 3]


def test_a_static_member_is_put_out_by_its_instance() -> None:
    bench, _ = with_classic_member()
    client = ClassicClient(bench, instance_id="i")
    client.join()
    results = bench.call(lambda machine: machine.classic.leave(GROUP, [LeavingMember("", "i")]))
    assert results == [LeaveResult(client.member_id, "i", ErrorCode.NONE)]


def test_who_does_not_join_again_in_time_is_put_out() -> None:
    bench, client = with_classic_member()
    bench.join("other")
    for _ in range(REBALANCE_MS // 5_000):
        assert client.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        bench.run_for(5_000)
    assert client.member_id not in bench.group.members


def test_who_joins_and_syncs_stays() -> None:
    bench, client = with_classic_member()
    for _ in range(2 * REBALANCE_MS // 5_000):
        client.live()
        bench.members["new"].heartbeat()
        bench.run_for(5_000)
    assert client.member_id in bench.group.members


def test_who_joins_and_does_not_sync_is_put_out() -> None:
    bench, _ = with_classic_member()
    client = ClassicClient(bench)
    client.ask_to_join()
    for _ in range(REBALANCE_MS // 5_000):
        client.heartbeat()
        bench.run_for(5_000)
    assert client.member_id not in bench.group.members
    assert isinstance(bench.machine.groups.find(GROUP), ConsumerGroup)
