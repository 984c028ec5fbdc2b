"""What is committed when, by the name of the guarantee."""

from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition

from tests.client.consuming import QUICK, fill, filled_topic, new_group, read, read_together, texts, until
from tests.client.producing import new_topic
from tests.client.producing import read as read_back
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.consumer import Consumer, requested_commits
from tidelog.client.errors import GroupError, InvalidArgument, TidelogError
from tidelog.client.message import Message
from tidelog.client.producer import Producer
from tidelog.client.topic_partition import TopicPartition


def committed(kafka: ToolkitBroker, group: str, topic: str) -> int | None:
    """As another member would see it."""
    with Consumer(kafka.bootstrap, group=group) as consumer:
        return consumer._lookup.committed([TopicPartition(topic, 0)], 10).get(TopicPartition(topic, 0))


def test_at_least_once_commits_nothing_by_itself(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()
    with Consumer(kafka.bootstrap, group=group, topics=[topic]) as consumer:
        read(consumer, 10, max_records=3)
    assert committed(kafka, group, topic) is None


def test_at_least_once_by_itself_commits_what_was_handed_out_before_this_poll(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()
    with Consumer(kafka.bootstrap, group=group, topics=[topic], auto_commit=True, auto_commit_interval=0) as consumer:
        read(consumer, 3, max_records=3)
        assert committed(kafka, group, topic) is None
        assert len(consumer.poll(2)) == 2
        until(lambda: committed(kafka, group, topic) == 3)
    # The last two were handed out, and nobody has said that they are handled.
    assert committed(kafka, group, topic) == 3


def test_at_least_once_by_itself_commits_before_partitions_go(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()
    with Consumer(kafka.bootstrap, group=group, topics=[topic], auto_commit=True, auto_commit_interval=3600) as consumer:
        read(consumer, 3, max_records=3)
        read(consumer, 4, max_records=4)
    assert committed(kafka, group, topic) == 3


def test_at_most_once_commits_before_it_hands_out(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()
    with Consumer(kafka.bootstrap, group=group, topics=[topic], guarantee="at-most-once") as consumer:
        assert texts(read(consumer, 3, max_records=3)) == ["0", "1", "2"]
        assert committed(kafka, group, topic) == 3
        assert next(iter(consumer)).text() == "3"
        assert committed(kafka, group, topic) == 10
    with Consumer(kafka.bootstrap, group=group, topics=[topic], guarantee="at-most-once") as consumer:
        fill(kafka.bootstrap, topic, ["new"])
        assert texts(read(consumer, 1)) == ["new"]


class FailingCommits:
    """confluent-kafka's consumer, whose commits fail while told to."""

    def __init__(self, raw: Any, code: int) -> None:
        self.raw = raw
        self.code = code
        self.is_failing = True

    def commit(self, **arguments: Any) -> Any:
        if self.is_failing:
            raise KafkaException(KafkaError(self.code))
        return self.raw.commit(**arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def test_at_most_once_hands_nothing_out_that_is_not_committed(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()
    with Consumer(kafka.bootstrap, group=group, topics=[topic], guarantee="at-most-once") as consumer:
        until(lambda: consumer.poll(1, timeout=0.1))
        failing = FailingCommits(consumer.handle, KafkaError.GROUP_AUTHORIZATION_FAILED)
        consumer._raw.handle = failing
        for _ in range(2):
            with pytest.raises(TidelogError, match="commit"):
                consumer.poll(4)
        failing.is_failing = False
        # Kept over the failures, in order.
        assert texts(read(consumer, 9)) == [str(number) for number in range(1, 10)]
    assert committed(kafka, group, topic) == 10


def test_a_commit_waits_for_a_coordinator_that_is_away(kafka: ToolkitBroker) -> None:
    topic = filled_topic(kafka)
    with Consumer(kafka.bootstrap, group=new_group(), topics=[topic]) as consumer:
        read(consumer, 5)
        failing = FailingCommits(consumer.handle, KafkaError.NOT_COORDINATOR)
        consumer._raw.handle = failing
        with pytest.raises(TidelogError) as raised:
            consumer.commit(timeout=0.2)
        assert raised.value.retriable
        until_then = monotonic() + 0.3
        commit = failing.commit

        def heals(**arguments: Any) -> Any:
            failing.is_failing = monotonic() < until_then
            return commit(**arguments)

        failing.commit = heals  # type: ignore[method-assign]  # that is the point
        assert consumer.commit() == {TopicPartition(topic, 0): 5}


def test_exactly_once_only_with_a_transaction(kafka: ToolkitBroker) -> None:
    source, target, group = filled_topic(kafka, 6), new_topic(kafka), new_group()
    with (
        Producer(kafka.bootstrap, transactional_id=f"{group}-1") as producer,
        Consumer(kafka.bootstrap, group=group, topics=[source], guarantee="exactly-once") as consumer,
    ):
        with pytest.raises(InvalidArgument, match="send_offsets"):
            consumer.commit()
        first = read(consumer, 3, max_records=3)
        with producer.transaction() as transaction:
            for message in first:
                transaction.send(target, message.value)
            transaction.send_offsets(consumer)
        assert committed(kafka, group, source) == 3
        lost = read(consumer, 2, max_records=2)
        producer.transaction().begin()
        transaction.send(target, lost[0].value)
        transaction.send_offsets(consumer)
        transaction.abort()
        assert committed(kafka, group, source) == 3
        consumer.rewind()
        again = read(consumer, 3)
        assert texts(again) == ["3", "4", "5"]
        with producer.transaction() as transaction:
            for message in again:
                transaction.send(target, message.value)
            transaction.send_offsets(consumer)
    assert [message.value() for message in read_back(kafka, target, 6)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_exactly_once_sends_no_offsets_after_partitions_went(kafka: ToolkitBroker) -> None:
    """Messages of the partition are in the transaction and its offset cannot be: it must not be committed without."""
    topic, group = filled_topic(kafka, 20, partitions=2), new_group()
    member = {"group": group, "topics": [topic], "guarantee": "exactly-once", "config": QUICK}
    with Consumer(kafka.bootstrap, **member) as consumer:  # type: ignore[arg-type]  # a dict of all kinds
        read(consumer, 5)
        with Consumer(kafka.bootstrap, **member) as other:  # type: ignore[arg-type]  # a dict of all kinds
            read_together([consumer, other], lambda: len(consumer.assignment()) == len(other.assignment()) == 1)
            with pytest.raises(GroupError, match="rewind"):
                consumer.transaction_offsets()
            consumer.rewind()
            assert consumer.transaction_offsets()[0]


def test_what_may_be_committed() -> None:
    makers: list[tuple[Callable[[], Any], dict[tuple[str, int], int]]] = [
        (lambda: Message.of(topic="a", partition=1, offset=4), {("a", 1): 5}),
        (
            lambda: [Message.of(topic="a", offset=4), Message.of(topic="a", offset=2), Message.of(topic="b")],
            {("a", 0): 5, ("b", 0): 1},
        ),
        (lambda: {("a", 2): 9}, {("a", 2): 9}),
        (lambda: [RawPartition("a", 2, 9, "notes")], {("a", 2): 9}),
        (list, {}),
    ]
    for make, expected in makers:
        assert {partition: raw.offset for partition, raw in requested_commits(make()).items()} == expected
    assert requested_commits([RawPartition("a", 2, 9, "notes")])[TopicPartition("a", 2)].metadata == "notes"
