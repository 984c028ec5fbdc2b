"""Splits cover exactly what there is to read; a limit is kept and shared, and there is always progress."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.topic_partition import Partition
from tidelog.spark.planning import Span, limited, split

ID = bytes(16)


def span(number: int, start: int, end: int) -> Span:
    return Span("a", ID, number, start, end)


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
def test_splits_cover_every_offset_once(spans: list[Span], min_partitions: int, max_records: int) -> None:
    parts = split(spans, min_partitions, max_records)
    assert all(0 < part.size <= max_records for part in parts)
    for whole in spans:
        offsets = [offset for part in parts if part.partition == whole.partition for offset in range(part.start, part.end)]
        assert offsets == list(range(whole.start, whole.end))
    assert len(parts) >= min(min_partitions, sum(whole.size for whole in spans))


def partitions(*numbers: int) -> dict[Partition, int]:
    return {Partition("a", index): number for index, number in enumerate(numbers)}


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
