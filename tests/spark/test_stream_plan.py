"""Where micro-batches begin and end, as the cluster changes under them."""

import logging
import re
from collections.abc import Mapping

import pytest

from tests.spark.fakes import FakeCluster
from tidelog.client.errors import InvalidArgument, TidelogError, UnknownTopic
from tidelog.client.fetch.errors import OffsetsLost, OffsetsMissing, TopicRecreated
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.checkpoint_offsets import StreamOffset
from tidelog.spark.options import SourceOptions
from tidelog.spark.stream_plan import END_SECONDS_MAX, StreamPlan

A0, A1, A2, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 2), TopicPartition("b", 0)


class Stream:
    """A plan over a fake cluster and a clock that only sleeping moves."""

    def __init__(self, cluster: FakeCluster, **given: str) -> None:
        topics = {} if {"subscribePattern", "assign"} & set(given) else {"subscribe": "a"}
        options = SourceOptions.parse({"bootstrap": "h:1", "startingOffsets": "earliest", **topics, **given}, is_stream=True)
        self.seconds = 0.0
        self.cluster = cluster
        self.plan = StreamPlan(options, lambda: cluster, monotonic=lambda: self.seconds, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def batch(self, start: StreamOffset, limit: int | None = None) -> tuple[StreamOffset, dict[TopicPartition, tuple[int, int]]]:
        """Its end, and what it reads."""
        end = self.plan.next_end(start, limit)
        return end, self.read(start, end)

    def read(self, start: StreamOffset, end: StreamOffset) -> dict[TopicPartition, tuple[int, int]]:
        tasks = self.plan.tasks(start, StreamOffset.from_json(end.to_json()))
        return {TopicPartition(span.topic, span.partition): (span.start, span.end) for spans in tasks for span in spans}


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.add("a", 10, 20)
    return made


def after(positions: Mapping[TopicPartition, int], topic_id: int = 1) -> StreamOffset:
    return StreamOffset({"a": bytes([topic_id]) * 16}, positions)


def test_batches_follow_each_other_without_gap(cluster: FakeCluster) -> None:
    stream = Stream(cluster)
    start = stream.plan.initial()
    first, read = stream.batch(start)
    assert read == {A0: (0, 10), A1: (0, 20)}
    assert stream.plan.next_end(first, None) is first
    cluster.grow("a", 0, 15)
    second, read = stream.batch(first)
    assert read == {A0: (10, 15)}
    assert stream.plan.next_end(second, None) is second


def test_the_first_batch_run_again_is_the_same_batch(cluster: FakeCluster) -> None:
    stream = Stream(cluster, startingOffsets="latest")
    start = stream.plan.initial()
    cluster.grow("a", 0, 12)
    end, read = stream.batch(start)
    assert read == {A0: (10, 12)}
    cluster.grow("a", 0, 99)
    again = Stream(cluster, startingOffsets="latest")
    assert again.read(again.plan.initial(), end) == read
    _, following = again.batch(end)
    assert following == {A0: (12, 99)}


def test_a_first_batch_with_nothing_in_it_run_again_has_nothing_in_it(cluster: FakeCluster) -> None:
    stream = Stream(cluster, startingOffsets="latest")
    end, read = stream.batch(stream.plan.initial())
    assert read == {}
    cluster.grow("a", 0, 99)
    again = Stream(cluster, startingOffsets="latest")
    assert again.read(again.plan.initial(), end) == {}
    _, following = again.batch(end)
    assert following == {A0: (10, 99)}


def test_a_limit_is_kept_and_everything_is_read_in_the_end(cluster: FakeCluster) -> None:
    stream = Stream(cluster)
    start, total = stream.plan.initial(), 0
    for _ in range(3):
        start, read = stream.batch(start, 12)
        assert sum(end - begin for begin, end in read.values()) <= 12
        total += sum(end - begin for begin, end in read.values())
    assert total == 30
    assert stream.plan.next_end(start, 12) is start


def test_partitions_and_topics_that_are_added_are_read_from_their_first_message(cluster: FakeCluster) -> None:
    stream = Stream(cluster, subscribePattern="[ab]")
    start, _ = stream.batch(stream.plan.initial())
    cluster.grow("a", 2, 7)
    cluster.add("b", 9)
    cluster.grow("b", 0, 9, start=4)
    end, read = stream.batch(start)
    assert read == {A2: (0, 7), B0: (4, 9)}
    cluster.grow("b", 0, 30, start=25)
    assert Stream(cluster, subscribePattern="[ab]").read(start, end) == read


def test_a_partition_that_was_added_and_has_lost_messages_already(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    start = after({A0: 10, A1: 20})
    cluster.grow("a", 2, 9, start=5)
    with pytest.raises(OffsetsLost, match=re.escape("a[2]: offsets 0 to 4 are lost")):
        Stream(cluster).plan.next_end(start, None)
    with caplog.at_level(logging.WARNING):
        _, read = Stream(cluster, failOnDataLoss="false").batch(start)
    assert read == {A2: (5, 9)}
    assert caplog.messages == ["a[2]: offsets 0 to 4 are lost, and left out"]


def test_available_now_ends_where_it_ended_when_it_was_asked_for(cluster: FakeCluster) -> None:
    stream = Stream(cluster, minOffsetsPerTrigger="1000")
    stream.plan.hold_end()
    cluster.grow("a", 0, 500)
    cluster.grow("a", 2, 500)
    start, read = stream.batch(stream.plan.initial(), 25)
    start, more = stream.batch(start, 25)
    assert sum(end - begin for begin, end in (*read.values(), *more.values())) == 30
    assert stream.plan.next_end(start, 25) is start


def test_too_little_waits_but_not_for_ever(cluster: FakeCluster) -> None:
    stream = Stream(cluster, minOffsetsPerTrigger="5", maxTriggerDelay="1m")
    start = after({A0: 10, A1: 20})
    cluster.grow("a", 0, 14)
    assert stream.plan.next_end(start, None) is start
    stream.seconds = 59.0
    assert stream.plan.next_end(start, None) is start
    stream.seconds = 61.0
    start, read = stream.batch(start)
    assert read == {A0: (10, 14)}
    cluster.grow("a", 1, 24)
    stream.seconds = 120.0
    assert stream.plan.next_end(start, None) is start
    cluster.grow("a", 1, 25)
    _, read = stream.batch(start)
    assert read == {A1: (20, 25)}


def test_a_topic_of_the_same_name_is_not_the_same_topic(cluster: FakeCluster) -> None:
    start, _ = Stream(cluster).batch(Stream(cluster).plan.initial())
    cluster.remove("a")
    cluster.add("a", 100, 100, topic_id=9)
    for loss in ("true", "false"):
        with pytest.raises(TopicRecreated, match=r"a was deleted and created again .* Use a new checkpointLocation"):
            Stream(cluster, failOnDataLoss=loss).plan.next_end(start, None)


def test_clusters_without_topic_ids_are_taken_at_their_word(cluster: FakeCluster) -> None:
    start = after({A0: 10, A1: 20}, topic_id=0)
    assert Stream(cluster).plan.next_end(start, None) is start


@pytest.mark.parametrize("topics", [{"subscribe": "a,b"}, {"subscribePattern": "[ab]"}, {"assign": '{"a": [0, 1], "b": [0]}'}])
def test_a_topic_that_is_gone(cluster: FakeCluster, topics: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    cluster.add("b", 5)
    start, _ = Stream(cluster, **topics).batch(Stream(cluster, **topics).plan.initial())
    cluster.remove("b")
    cluster.grow("a", 0, 11)
    with pytest.raises(UnknownTopic, match="b"):
        Stream(cluster, **topics).plan.next_end(start, None)
    patient = Stream(cluster, **topics, failOnDataLoss="false")
    end, read = patient.batch(start)
    assert read == {A0: (10, 11)}
    assert end.positions[B0] == 5
    assert patient.plan.next_end(end, None) is end
    assert caplog.messages == ["b is gone: what it had since the last batch is lost"]
    cluster.add("b", 50, topic_id=77)
    with pytest.raises(TopicRecreated):
        patient.plan.next_end(end, None)


def test_a_leader_that_does_not_know_its_end_yet_is_waited_for(cluster: FakeCluster) -> None:
    stream = Stream(cluster)
    start = after({A0: 12, A1: 20})
    naps = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        cluster.grow("a", 0, 13)

    stream.plan._sleep = sleep
    _, read = stream.batch(start)
    assert naps
    assert read == {A0: (12, 13)}


def test_a_checkpoint_beyond_the_log_is_refused_whatever_is_allowed(cluster: FakeCluster) -> None:
    for loss in ("true", "false"):
        stream = Stream(cluster, failOnDataLoss=loss)
        with pytest.raises(OffsetsMissing, match=re.escape("a[0]: the checkpoint is at offset 12, and the log ends at 10")):
            stream.plan.next_end(after({A0: 12, A1: 20}), None)
        assert stream.seconds >= END_SECONDS_MAX


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ({"subscribe": "b"}, "the checkpoint has a, and this query reads b"),
        ({"subscribePattern": "b.*"}, "the checkpoint has a, and this query reads pattern b.*"),
        ({"assign": '{"a": [0]}'}, "the checkpoint has a[1], and this query reads a"),
    ],
)
def test_a_checkpoint_of_another_query_is_refused(cluster: FakeCluster, topics: dict[str, str], message: str) -> None:
    cluster.add("b", 5)
    stream, offset = Stream(cluster, **topics), after({A0: 10, A1: 20})
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        stream.plan.next_end(offset, None)
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        stream.plan.tasks(offset, offset)


def test_a_batch_that_ends_before_it_begins_is_refused(cluster: FakeCluster) -> None:
    with pytest.raises(TidelogError, match=re.escape("a[0] from 10 to 5")):
        Stream(cluster).plan.tasks(after({A0: 10}), after({A0: 5}))


def test_one_look_per_trigger(cluster: FakeCluster) -> None:
    stream = Stream(cluster)
    start = after({A0: 10, A1: 20})
    cluster.asked.clear()
    stream.plan.next_end(start, None)
    stream.plan.tasks(start, start)
    assert cluster.asked == ["topics", "offsets latest"]


def test_what_is_there_is_reported(cluster: FakeCluster) -> None:
    stream = Stream(cluster)
    stream.batch(stream.plan.initial(), 3)
    assert stream.plan.latest == after({A0: 10, A1: 20})
