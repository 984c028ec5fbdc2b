"""Splits cover exactly what there is to read; a limit is kept and shared, and there is always progress.

Where the options say to begin and to end, in what the cluster has.
"""

import logging
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.fakes import FakeCluster
from tidelog.client.errors import InvalidArgument, TidelogError, UnknownTopic
from tidelog.client.fetch.errors import OffsetsLost
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.options import SourceOptions
from tidelog.spark.planning import (
    OffsetSpan,
    TaskLimits,
    ending_positions,
    find_partitions,
    limited,
    split,
    starting_positions,
    tasks_of,
)

ID = bytes(16)


def span(number: int, start: int, end: int) -> OffsetSpan:
    return OffsetSpan("a", ID, number, start, end)


def test_what_is_empty_makes_no_task() -> None:
    assert split([span(0, 5, 5), span(1, 9, 3)], 8, 10) == []


def test_a_large_partition_is_split() -> None:
    assert split([span(0, 0, 25), span(1, 0, 10)], 1, 10) == [
        span(0, 0, 8),
        span(0, 8, 16),
        span(0, 16, 25),
        span(1, 0, 10),
    ]


def test_cuts_go_to_the_longest_until_there_are_enough() -> None:
    assert [part.size for part in split([span(0, 0, 90), span(1, 0, 10)], 4, 1000)] == [30, 30, 30, 10]
    assert [part.size for part in split([span(0, 0, 2), span(1, 0, 1)], 50, 1000)] == [1, 1, 1]


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), max_size=6).map(
    lambda pairs: [span(number, start, start + size) for number, (start, size) in enumerate(pairs)]
)


@given(spans=spans, min_partitions=st.integers(1, 40), max_records=st.integers(1, 200))
def test_splits_cover_every_offset_once(spans: list[OffsetSpan], min_partitions: int, max_records: int) -> None:
    parts = split(spans, min_partitions, max_records)
    assert all(0 < part.size <= max_records for part in parts)
    for whole in spans:
        offsets = [offset for part in parts if part.partition == whole.partition for offset in range(part.start, part.end)]
        assert offsets == list(range(whole.start, whole.end))
    assert len(parts) >= min(min_partitions, sum(whole.size for whole in spans))


def limits(min_partitions: int = 1, max_records: int = 1_000_000, cores: int = 2, *, whole: bool = True) -> TaskLimits:
    return TaskLimits(min_partitions, max_records, cores, whole)


@pytest.mark.parametrize(
    ("count", "size", "tasks"),
    [(1, 100, 1), (7, 3_000, 2), (7, 100, 1), (200, 500, 2), (200, 5_000, 10), (2_000, 0, 0), (2_000, 1, 1), (4, 500_000, 4)],
)
def test_small_spans_share_a_task(count: int, size: int, tasks: int) -> None:
    """Half of the partitions are empty."""
    spans = [span(number, 7, 7 + (size if number % 2 == 0 else 0)) for number in range(2 * count)]
    found = tasks_of(spans, limits())
    assert len(found) == tasks
    assert [part for task in found for part in task] == [whole for whole in spans if whole.size]


def test_a_partition_is_split_among_the_cores_for_a_batch_and_stays_whole_for_a_stream() -> None:
    spans = [span(0, 0, 50_000), span(1, 0, 10)]
    assert tasks_of(spans, limits(cores=4)) == [[span(0, 0, 50_000)], [span(1, 0, 10)]]
    split_up = tasks_of(spans, limits(cores=4, whole=False))
    assert [sum(part.size for part in task) for task in split_up] == [16_666, 16_667, 16_667, 10]


@given(
    spans=spans,
    min_partitions=st.integers(1, 40),
    max_records=st.integers(1, 200),
    cores=st.integers(1, 8),
    whole=st.booleans(),
)
def test_tasks_have_every_offset_once_and_in_order(
    spans: list[OffsetSpan], min_partitions: int, max_records: int, cores: int, whole: bool
) -> None:
    tasks = tasks_of(spans, limits(min_partitions, max_records, cores, whole=whole))
    assert all(0 < sum(part.size for part in task) <= max_records for task in tasks)
    for each in spans:
        parts = [part for task in tasks for part in task if part.partition == each.partition]
        assert [offset for part in parts for offset in range(part.start, part.end)] == list(range(each.start, each.end))
    assert len(tasks) >= min(min_partitions, sum(each.size for each in spans))


def partitions(*numbers: int) -> dict[TopicPartition, int]:
    return {TopicPartition("a", index): number for index, number in enumerate(numbers)}


def test_everything_is_taken_when_it_is_within_the_limit() -> None:
    assert limited(partitions(0, 5), partitions(10, 5), 10) == partitions(10, 5)


def test_shares_are_by_what_waits() -> None:
    assert limited(partitions(0, 100), partitions(900, 200), 100) == partitions(90, 110)


def test_one_offset_at_a_time_gets_through_all() -> None:
    position, ends = partitions(0, 0, 0), partitions(3, 1, 2)
    for _ in range(6):
        following = limited(position, ends, 1)
        assert sum(following.values()) == sum(position.values()) + 1
        position = following
    assert position == ends


