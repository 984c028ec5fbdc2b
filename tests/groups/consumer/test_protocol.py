"""Members that join, change and go, as heartbeats show it."""

import pytest

from tests.groups.consumer.bench import GROUP, REBALANCE_MS, SESSION_MS, ConsumerBench
from tests.groups.shard_bench import topic_id
from tidelog.config.groups import METADATA_BYTES_MAX, METADATA_BYTES_TOTAL_MAX
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.consumer.group import MemberState
from tidelog.groups.consumer.requests import ConsumerHeartbeatRequest
from tidelog.groups.records import (
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupMemberMetadataRecord,
    ConsumerGroupMetadataRecord,
    ConsumerGroupTargetAssignmentMemberRecord,
    ConsumerGroupTargetAssignmentMetadataRecord,
)
from tidelog.wire.errors import ErrorCode

ORDERS = topic_id("orders")


def test_the_first_member_gets_everything_at_once(bench: ConsumerBench) -> None:
    member = bench.join("a")
    assert (member.epoch, member.indexes()) == (1, [0, 1, 2, 3])
    assert bench.group.state_name == "Stable"


def test_a_join_is_written_as_kafka_writes_it(bench: ConsumerBench) -> None:
    bench.join("a", client_id="client", client_host="/127.0.0.1", rack_id="east", server_assignor="range")
    metadata, epoch, target, target_epoch, current = bench.records()
    assert type(metadata) is ConsumerGroupMemberMetadataRecord
    value = (None, "east", "client", "/127.0.0.1", ("orders",), None, REBALANCE_MS, "range", None)
    assert metadata == (GROUP, "a", value)
    assert (type(epoch), epoch.value.epoch) == (ConsumerGroupMetadataRecord, 1)
    assert epoch.value.metadata_hash == bench.group.metadata_hash != 0
    assert type(target) is ConsumerGroupTargetAssignmentMemberRecord
    assert target == (GROUP, "a", (((ORDERS, (0, 1, 2, 3)),),))
    assert (type(target_epoch), target_epoch.value) == (ConsumerGroupTargetAssignmentMetadataRecord, (1, bench.clock.now_ms()))
    assert type(current) is ConsumerGroupCurrentMemberAssignmentRecord
    assert current == (GROUP, "a", (1, 0, MemberState.STABLE, ((ORDERS, (0, 1, 2, 3), (1, 1, 1, 1)),), ()))


def test_a_heartbeat_that_changes_nothing_writes_nothing_and_says_little(bench: ConsumerBench) -> None:
    member = bench.join("a")
    end_offset = bench.log.end_offset
    assert member.heartbeat().assignment is None
    assert member.send(owned=None).assignment is None
    assert bench.log.end_offset == end_offset


def test_a_full_heartbeat_is_told_everything(bench: ConsumerBench) -> None:
    """A client that does not know what it missed."""
    member = bench.join("a")
    full = member.heartbeat(rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=["orders"])
    assert full.assignment == {ORDERS: (0, 1, 2, 3)}


def test_partitions_are_given_up_before_somebody_else_gets_them(bench: ConsumerBench) -> None:
    first, second = bench.join("a"), bench.join("b")
    assert (second.epoch, second.indexes()) == (2, []), "it waits, in the new epoch"
    assert bench.group.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    response = first.send(owned=first.owned)
    assert (response.member_epoch, response.assignment) == (1, {ORDERS: (0, 1)}), "it stays in its epoch to give up two"
    assert bench.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    second.heartbeat()
    assert second.indexes() == [], "not yet"
    # A heartbeat that does not say what the member has confirms nothing.
    assert first.send(owned=None).member_epoch == 1
    response = first.heartbeat()
    assert (response.member_epoch, response.assignment) == (2, None)
    second.heartbeat()
    assert (first.indexes(), second.indexes()) == ([0, 1], [2, 3])
    assert bench.group.state_name == "Stable"


def test_an_assignment_is_told_until_the_member_says_that_it_has_it(bench: ConsumerBench) -> None:
    """In the same epoch nothing else would tell a client that it has missed an answer."""
    first, second = bench.join("a"), bench.join("b")
    assert bench.heartbeat(first.request()).assignment == {ORDERS: (0, 1)}
    # The client did not get that, and goes on.
    assert bench.heartbeat(first.request()).assignment == {ORDERS: (0, 1)}
    assert bench.heartbeat(first.request(owned=first.owned)).assignment == {ORDERS: (0, 1)}
    first.send()
    assert first.heartbeat().assignment is None
    # And the other way round: it was given more, without a new epoch.
    assert bench.heartbeat(second.request()).assignment == {ORDERS: (2, 3)}
    assert bench.heartbeat(second.request()).assignment == {ORDERS: (2, 3)}
    second.send()
    assert second.heartbeat().assignment is None
    assert second.send().assignment is None
    assert (first.indexes(), second.indexes(), bench.group.state_name) == ([0, 1], [2, 3], "Stable")


