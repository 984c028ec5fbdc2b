"""Which offsets an audit compares, and in which portions. Pure.

Offsets lie on a grid: portion ``n`` of a partition has those from ``n * size`` on. Table and topic are summed up by portion, and
only portions whose sums differ are looked at row by row. A sample is a choice of portions, made by a seed: the same seed on the
same bounds chooses the same ones.
"""

import random
from collections.abc import Iterator, Sequence

from tidelog.spark.pipelines.offset_ranges import OffsetRange, joined, total_size

PORTION_OFFSETS = 10_000
# The sums of a portion have a bitmap of its offsets, and Spark's has this many bits.
PORTION_OFFSETS_MAX = 32_768
# Their sums are collected by the driver: some tens of megabytes at the most.
PORTIONS_WANTED_MAX = 100_000
WHOLE_OFFSETS_MAX = 10_000_000
"""So many are compared where nobody says how many; more than that only in a sample, unless asked for."""


def portion_size(offsets: int) -> int:
    return min(PORTION_OFFSETS_MAX, max(PORTION_OFFSETS, offsets // PORTIONS_WANTED_MAX))


def portions(ranges: Sequence[OffsetRange], size: int) -> Iterator[OffsetRange]:
    """The ranges, cut at the lines of the grid."""
    for each in ranges:
        start = each.start
        while start < each.end:
            end = min(each.end, (start // size + 1) * size)
            yield OffsetRange(each.partition, start, end)
            start = end


def fraction_of(ranges: Sequence[OffsetRange], sample: float | None, is_whole: bool) -> float:
    """How much of them is compared. Without a word about it: all that can be done in minutes."""
    if is_whole:
        return 1.0
    return sample if sample is not None else min(1.0, WHOLE_OFFSETS_MAX / max(1, total_size(ranges)))


def sampled(ranges: Sequence[OffsetRange], size: int, fraction: float, seed: int) -> tuple[OffsetRange, ...]:
    """Of each partition its share of portions, and at least one."""
    by_partition: dict[int, list[OffsetRange]] = {}
    for each in portions(ranges, size):
        by_partition.setdefault(each.partition, []).append(each)
    chosen: list[OffsetRange] = []
    for partition, cut in by_partition.items():
        # By partition: a choice in one does not depend on how long another is.
        dice = random.Random(f"{seed}/{partition}")  # noqa: S311 - a sample is no secret
        chosen += dice.sample(cut, min(len(cut), max(1, round(fraction * len(cut)))))
    return joined(chosen)
