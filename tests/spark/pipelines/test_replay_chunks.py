"""How a replay is cut and paced, with a clock that only moves when it is told to."""

from itertools import pairwise

import pytest

from tidelog.spark.pipelines import replay_chunks
from tidelog.spark.pipelines.offset_ranges import OffsetRange
from tidelog.spark.pipelines.replay_chunks import Bucket, Chunk, Pacer, bucket_offsets, cut, rows_wanted


def buckets(partition: int, count: int, rows: int = 10) -> list[Bucket]:
    return [Bucket(partition, 100 * number, 100 * number + 50, rows) for number in range(count)]


def test_chunks_have_a_part_of_every_partition_and_follow_each_other() -> None:
    chunks = cut([*buckets(1, 4), *buckets(0, 8)], rows_per_chunk=60)
    assert chunks == (
        Chunk(0, 60, (OffsetRange(0, 0, 351), OffsetRange(1, 0, 151))),
        Chunk(1, 60, (OffsetRange(0, 400, 751), OffsetRange(1, 200, 351))),
    )
    assert cut(list(reversed(buckets(0, 8))), 30) == cut(buckets(0, 8), 30)


def test_no_row_is_in_two_chunks_or_in_none() -> None:
    given = [*buckets(0, 37, 7), *buckets(1, 1, 900), *buckets(2, 11, 3)]
    chunks = cut(given, rows_per_chunk=50)
    assert sum(chunk.rows for chunk in chunks) == sum(bucket.rows for bucket in given)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    for partition in range(3):
        ranges = [each for chunk in chunks for each in chunk.ranges if each.partition == partition]
        assert all(one.end <= other.start for one, other in pairwise(ranges))
        for bucket in given:
            if bucket.partition == partition:
                assert sum(each.start <= bucket.first and bucket.last < each.end for each in ranges) == 1


def test_there_are_never_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_chunks, "CHUNKS_MAX", 5)
    assert len(cut(buckets(0, 100), rows_per_chunk=10)) == 5
    assert cut([], 10) == ()


def test_a_chunk_is_a_few_seconds_of_the_rate() -> None:
    assert rows_wanted(100_000, None) == 100_000
    assert rows_wanted(100_000, 200) == 1_000
    assert rows_wanted(100_000, 10**9) == 100_000
    assert rows_wanted(100_000, 0.01) == 1
    assert bucket_offsets(1) == 1
    assert bucket_offsets(10**9) == 10_000


class Clock:
    def __init__(self) -> None:
        self.now = 50.0
        self.waits: list[float] = []
        self.is_stopped = False

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        return self.is_stopped


def test_the_rate_is_held_and_what_was_slow_is_not_made_up_for() -> None:
    clock = Clock()
    pacer = Pacer(100.0, lambda: clock.now, clock.wait)
    sent = []
    for rows, takes_seconds in ((200, 0.5), (200, 5.0), (100, 0.0), (100, 0.0), (300, 0.0)):
        assert pacer.admit(rows)
        sent.append((clock.now, rows))
        clock.now += takes_seconds
    # 200 rows are two seconds; the second chunk took five, and the third may go at once, but no two.
    assert clock.waits == [0.0, 1.5, 0.0, 1.0, 1.0]
    for (first, rows), (second, _) in pairwise(sent):
        assert rows / (second - first) <= 100


def test_without_a_rate_nothing_waits_and_a_stop_is_told() -> None:
    clock = Clock()
    pacer = Pacer(None, lambda: clock.now, clock.wait)
    assert pacer.admit(10**6)
    assert pacer.admit(10**6)
    assert clock.waits == [0.0, 0.0]
    clock.is_stopped = True
    assert not pacer.admit(1)