def test_an_end_before_the_start_takes_nothing_back() -> None:
    assert limited(partitions(50, 0), partitions(40, 100), 10) == partitions(50, 10)


sizes = st.lists(st.integers(0, 10**6), min_size=1, max_size=8)


@given(sizes=sizes, offsets_max=st.integers(1, 10**6))
def test_the_limit_is_met_exactly_and_no_partition_goes_beyond_its_end(sizes: list[int], offsets_max: int) -> None:
    start, ends = partitions(*[7] * len(sizes)), partitions(*[7 + size for size in sizes])
    taken = limited(start, ends, offsets_max)
    assert sum(taken.values()) - sum(start.values()) == min(offsets_max, sum(sizes))
    assert all(start[partition] <= taken[partition] <= ends[partition] for partition in ends)


# -- topics and positions -----------------------------------------------------------------------------------------------------


A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def cluster() -> FakeCluster:
    made = FakeCluster()
    made.add("a", 10, 20)
    made.add("b", 5)
    made.grow("a", 1, 20, start=4)
    made.times = {A0: [(1000, 0), (2000, 6)], A1: [(1500, 8)]}
    return made


def options(**given: str) -> SourceOptions:
    topics = {} if {"subscribePattern", "assign"} & set(given) else {"subscribe": "a"}
    return SourceOptions.parse({"bootstrap": "h:1", **topics, **given}, is_stream=False)


def start(**given: str) -> Mapping[TopicPartition, int]:
    return starting_positions(cluster(), options(**given), [A0, A1])


def end(**given: str) -> Mapping[TopicPartition, int]:
    return ending_positions(cluster(), options(**given), [A0, A1])


def test_topics_by_name_pattern_and_partition() -> None:
    assert find_partitions(cluster(), options().topics).partitions == (A0, A1)
    assert find_partitions(cluster(), options(subscribePattern="[ab]").topics).partitions == (A0, A1, B0)
    assert find_partitions(cluster(), options(assign='{"a": [1], "b": [0]}').topics).partitions == (A1, B0)
    assert find_partitions(cluster(), options(subscribePattern="z.*").topics).partitions == ()


def test_a_topic_or_partition_that_there_is_not() -> None:
    with pytest.raises(UnknownTopic, match="there is no nothing"):
        find_partitions(cluster(), options(subscribe="nothing").topics)
    with pytest.raises(UnknownTopic, match=r"a has 2 partitions, there is no a\[2\]"):
        find_partitions(cluster(), options(assign='{"a": [2]}').topics)


def test_ends_of_the_log() -> None:
    assert start(startingOffsets="earliest") == {A0: 0, A1: 4}
    assert end() == {A0: 10, A1: 20}


def test_offsets() -> None:
    assert start(startingOffsets='{"a": {"0": 3, "1": -2}}') == {A0: 3, A1: 4}
    assert end(endingOffsets='{"a": {"0": 10, "1": -1}}') == {A0: 10, A1: 20}


def test_times() -> None:
    assert start(startingTimestamp="1200") == {A0: 6, A1: 8}
    assert start(startingOffsetsByTimestamp='{"a": {"0": 0, "1": 1500}}') == {A0: 0, A1: 8}
    assert end(endingTimestamp="1800") == {A0: 6, A1: 20}
    late = {"startingTimestamp": "1800", "startingOffsetsByTimestampStrategy": "latest"}
    assert start(**late) == {A0: 6, A1: 20}


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"startingTimestamp": "1800"}, InvalidArgument, "a[1] has no message at 1800 ms or later"),
        ({"startingOffsets": '{"a": {"0": 3}}'}, InvalidArgument, "names every partition that is read: a[1] is missing"),
        ({"startingOffsets": '{"a": {"0": 3, "1": 4, "2": 0}}'}, InvalidArgument, "has a[2], which is not read"),
        ({"startingOffsets": '{"a": {"0": 11, "1": 4}}'}, InvalidArgument, "a[0] has offsets 0 to 10: 11 is beyond"),
        ({"startingOffsets": '{"a": {"0": 0, "1": 3}}'}, OffsetsLost, "a[1]: offsets 3 to 3 are lost: the log begins at 4"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": 3}}'}, InvalidArgument, "a[1] is missing"),
    ],
)
def test_what_is_out_of_range_is_said(given: dict[str, str], kind: type[TidelogError], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        start(**given)


def test_an_end_beyond_the_log_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=re.escape("option endingOffsets: a[1] has offsets 4 to 20: 21 is beyond")):
        end(endingOffsets='{"a": {"0": 5, "1": 21}}')


def test_offsets_before_the_log_are_left_out_when_loss_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert start(startingOffsets='{"a": {"0": 0, "1": 1}}', failOnDataLoss="false") == {A0: 0, A1: 4}
    assert caplog.messages == ["a[1]: offsets 1 to 3 are lost, and left out"]
