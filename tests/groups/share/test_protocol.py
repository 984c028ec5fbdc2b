"""Share groups on one shard: joining, states that have to begin first, leaving, time-outs, reloads, and what is refused."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.groups.shard_bench import ShardBench, topic_id
from tidelog.config.groups import METADATA_BYTES_MAX, METADATA_BYTES_TOTAL_MAX
from tidelog.controller.errors import ApiError
from tidelog.groups.consumer.requests import ConsumerHeartbeatRequest
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.share.group import ShareGroup, TopicState
from tidelog.groups.share.protocol import ShareHeartbeatRequest, ShareHeartbeatResponse
from tidelog.wire.errors import ErrorCode

GROUP = "jobs"
ORDERS = topic_id("orders")


class ShareBench(ShardBench[GroupCoordinator]):
    def __init__(self, **settings: Any) -> None:
        super().__init__(GroupCoordinator, settings, topics={"orders": 2})
        self.load()

    def beat(
        self, member_id: str, epoch: int, topics: Sequence[str] | None = None, group_id: str = GROUP, **fields: Any
    ) -> ShareHeartbeatResponse:
        request = ShareHeartbeatRequest(group_id, member_id, epoch, subscribed_topic_names=topics, **fields)
        response = self.call(lambda machine: machine.share.heartbeat(request))
        assert isinstance(response, ShareHeartbeatResponse)
        return response

    def initialize(self, response: ShareHeartbeatResponse) -> None:
        assert response.initialization is not None
        topics = response.initialization.topics
        self.call(lambda machine: machine.share.states_initialized(GROUP, topics))

    def refusal(self, *arguments: Any, **fields: Any) -> ErrorCode:
        with pytest.raises(ApiError) as raised:
            self.beat(*arguments, **fields)
        return raised.value.code

    @property
    def group(self) -> ShareGroup:
        found = self.machine.groups.find(GROUP)
        assert isinstance(found, ShareGroup)
        return found


@pytest.fixture
def bench() -> ShareBench:
    return ShareBench()


def test_partitions_are_assigned_once_their_states_have_begun(bench: ShareBench) -> None:
    response = bench.beat("a", 0, ["orders"])
    assert (response.member_epoch, response.assignment, response.heartbeat_interval_ms) == (1, {}, 5_000)
    assert response.initialization == (GROUP, 1, {ORDERS: TopicState("orders", (0, 1))})
    assert bench.beat("a", 1).initialization is None, "once is enough"
    bench.initialize(response)
    response = bench.beat("a", 1)
    assert (response.member_epoch, response.assignment) == (2, {ORDERS: (0, 1)})
    assert bench.beat("a", 2).assignment is None
    assert bench.beat("a", 2, ["orders"]).assignment == {ORDERS: (0, 1)}, "a full request gets a full answer"
    assert bench.group.state_name == "Stable"


def test_members_share_partitions_and_get_back_what_others_leave(bench: ShareBench) -> None:
    bench.initialize(bench.beat("a", 0, ["orders"]))
    epoch = bench.beat("a", 1).member_epoch
    assert bench.beat("b", 0, ["orders"]).assignment == {ORDERS: (1,)}
    assert bench.beat("a", epoch).assignment == {ORDERS: (0,)}
    third = bench.beat("c", 0, ["orders"])
    assert third.assignment is not None
    assert sum(map(len, third.assignment.values())) == 1, "more members than partitions: one is shared"
    for member_id in ("b", "c"):
        assert bench.beat(member_id, -1).member_epoch == -1
    response = bench.beat("a", bench.group.members["a"].member_epoch)
    assert response.assignment == {ORDERS: (0, 1)}
    bench.beat("a", -1)
    assert bench.group.state_name == "Empty"


def test_a_member_that_is_silent_is_removed_and_one_that_is_not_stays(bench: ShareBench) -> None:
    bench.beat("a", 0, ["orders"])
    bench.beat("b", 0, ["orders"])
    bench.run_for(30_000)
    bench.beat("b", bench.group.members["b"].member_epoch)
    bench.run_for(30_000)
    assert list(bench.group.members) == ["b"]
    bench.run_for(60_000)
    assert not bench.group.members


def test_a_reload_finds_everything_and_begins_again_what_was_not_finished(bench: ShareBench) -> None:
    first = bench.beat("a", 0, ["orders"])
    bench.commit_all()
    bench.reload()
    again = bench.beat("a", first.member_epoch)
    assert again.initialization is not None
    assert again.initialization.topics == {ORDERS: TopicState("orders", (0, 1))}
    bench.initialize(again)
    epoch = bench.beat("a", first.member_epoch).member_epoch
    bench.commit_all()
    bench.reload()
    response = bench.beat("a", epoch, ["orders"])
    assert (response.member_epoch, response.assignment, response.initialization) == (epoch, {ORDERS: (0, 1)}, None)


def test_new_partitions_get_their_states_too(bench: ShareBench) -> None:
    bench.initialize(bench.beat("a", 0, ["orders"]))
    epoch = bench.beat("a", 1).member_epoch
    bench.create_topic("bills", 1)
    response = bench.beat("a", epoch, ["orders", "bills"])
    assert response.initialization is not None
    assert response.initialization.topics == {topic_id("bills"): TopicState("bills", (0,))}


def test_the_previous_epoch_is_tolerated_because_its_answer_may_have_been_lost(bench: ShareBench) -> None:
    bench.initialize(bench.beat("a", 0, ["orders"]))
    assert bench.beat("a", 1).member_epoch == 2
    assert bench.beat("a", 1).member_epoch == 2
    assert bench.refusal("a", 3) is ErrorCode.FENCED_MEMBER_EPOCH
    bench.beat("b", 0, ["orders"])
    assert bench.beat("a", 2).member_epoch == 3
    assert bench.refusal("a", 1) is ErrorCode.FENCED_MEMBER_EPOCH


def test_what_is_refused_changes_nothing() -> None:
    bench = ShareBench(**{"group.share.max.size": 1})
    assert bench.refusal("", 0, ["orders"]) is ErrorCode.INVALID_REQUEST
    assert bench.refusal("x" * 37, 0, ["orders"]) is ErrorCode.INVALID_REQUEST
    assert bench.refusal("a", 0, ["orders"], group_id=" ") is ErrorCode.INVALID_REQUEST
    assert bench.refusal("a", 0, ["orders"], rack_id="") is ErrorCode.INVALID_REQUEST
    assert bench.refusal("a", 0) is ErrorCode.INVALID_REQUEST
    assert bench.refusal("a", -2, ["orders"]) is ErrorCode.INVALID_REQUEST
    assert bench.refusal("a", 1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.refusal("a", -1) is ErrorCode.GROUP_ID_NOT_FOUND
    bench.beat("a", 0, ["orders"])
    assert bench.refusal("b", 0, ["orders"]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.refusal("b", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(bench.group.members) == ["a"]


def test_offsets_are_altered_and_deleted_only_while_nobody_is_in_the_group(bench: ShareBench) -> None:
    bench.initialize(bench.beat("a", 0, ["orders"]))
    topics = {ORDERS: TopicState("orders", (0, 1))}
    for attempt in (
        lambda machine: machine.share.begin_alteration(GROUP, topics),
        lambda machine: machine.share.begin_deletion(GROUP),
        lambda machine: machine.delete_group(GROUP),
    ):
        with pytest.raises(ApiError) as raised:
            bench.call(attempt)
        assert raised.value.code is ErrorCode.NON_EMPTY_GROUP
    bench.beat("a", -1)
    epoch = bench.group.group_epoch
    assert bench.call(lambda machine: machine.share.begin_alteration(GROUP, topics)) == epoch + 1
    assert bench.call(lambda machine: machine.share.begin_deletion(GROUP)) == topics
    assert not bench.group.states.initialized
    assert bench.group.states.deleting == {ORDERS: "orders"}
    bench.call(lambda machine: machine.share.states_deleted(GROUP, [ORDERS]))
    assert not bench.group.states.deleting
    bench.call(lambda machine: machine.delete_group(GROUP))
    assert bench.machine.groups.find(GROUP) is None
    bench.commit_all()
    bench.reload()
    assert bench.machine.groups.find(GROUP) is None


def test_an_empty_share_group_is_not_taken_over_by_another_protocol(bench: ShareBench) -> None:
    bench.beat("a", 0, ["orders"])
    bench.beat("a", -1)
    request = ConsumerHeartbeatRequest(GROUP, "b", 0, rebalance_timeout_ms=1_000, subscribed_topic_names=["orders"], owned={})
    with pytest.raises(ApiError) as raised:
        bench.call(lambda machine: machine.consumer.heartbeat(request))
    assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(bench.machine.groups.find(GROUP), ShareGroup)
    bench.call(lambda machine: machine.consumer.heartbeat(request._replace(group_id="readers")))
    assert bench.refusal("a", 0, ["orders"], group_id="readers") is ErrorCode.GROUP_ID_NOT_FOUND


def test_what_members_subscribe_to_is_bounded() -> None:
    bench = ShareBench(**{METADATA_BYTES_MAX: 2_000, METADATA_BYTES_TOTAL_MAX: 3_000})
    budget = bench.machine.environment.metadata_budget
    bench.beat("a", 0, ["x" * 900])
    assert 900 < budget.bytes_held < 1_100
    assert bench.refusal("b", 0, ["x" * 1_900]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.refusal("a", 1, ["x" * 2_100]) is ErrorCode.GROUP_MAX_SIZE_REACHED, "nor may one that is there grow"
    bench.beat("a", 1, ["x" * 1_900])
    assert bench.refusal("c", 0, ["x" * 1_200], "others") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    held = budget.bytes_held
    bench.commit_all()
    bench.reload()
    assert bench.machine.environment.metadata_budget.bytes_held == held
    bench.beat("a", -1)
    assert bench.machine.environment.metadata_budget.bytes_held == 0
    bench.beat("a", 0, ["orders"])
    budget = bench.machine.environment.metadata_budget
    bench.shard.drop(RuntimeError("the leader changed"))
    assert budget.bytes_held == 0
