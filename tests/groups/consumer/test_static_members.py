"""Members with an instance id: they may be away for a while."""

from tests.groups.consumer.bench import GROUP, SESSION_MS, ConsumerBench
from tests.groups.shard_bench import topic_id
from tidelog.groups.consumer.requests import ConsumerHeartbeatRequest
from tidelog.wire.errors import ErrorCode

ORDERS = topic_id("orders")


def two_static_members() -> ConsumerBench:
    bench = ConsumerBench()
    bench.join("a", instance_id="i-a")
    bench.join("b", instance_id="i-b")
    bench.settle()
    return bench


def test_a_restart_keeps_the_partitions_and_disturbs_nobody() -> None:
    bench = two_static_members()
    epoch, other = bench.group.group_epoch, bench.members["b"]
    had = bench.members["a"].indexes()
    bench.members["a"].leave(-2)
    assert other.heartbeat().assignment is None
    back = bench.join("a-again", instance_id="i-a")
    assert (back.indexes(), back.epoch) == (had, epoch)
    assert other.heartbeat().assignment is None
    assert ("member session", GROUP, "a") not in bench.machine.environment.timers, "its time-outs are gone"
    assert (bench.group.group_epoch, sorted(bench.group.members)) == (epoch, ["a-again", "b"])


def test_the_old_instance_is_fenced() -> None:
    bench = two_static_members()
    old = bench.members["a"]
    request = old.request(owned=old.owned)
    old.leave(-2)
    bench.join("a-again", instance_id="i-a")
    message = "Static member a with instance id i-a was fenced by member a-again."
    assert bench.refusal(request) == (ErrorCode.FENCED_INSTANCE_ID, message)
    assert bench.refusal(request._replace(member_epoch=-2)) == (ErrorCode.FENCED_INSTANCE_ID, message)


def test_an_instance_that_is_in_use_is_not_taken_over() -> None:
    bench = two_static_members()
    request = ConsumerHeartbeatRequest(
        GROUP, "thief", 0, "i-a", rebalance_timeout_ms=1, subscribed_topic_names=["orders"], owned={}
    )
    message = "Static member thief with instance id i-a cannot join the group because the instance id is owned by a member."
    assert bench.refusal(request) == (ErrorCode.UNRELEASED_INSTANCE_ID, message)


def test_an_instance_that_nobody_knows() -> None:
    bench = two_static_members()
    request = ConsumerHeartbeatRequest(GROUP, "x", 1, "i-x")
    assert bench.refusal(request) == (ErrorCode.UNKNOWN_MEMBER_ID, "Instance id i-x is unknown.")
    assert bench.refusal(request._replace(member_epoch=-1)) == (ErrorCode.UNKNOWN_MEMBER_ID, "Instance id i-x is unknown.")


def test_who_stays_away_too_long_loses_its_place() -> None:
    bench = two_static_members()
    bench.members["a"].leave(-2)
    bench.run_for(SESSION_MS - 5000)
    bench.members["b"].heartbeat()
    bench.run_for(6000)
    assert list(bench.group.members) == ["b"]
    bench.settle()
    assert bench.members["b"].indexes() == [0, 1, 2, 3]


def test_a_static_member_can_leave_for_good() -> None:
    bench = two_static_members()
    bench.members["a"].leave()
    assert (list(bench.group.members), bench.group.static_members) == (["b"], {"i-b": "b"})


def test_a_restart_with_another_subscription_is_a_rebalance() -> None:
    bench = ConsumerBench({"orders": 2, "prices": 2})
    bench.join("a", ["orders"], instance_id="i-a")
    bench.members["a"].leave(-2)
    back = bench.join("a2", ["prices"], instance_id="i-a")
    bench.settle()
    assert back.partitions == [("prices", 0), ("prices", 1)]
    assert bench.group.owners == {(topic_id("prices"), 0): "a2", (topic_id("prices"), 1): "a2"}
    assert list(bench.group.target) == ["a2"]


def test_the_same_member_id_may_come_back() -> None:
    bench = two_static_members()
    had = bench.members["a"].indexes()
    bench.members["a"].leave(-2)
    back = bench.join("a", instance_id="i-a")
    bench.settle()
    assert back.indexes() == had
    bench.run_for(SESSION_MS + 1000)
    assert bench.group.members == {}, "sessions of both have ended"
