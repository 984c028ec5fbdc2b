"""Which offsets are compared: portions of a grid, all or a sample that a seed chooses."""

from tidelog.spark.pipelines.audit_ranges import (
    PORTION_OFFSETS,
    PORTION_OFFSETS_MAX,
    WHOLE_OFFSETS_MAX,
    fraction_of,
    portion_size,
    portions,
    sampled,
)
from tidelog.spark.pipelines.offset_ranges import OffsetRange, total_size

LONG = (OffsetRange(0, 5, 10_003), OffsetRange(1, 0, 77))


def test_portions_lie_on_a_grid() -> None:
    assert list(portions([OffsetRange(3, 95, 205)], 100)) == [
        OffsetRange(3, 95, 100),
        OffsetRange(3, 100, 200),
        OffsetRange(3, 200, 205),
    ]


def test_portions_grow_with_the_topic_up_to_what_a_bitmap_holds() -> None:
    assert portion_size(0) == portion_size(10**8) == PORTION_OFFSETS
    assert portion_size(2 * 10**9) == 20_000
    assert portion_size(10**12) == PORTION_OFFSETS_MAX


def test_all_of_it_unless_it_is_very_much() -> None:
    assert fraction_of(LONG, None, is_whole=False) == 1
    large = (OffsetRange(0, 0, 4 * WHOLE_OFFSETS_MAX),)
    assert fraction_of(large, None, is_whole=False) == 0.25
    assert fraction_of(large, None, is_whole=True) == 1
    assert fraction_of(large, 0.01, is_whole=False) == 0.01
    assert fraction_of((), None, is_whole=False) == 1


def test_a_sample_is_what_its_seed_says() -> None:
    chosen = sampled(LONG, 100, 0.1, seed=7)
    assert chosen == sampled(LONG, 100, 0.1, seed=7)
    assert chosen != sampled(LONG, 100, 0.1, seed=8)
    assert 900 <= total_size(each for each in chosen if each.partition == 0) <= 1_000
    assert {each.partition for each in chosen} == {0, 1}, "each partition has a part"
    assert total_size(sampled(LONG, 100, 1.0, seed=7)) == total_size(LONG)
    assert chosen == sampled(LONG[:1], 100, 0.1, seed=7) + chosen[-1:], "a partition's choice is its own"
