"""Reading: what a poll returns, where it starts, how it is moved, and what it refuses."""

import gc
import weakref
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest

from tests.client.consuming import fill, filled_topic, new_group, read, read_on, texts, until
from tests.client.producing import new_topic
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.consumer import Consumer
from tidelog.client.errors import BrokerUnavailable, Closed, GroupError, InvalidArgument, UnknownTopic
from tidelog.client.topic_partition import TopicPartition


def test_a_fresh_group_starts_at_the_earliest_and_goes_on_from_its_commit(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()
    with Consumer(kafka.bootstrap, group=group, topics=[topic]) as consumer:
        messages = read(consumer, 4)
        assert texts(messages) == ["0", "1", "2", "3"]
        assert (messages[2].topic, messages[2].partition, messages[2].offset) == (topic, 0, 2)
        assert consumer.commit() == {TopicPartition(topic, 0): 4}
        assert texts(read(consumer, 2)) == ["4", "5"]
    with Consumer(kafka.bootstrap, group=group, topics=[topic]) as consumer:
        assert texts(read(consumer, 6)) == ["4", "5", "6", "7", "8", "9"]


def test_a_poll_returns_what_is_there_and_does_not_wait_for_more(kafka: ToolkitBroker) -> None:
    topic = filled_topic(kafka, 3)
    with Consumer(kafka.bootstrap, topics=[topic]) as consumer:
        # Were it to wait for 500 messages, each poll would take the whole timeout, and the test with it.
        found = 0
        while found < 3:
            found += len(consumer.poll(500, timeout=600))
        assert consumer.poll(timeout=0.05) == []


def test_latest_is_fixed_when_it_is_assigned(kafka: ToolkitBroker) -> None:
    """A member that dies before its first commit must not make the next one start later."""
    topic, group = filled_topic(kafka), new_group()
    with Consumer(kafka.bootstrap, group=group, topics=[topic], start="latest") as consumer:
        until(lambda: consumer.poll(timeout=0.1) == [] and consumer.assignment())
        assert consumer.positions() == {TopicPartition(topic, 0): 10}
    fill(kafka.bootstrap, topic, ["new"])
    with Consumer(kafka.bootstrap, group=group, topics=[topic], start="latest") as consumer:
        assert texts(read(consumer, 1)) == ["new"]


def test_a_fresh_group_starts_at_a_timestamp_and_a_committed_one_does_not(kafka: ToolkitBroker) -> None:
    topic, group = new_topic(kafka, 2), new_group()
    for hour in range(5):
        fill(kafka.bootstrap, topic, [f"hour {hour}"], 0, timestamp=1_700_000_000_000 + hour * 3_600_000)
    noon = datetime.fromtimestamp(1_700_000_000 + 3 * 3600, UTC)
    with Consumer(kafka.bootstrap, group=group, topics=[topic], start=noon) as consumer:
        assert texts(read(consumer, 2)) == ["hour 3", "hour 4"]
        # Nothing of that time in the other partition: it starts at the end.
        assert consumer.positions() == {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 0}
        consumer.commit({(topic, 0): 1})
    with Consumer(kafka.bootstrap, group=group, topics=[topic], start=noon) as consumer:
        assert texts(read(consumer, 4)) == ["hour 1", "hour 2", "hour 3", "hour 4"]


def test_without_a_group_everybody_reads_everything(kafka: ToolkitBroker) -> None:
    topic = filled_topic(kafka, 5, partitions=3)
    for _ in range(2):
        with Consumer(kafka.bootstrap, topics=[topic]) as consumer:
            assert len(read(consumer, 15)) == 15
            assert consumer.lag() == {TopicPartition(topic, partition): 0 for partition in range(3)}
            with pytest.raises(InvalidArgument, match="needs a group"):
                consumer.commit()


def test_topics_by_regular_expression(kafka: ToolkitBroker) -> None:
    topic = filled_topic(kafka, 3)
    with Consumer(kafka.bootstrap, group=new_group(), pattern=f"{topic[:-1]}[{topic[-1]}]$") as consumer:
        assert texts(read(consumer, 3)) == ["0", "1", "2"]


def test_assign_by_hand(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka, 5, partitions=2), new_group()
    with Consumer(kafka.bootstrap, group=group) as consumer:
        consumer.assign([(topic, 1, 3)])
        assert texts(read(consumer, 2)) == ["3", "4"]
        assert consumer.commit() == {TopicPartition(topic, 1): 5}
    with Consumer(kafka.bootstrap, group=group) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        assert {message.partition for message in read(consumer, 5)} == {0}
        assert consumer.committed() == {TopicPartition(topic, 1): 5}


def test_iteration_hands_out_one_by_one(kafka: ToolkitBroker) -> None:
    """A commit in the loop covers what the loop has seen, not what was fetched with it."""
    topic, group = filled_topic(kafka), new_group()
    with Consumer(kafka.bootstrap, group=group, topics=[topic]) as consumer:
        for message in consumer:
            if message.offset == 3:
                assert consumer.commit() == {TopicPartition(topic, 0): 4}
                break
        # What was fetched with them is not lost.
        assert texts(read(consumer, 6)) == ["4", "5", "6", "7", "8", "9"]


def test_commit_of_messages_and_of_offsets(kafka: ToolkitBroker) -> None:
    topic = filled_topic(kafka)
    with Consumer(kafka.bootstrap, group=new_group(), topics=[topic]) as consumer:
        messages = read(consumer, 6)
        assert consumer.commit(messages[1]) == {TopicPartition(topic, 0): 2}
        assert consumer.commit([messages[3], messages[2]]) == {TopicPartition(topic, 0): 4}
        assert consumer.commit({(topic, 0): 3}) == {TopicPartition(topic, 0): 3}
        assert consumer.committed() == {TopicPartition(topic, 0): 3}
        assert consumer.commit({("another", 0): 3}) == {}
        with pytest.raises(InvalidArgument, match="commit takes"):
            consumer.commit(7)


def test_an_asynchronous_commit_arrives(kafka: ToolkitBroker) -> None:
    topic = filled_topic(kafka)
    with Consumer(kafka.bootstrap, group=new_group(), topics=[topic]) as consumer:
        read(consumer, 7)
        consumer.commit(asynchronous=True)
        until(lambda: consumer.committed() == {TopicPartition(topic, 0): 7})


def test_seeks(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    for second in range(6):
        fill(kafka.bootstrap, topic, [str(second)], timestamp=1_700_000_000_000 + second * 1000)
    with Consumer(kafka.bootstrap, group=new_group(), topics=[topic]) as consumer:
        consumer.seek(topic, 0, offset=4)  # before it is assigned
        assert texts(read(consumer, 2)) == ["4", "5"]
        consumer.seek(topic, 0, offset=1)
        assert consumer.position(topic, 0) == 1
        assert texts(read(consumer, 5)) == ["1", "2", "3", "4", "5"]
        consumer.seek(topic, timestamp=1_700_000_003_000)
        assert texts(read(consumer, 3)) == ["3", "4", "5"]
        consumer.seek_to_beginning(topic)
        assert texts(read(consumer, 1)) == ["0"]
        consumer.seek_to_end(topic)
        assert consumer.lag() == {TopicPartition(topic, 0): 0}
        fill(kafka.bootstrap, topic, ["new"])
        assert texts(read(consumer, 1)) == ["new"]
        with pytest.raises(GroupError, match="not assigned"):
            consumer.seek("another", 0, offset=1)
        for wrong in ({}, {"offset": -1}, {"offset": 1, "timestamp": 2}, {"timestamp": datetime(2024, 1, 1)}):
            with pytest.raises(InvalidArgument):
                consumer.seek(topic, 0, **wrong)


def test_a_seek_is_committed_as_the_position(kafka: ToolkitBroker) -> None:
    topic = filled_topic(kafka)
    with Consumer(kafka.bootstrap, group=new_group(), topics=[topic]) as consumer:
        read(consumer, 8)
        consumer.commit()
        consumer.seek(topic, 0, offset=2)
        assert consumer.commit() == {TopicPartition(topic, 0): 2}


def test_a_paused_partition_is_silent_and_loses_nothing(kafka: ToolkitBroker) -> None:
    topic = filled_topic(kafka, 50, partitions=2)
    with Consumer(kafka.bootstrap, group=new_group(), topics=[topic]) as consumer:
        first = [read(consumer, 1)[0]]
        paused = TopicPartition(topic, first[0].partition)
        # Some of its messages have arrived already.
        iterator = iter(consumer)
        first.append(next(iterator))
        consumer.pause([paused])
        assert consumer.paused() == [paused]
        others = [message for message in first if message.partition != paused.partition]
        read_on(consumer, others, 50, 7)
        assert consumer.poll(timeout=0.3) == []
        assert {message.partition for message in others} == {1 - paused.partition}
        consumer.resume()
        rest = [message for message in first if message.partition == paused.partition]
        read_on(consumer, rest, 50, 7)
        assert [message.offset for message in rest] == list(range(50))


def test_what_was_paused_and_is_assigned_again_is_read(kafka: ToolkitBroker) -> None:
    topic = filled_topic(kafka, 3)
    with Consumer(kafka.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        read(consumer, 3)
        consumer.pause()
        consumer.assign([(topic, 0, 1)])
        assert consumer.paused() == []
        assert texts(read(consumer, 2)) == ["1", "2"]


def test_lag(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()
    with Consumer(kafka.bootstrap, group=group, topics=[topic]) as consumer:
        read(consumer, 4)
        assert consumer.lag() == {TopicPartition(topic, 0): 6}
        consumer.commit()
    with Consumer(kafka.bootstrap, group=group) as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.lag() == {TopicPartition(topic, 0): 6}


def test_unknown_topic_is_said_and_waited_for(kafka: ToolkitBroker) -> None:
    topic = f"{new_topic(kafka)}-not-yet"
    config = {"topic.metadata.refresh.interval.ms": 200}
    with Consumer(kafka.bootstrap, group=new_group(), topics=[topic], config=config) as consumer:
        with pytest.raises(UnknownTopic, match="create it first"):
            until(lambda: consumer.poll(timeout=0.2))
        create_topic(kafka.bootstrap, topic)
        fill(kafka.bootstrap, topic, ["hello"])
        assert texts(read(consumer, 1)) == ["hello"]
    with Consumer(kafka.bootstrap, topics=["not-there"]) as consumer, pytest.raises(UnknownTopic, match="not-there"):
        consumer.poll()


@pytest.mark.parametrize(("arguments", "is_waited_for"), [({}, False), ({"fetch_min_bytes": 1_000_000, "fetch_wait": 2.0}, True)])
def test_a_fetch_waits_for_bytes_or_for_its_time(kafka: ToolkitBroker, arguments: dict[str, Any], is_waited_for: bool) -> None:
    topic = filled_topic(kafka, 3)
    with Consumer(kafka.bootstrap, topics=[topic], **arguments) as consumer:
        # The broker keeps a fetch of few bytes for that long.
        began = monotonic()
        assert texts(read(consumer, 3)) == ["0", "1", "2"]
        assert not is_waited_for or monotonic() - began > 1.5


def test_no_broker_is_named() -> None:
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
        Consumer("127.0.0.1:1", topics=["t"], connect_timeout=0.5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"guarantee": "twice"}, "guarantee is one of"),
        ({"protocol": "new"}, "protocol is one of"),
        ({"isolation": "none"}, "isolation is one of"),
        ({"start": "middle"}, "start is"),
        ({"start": -1}, "a timestamp is"),
        ({"topics": "orders"}, r'topics is a list of names: \["orders"\]'),
        ({"topics": [""]}, "topics is a list of names"),
        ({"topics": ["^a"]}, "pattern="),
        ({"topics": ["a"], "pattern": "b"}, "not both"),
        ({"group": None, "pattern": "b"}, "needs a group"),
        ({"group": None, "guarantee": "at-most-once"}, "needs a group"),
        ({"guarantee": "at-most-once", "auto_commit": True}, "auto_commit is for at-least-once"),
        ({"guarantee": "exactly-once", "isolation": "read_uncommitted"}, "exactly-once reads only committed"),
        ({"max_prefetch_bytes": 10}, "max_prefetch_bytes"),
        ({"max_prefetch_records": 0}, "max_prefetch_records"),
        ({"fetch_min_bytes": 0}, "fetch_min_bytes is from 1 to"),
        ({"fetch_wait": -0.1}, "fetch_wait is from 0 to"),
        ({"config": {"enable.auto.commit": True}}, "enable.auto.commit"),
        ({"config": {"no.such.setting": 1}}, "no.such.setting"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Consumer("127.0.0.1:1", **{"group": "g", **arguments})  # type: ignore[arg-type]  # wrong on purpose


def test_closed_and_empty(kafka: ToolkitBroker) -> None:
    consumer = Consumer(kafka.bootstrap, group=new_group())
    with pytest.raises(InvalidArgument, match="nothing to read"):
        consumer.poll()
    with pytest.raises(InvalidArgument, match="max_records"):
        consumer.poll(0)
    consumer.close()
    consumer.close()
    for call in (consumer.poll, consumer.commit, consumer.lag, consumer.positions, consumer.committed, consumer.pause):
        with pytest.raises(Closed):
            call()


def test_a_forgotten_consumer_goes(kafka: ToolkitBroker) -> None:
    """And leaves its group: another one need not wait for its session to end."""
    topic, group = filled_topic(kafka, 1), new_group()
    consumer = Consumer(kafka.bootstrap, group=group, topics=[topic])
    read(consumer, 1)
    reference = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert reference() is None
    with Consumer(kafka.bootstrap, group=group, topics=[topic]) as consumer:
        assert texts(read(consumer, 1)) == ["0"]