def test_after_a_restart_a_member_that_has_something_else_is_told_what_it_should_have(bench: ConsumerBench) -> None:
    first, _ = bench.join("a"), bench.join("b")
    bench.heartbeat(first.request())
    bench.restart()
    assert bench.heartbeat(first.request(owned=first.owned)).assignment == {ORDERS: (0, 1)}
    assert bench.heartbeat(first.request()).assignment == {ORDERS: (0, 1)}


def test_who_needs_not_give_up_anything_goes_on() -> None:
    bench = ConsumerBench({"orders": 4, "prices": 1})
    first, second = bench.join("a", ["orders"]), bench.join("b", ["prices"])
    assert first.heartbeat().assignment is None
    assert (first.epoch, second.epoch) == (2, 2)
    assert second.partitions == [("prices", 0)]


def test_a_lost_answer_is_repeated(bench: ConsumerBench) -> None:
    first, second = bench.join("a"), bench.join("b")
    first.heartbeat()
    bench.heartbeat(first.request(owned=first.owned))
    assert bench.group.members["a"].member_epoch == 2
    assert first.heartbeat().member_epoch == 2, "it came with epoch 1 again"
    second.heartbeat()
    assert second.indexes() == [2, 3]


@pytest.mark.parametrize("owned", [None, {ORDERS: frozenset({0, 1, 2})}, {topic_id("x"): frozenset({0})}])
def test_one_epoch_behind_with_too_much_is_fenced(bench: ConsumerBench, owned: dict[bytes, frozenset[int]] | None) -> None:
    first, _ = bench.join("a"), bench.join("b")
    first.heartbeat()
    bench.heartbeat(first.request(owned=first.owned))
    code, message = bench.refusal(first.request(owned=owned))
    assert code is ErrorCode.FENCED_MEMBER_EPOCH
    assert message == (
        "The consumer group member has a smaller member epoch (1) than the one known by the group coordinator (2). "
        "The member must abandon all its partitions and rejoin."
    )


def test_an_epoch_ahead_is_fenced(bench: ConsumerBench) -> None:
    member = bench.join("a")
    code, message = bench.refusal(member.request(member_epoch=9, owned=member.owned))
    assert (code, "greater member epoch (9)" in message) == (ErrorCode.FENCED_MEMBER_EPOCH, True)


def test_who_is_not_a_member(bench: ConsumerBench) -> None:
    bench.join("a")
    stranger = bench.members["a"].request(member_epoch=1)._replace(member_id="x")
    refused = (ErrorCode.UNKNOWN_MEMBER_ID, f"Member x is not a member of group {GROUP}.")
    assert bench.refusal(stranger) == refused
    assert bench.refusal(stranger._replace(member_epoch=-1)) == refused


def test_a_fenced_member_that_joins_again_goes_on_with_what_it_has(bench: ConsumerBench) -> None:
    member = bench.join("a")
    response = member.join()
    assert (response.member_epoch, response.assignment) == (1, {ORDERS: (0, 1, 2, 3)})


def test_what_a_member_leaves_goes_to_the_others(bench: ConsumerBench) -> None:
    first, second = bench.join("a"), bench.join("b")
    bench.settle()
    second.leave()
    assert "b" not in bench.group.members
    assert bench.group.state_name == "Assigning", "the next heartbeat computes"
    first.heartbeat()
    assert (first.epoch, first.indexes()) == (3, [0, 1, 2, 3])


def test_more_members_than_partitions() -> None:
    bench = ConsumerBench({"orders": 1})
    first, second = bench.join("a"), bench.join("b")
    bench.settle()
    assert (first.indexes(), second.indexes()) == ([0], [])
    first.leave()
    bench.settle()
    assert second.indexes() == [0]


def test_the_assignor_that_most_members_ask_for() -> None:
    bench = ConsumerBench({"orders": 2, "prices": 2})
    members = [bench.join(name, ["orders", "prices"], server_assignor="range") for name in "ab"]
    bench.join("c", ["orders", "prices"])
    bench.settle()
    assert members[0].partitions == [("orders", 0), ("prices", 0)]
    assert bench.machine.consumer.describe(GROUP)["assignor_name"] == "range"


