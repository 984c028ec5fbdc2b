"""Topics that come, grow and go, for members that name them and for those that have a regular expression."""

from tests.groups.consumer.bench import GROUP, ConsumerBench
from tests.groups.shard_bench import topic_id
from tidelog.groups.consumer.rebalance import REFRESH_MS_MIN
from tidelog.groups.records import ConsumerGroupRegularExpressionRecord, ConsumerGroupRegularExpressionValue

ORDERS = topic_id("orders")


def test_a_topic_that_grows(bench: ConsumerBench) -> None:
    member = bench.join("a")
    bench.grow_topic("orders", 6)
    member.heartbeat()
    assert (bench.group.group_epoch, member.indexes()) == (2, [0, 1, 2, 3, 4, 5])


def test_a_topic_that_appears(bench: ConsumerBench) -> None:
    member = bench.join("a", ["prices"])
    assert (member.owned, bench.group.metadata_hash) == ({}, 0)
    bench.create_topic("others", 1)
    end_offset = bench.log.end_offset
    member.heartbeat()
    assert bench.log.end_offset == end_offset, "not one of ours"
    bench.create_topic("prices", 2)
    member.heartbeat()
    assert member.partitions == [("prices", 0), ("prices", 1)]


def test_a_topic_that_is_deleted() -> None:
    bench = ConsumerBench({"orders": 2, "prices": 1})
    member = bench.join("a", ["orders", "prices"])
    bench.delete_topic("orders")
    bench.settle()
    assert (bench.group.group_epoch, member.partitions) == (2, [("prices", 0)])
    assert bench.group.target == {"a": {topic_id("prices"): (0,)}}


def test_a_topic_that_changed_while_the_coordinator_was_away(bench: ConsumerBench) -> None:
    member = bench.join("a")
    bench.grow_topic("orders", 5)
    bench.restart()
    member.heartbeat()
    assert member.indexes() == [0, 1, 2, 3, 4]


def test_a_regular_expression_is_resolved_at_once_and_kept() -> None:
    bench = ConsumerBench({"orders-eu": 1, "orders-us": 1, "prices": 1, "reorders-eu": 1})
    member = bench.join("a", None, subscribed_topic_regex="orders-.*")
    assert member.partitions == [("orders-eu", 0), ("orders-us", 0)]
    value = ConsumerGroupRegularExpressionValue(("orders-eu", "orders-us"), bench.image.last_offset, bench.clock.now_ms())
    assert ConsumerGroupRegularExpressionRecord(GROUP, "orders-.*", value) in bench.records()
    assert bench.group.is_subscribed_to("orders-eu")
    assert not bench.group.is_subscribed_to("prices")
    assert [bench.group.may_read(topic) for topic in ("orders-eu", "prices")] == [True, False]


def test_a_topic_that_matches_later() -> None:
    bench = ConsumerBench({"orders-eu": 1})
    member = bench.join("a", None, subscribed_topic_regex="orders-.*")
    bench.run_for(REFRESH_MS_MIN)
    bench.create_topic("orders-us", 1)
    bench.create_topic("prices", 1)
    member.heartbeat()
    assert member.partitions == [("orders-eu", 0), ("orders-us", 0)]
    bench.run_for(REFRESH_MS_MIN)
    bench.delete_topic("orders-eu")
    bench.settle()
    assert member.partitions == [("orders-us", 0)]
    assert bench.group.resolved_regexes["orders-.*"].topics == ("orders-us",)


def test_many_topics_in_a_row_are_not_looked_at_one_by_one() -> None:
    bench = ConsumerBench({"orders-0": 1})
    member = bench.join("a", None, subscribed_topic_regex="orders-.*")
    member.heartbeat()
    for index in range(1, 5):
        bench.create_topic(f"orders-{index}", 1)
        member.heartbeat()
    assert len(member.partitions) == 1
    bench.run_for(REFRESH_MS_MIN)
    member.heartbeat()
    assert len(member.partitions) == 5
    resolved = [record for record in bench.records() if type(record) is ConsumerGroupRegularExpressionRecord]
    assert len(resolved) <= 3


def test_expressions_are_refreshed_after_a_while_without_a_rebalance() -> None:
    bench = ConsumerBench({"orders-eu": 1}, {"group.consumer.session.timeout.ms": 10_000_000})
    member = bench.join("a", None, subscribed_topic_regex="orders-.*")
    member.heartbeat()
    looked_ms = bench.group.resolved_regexes["orders-.*"].timestamp
    bench.run_for(bench.settings["group.consumer.regex.refresh.interval.ms"])
    member.heartbeat()
    assert bench.group.resolved_regexes["orders-.*"].timestamp > looked_ms
    assert bench.group.group_epoch == 1


def test_the_last_one_takes_its_expression_along() -> None:
    bench = ConsumerBench({"orders-eu": 2})
    first = bench.join("a", None, subscribed_topic_regex="orders-.*")
    second = bench.join("b", None, subscribed_topic_regex="orders-.*")
    bench.settle()
    assert (len(first.partitions), len(second.partitions)) == (1, 1)
    first.leave()
    assert list(bench.group.resolved_regexes) == ["orders-.*"]
    second.leave()
    assert bench.group.resolved_regexes == {}


def test_an_expression_is_changed_and_taken_back() -> None:
    bench = ConsumerBench({"orders": 1, "prices": 1})
    member = bench.join("a", None, subscribed_topic_regex="orders")
    member.heartbeat(subscribed_topic_regex="prices")
    bench.settle()
    assert (member.partitions, list(bench.group.resolved_regexes)) == ([("prices", 0)], ["prices"])
    member.heartbeat(subscribed_topic_regex="", subscribed_topic_names=["orders"])
    bench.settle()
    assert (member.partitions, bench.group.resolved_regexes) == ([("orders", 0)], {})
    assert bench.group.members["a"].subscribed_topic_regex is None


def test_names_and_an_expression_together() -> None:
    bench = ConsumerBench({"orders": 1, "prices": 1, "x": 1})
    member = bench.join("a", ["x"], subscribed_topic_regex="o.*|p.*")
    assert [name for name, _ in member.partitions] == ["orders", "prices", "x"]


def test_an_expression_that_would_take_forever_elsewhere() -> None:
    bench = ConsumerBench({"a" * 200: 1})
    member = bench.join("a", None, subscribed_topic_regex="(a+)+b|(a|a)*c")
    assert member.partitions == []
