"""What a ConsumerGroupHeartbeat must say, by Kafka's codes and reasons."""

from typing import Any

import pytest

from tests.groups.consumer.bench import GROUP, ConsumerBench
from tests.groups.shard_bench import topic_id
from tidelog.groups.consumer.requests import ConsumerHeartbeatRequest
from tidelog.wire.errors import ErrorCode

JOIN: dict[str, Any] = {
    "group_id": GROUP,
    "member_id": "a",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1000,
    "subscribed_topic_names": ["orders"],
    "owned": {},
}
INVALID = ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"member_id": ""}, INVALID, "MemberId can't be empty."),
        ({"member_id": " "}, INVALID, "MemberId can't be empty."),
        ({"member_id": "", "member_epoch": 1, "version": 0}, INVALID, "MemberId can't be empty."),
        ({"member_id": "", "member_epoch": -1, "version": 0}, INVALID, "MemberId can't be empty."),
        ({"group_id": ""}, INVALID, "GroupId can't be empty."),
        ({"instance_id": ""}, INVALID, "InstanceId can't be empty."),
        ({"rack_id": ""}, INVALID, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, INVALID, "RebalanceTimeoutMs must be provided in first request."),
        ({"owned": None}, INVALID, "TopicPartitions must be empty when (re-)joining."),
        ({"owned": {topic_id("orders"): frozenset({0})}}, INVALID, "TopicPartitions must be empty when (re-)joining."),
        (
            {"subscribed_topic_names": None},
            INVALID,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"member_epoch": -2}, INVALID, "InstanceId can't be null."),
        ({"member_epoch": -3}, INVALID, "MemberEpoch is invalid."),
        ({"group_id": "g" * 40_000}, INVALID, "a name is longer than 32767 bytes"),
        ({"member_id": "ä" * 20_000}, INVALID, "a name is longer than 32767 bytes"),
        ({"subscribed_topic_regex": "x" * 40_000}, INVALID, "a name is longer than 32767 bytes"),
        (
            {"server_assignor": "sticky"},
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
        ),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {GROUP} not found."),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {GROUP} not found."),
        (
            {"subscribed_topic_regex": "(abc"},
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "SubscribedTopicRegex `(abc` is not a valid regular expression: missing ): (abc.",
        ),
    ],
)
def test_refusals(bench: ConsumerBench, changes: dict[str, Any], code: ErrorCode, message: str) -> None:
    assert bench.refusal(ConsumerHeartbeatRequest(**{**JOIN, **changes})) == (code, message)
    assert bench.log.end_offset == 0, "nothing is written"


def test_before_version_1_the_coordinator_makes_the_id(bench: ConsumerBench) -> None:
    response = bench.heartbeat(ConsumerHeartbeatRequest(**{**JOIN, "member_id": "", "version": 0}))
    assert len(response.member_id) == 36
    assert list(bench.group.members) == [response.member_id]


def test_a_member_may_subscribe_to_nothing(bench: ConsumerBench) -> None:
    member = bench.join("a", [])
    assert (member.epoch, member.owned) == (1, {})


def test_the_group_has_a_limit() -> None:
    bench = ConsumerBench(settings={"group.consumer.max.size": 1})
    bench.join("a")
    refused = (ErrorCode.GROUP_MAX_SIZE_REACHED, "The consumer group has reached its maximum capacity of 1 members.")
    assert bench.refusal(ConsumerHeartbeatRequest(**{**JOIN, "member_id": "b"})) == refused
    bench.members["a"].heartbeat()
    bench.members["a"].join()


def test_the_shard_has_a_limit_of_groups() -> None:
    bench = ConsumerBench(settings={"tidelog.groups.max": 1})
    bench.join("a")
    code, _ = bench.refusal(ConsumerHeartbeatRequest(**{**JOIN, "group_id": "another"}))
    assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