def test_an_assignor_that_only_another_broker_had(bench: ConsumerBench) -> None:
    member = bench.join("a")
    foreign = bench.group.members["a"]._replace(server_assignor="com.example.Best").metadata()
    bench.call(lambda machine: CoordinatorResult([ConsumerGroupMemberMetadataRecord(GROUP, "a", foreign)]))
    bench.grow_topic("orders", 5)
    member.heartbeat()
    assert member.indexes() == [0, 1, 2, 3, 4]


def test_a_changed_subscription_takes_what_is_no_longer_wanted_at_once() -> None:
    bench = ConsumerBench({"orders": 2, "prices": 2})
    member = bench.join("a", ["orders", "prices"])
    response = member.heartbeat(subscribed_topic_names=["prices"])
    assert response.assignment == {topic_id("prices"): (0, 1)}
    bench.settle()
    assert bench.group.group_epoch == member.epoch == 2


def test_a_session_ends(bench: ConsumerBench) -> None:
    first, _ = bench.join("a"), bench.join("b")
    bench.settle()
    bench.run_for(SESSION_MS - 1000)
    first.heartbeat()
    bench.run_for(2000)
    assert list(bench.group.members) == ["a"]
    assert bench.events[-1] == (
        "consumer_group_member_fenced",
        {"group": GROUP, "member": "b", "reason": "the member session expired"},
    )
    first.heartbeat()
    assert first.indexes() == [0, 1, 2, 3]
    bench.run_for(SESSION_MS - 3000)
    assert list(bench.group.members) == ["a"], "its deadline has moved"
    bench.run_for(4000)
    assert (bench.group.members, bench.group.state_name) == ({}, "Empty")


def test_who_does_not_give_up_in_time_is_put_out(bench: ConsumerBench) -> None:
    first, second = bench.join("a"), bench.join("b")
    first.send(owned=first.owned)
    for _ in range(REBALANCE_MS // 10_000):
        bench.run_for(10_000)
        with_everything = first.request(owned={ORDERS: frozenset(range(4))})
        if "a" in bench.group.members:
            bench.heartbeat(with_everything)
        second.heartbeat()
    assert list(bench.group.members) == ["b"]
    assert bench.events[-1][1]["reason"] == f"it failed to transition from epoch 1 within {REBALANCE_MS} ms"
    second.heartbeat()
    assert second.indexes() == [0, 1, 2, 3]
    assert bench.refusal(with_everything)[0] is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_gives_up_in_time_stays(bench: ConsumerBench) -> None:
    first, second = bench.join("a"), bench.join("b")
    first.heartbeat()
    bench.run_for(REBALANCE_MS - 1)
    first.heartbeat()
    second.heartbeat()
    bench.run_for(5000)
    assert sorted(bench.group.members) == ["a", "b"]


def test_rebalances_are_counted_and_timed(bench: ConsumerBench) -> None:
    first = bench.join("a")
    bench.join("b")
    bench.run_for(700)
    bench.settle()
    assert bench.machine.consumer.rebalances == 2
    assert (bench.group.rebalances, bench.group.rebalance_ms_last, bench.group.rebalance_ms_total) == (2, 700, 700)
    assert first.indexes() == [0, 1]


def test_a_group_that_has_members_is_not_deleted(bench: ConsumerBench) -> None:
    bench.join("a")
    with pytest.raises(ApiError) as refused:
        bench.group.check_deletion()
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP


def test_what_members_subscribe_to_is_bounded() -> None:
    bench = ConsumerBench(settings={METADATA_BYTES_MAX: 2_000, METADATA_BYTES_TOTAL_MAX: 3_000})
    budget = bench.machine.environment.metadata_budget

    def join(name: str, size: int, group_id: str = GROUP) -> ErrorCode:
        request = ConsumerHeartbeatRequest(
            group_id, name, 0, rebalance_timeout_ms=1_000, subscribed_topic_names=["x" * size], owned={}
        )
        try:
            bench.heartbeat(request)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    assert join("a", 900) is ErrorCode.NONE
    assert 900 < budget.bytes_held < 1_100
    assert join("b", 1_900) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert join("a", 2_100) is ErrorCode.GROUP_MAX_SIZE_REACHED, "nor may one that is there grow"
    assert join("a", 1_900) is ErrorCode.NONE
    assert join("c", 1_200, "others") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    held = budget.bytes_held
    bench.restart()
    assert bench.machine.environment.metadata_budget.bytes_held == held
    assert bench.heartbeat(ConsumerHeartbeatRequest(GROUP, "a", -1)).member_epoch == -1
    assert bench.machine.environment.metadata_budget.bytes_held == 0
    join("a", 10)
    budget = bench.machine.environment.metadata_budget
    bench.shard.drop(RuntimeError("the leader changed"))
    assert budget.bytes_held == 0
