"""Ranges of offsets of one topic's partitions: parsed from options, clipped, joined, and read from a table or from the topic.

The end of a range is the first offset that is not in it, as everywhere with offsets.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidelog.client.errors import InvalidArgument
from tidelog.spark.options import OFFSETS_MAX
from tidelog.spark.tables.lake_table import LakeTable

_RANGE = re.compile(r"(\d{1,9})(?::(?:(\d{1,18})(?:-(\d{1,18})?)?|-(\d{1,18})))?")
_EXAMPLES = "3 (the whole partition), 3:100-200 (200 is not in it), 3:100-, 3:-200 or 3:57 (one offset)"


class OffsetRange(NamedTuple):
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition}:{self.start}-{self.end}"


def parse_ranges(option: str, texts: Iterable[str]) -> tuple[OffsetRange, ...]:
    return joined(_parse(option, text) for text in texts)


def _parse(option: str, text: str) -> OffsetRange:
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument(f"{option} is a partition and offsets, such as {_EXAMPLES}: not {text!r}")
    start = int(found[2] or 0)
    if found[4]:
        end = int(found[4])
    elif found[3]:
        end = int(found[3])
    else:
        is_one = found[2] is not None and not text.strip().endswith("-")
        end = start + 1 if is_one else OFFSETS_MAX
    if end <= start:
        raise InvalidArgument(f"{option} {text}: it ends before it begins")
    return OffsetRange(int(found[1]), start, end)


def joined(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The ranges in order, with those that touch or overlap joined."""
    found: list[OffsetRange] = []
    for each in sorted(each for each in ranges if each.size > 0):
        last = found[-1] if found else None
        if last is not None and last.partition == each.partition and each.start <= last.end:
            found[-1] = last._replace(end=max(last.end, each.end))
        else:
            found.append(each)
    return tuple(found)


def bridged(ranges: Sequence[OffsetRange], count_max: int) -> tuple[OffsetRange, ...]:
    """Return at most ``count_max`` ranges, or one for each partition: beyond that, the narrowest gaps between them are
    included."""
    found = joined(ranges)
    partitions = {each.partition for each in found}
    surplus = len(found) - max(count_max, len(partitions))
    if surplus <= 0:
        return found
    gaps = [
        (after.start - before.end, index)
        for index, (before, after) in enumerate(pairwise(found))
        if before.partition == after.partition
    ]
    taken = {index for _, index in sorted(gaps)[:surplus]}
    kept: list[OffsetRange] = []
    for index, each in enumerate(found):
        if index - 1 in taken:
            kept[-1] = kept[-1]._replace(end=each.end)
        else:
            kept.append(each)
    return tuple(kept)


def clipped(bounds: Mapping[int, tuple[int, int]], wanted: Sequence[OffsetRange] = ()) -> tuple[OffsetRange, ...]:
    """The ranges within the bounds of their partitions; all of the bounds if nothing is ``wanted``."""
    ranges = wanted or tuple(OffsetRange(partition, *bound) for partition, bound in bounds.items())
    return joined(
        OffsetRange(each.partition, max(each.start, bounds[each.partition][0]), min(each.end, bounds[each.partition][1]))
        for each in ranges
        if each.partition in bounds
    )


def total_size(ranges: Iterable[OffsetRange]) -> int:
    return sum(each.size for each in ranges)


def frame_of(spark: SparkSession, table: LakeTable, ranges: Sequence[OffsetRange]) -> DataFrame:
    """The rows of those files: all rows of the ranges, and others."""
    found = pa.table(table.delta.get_add_actions(flatten=True)).to_pylist()
    return table.frame(spark, files=[str(table.place / unquote(each["path"])) for each in found if may_have(each, ranges)])


def may_have(extent: Mapping[str, Any], ranges: Sequence[OffsetRange]) -> bool:
    """Whether a file may hold the offsets. ``extent`` is what the table's log says about it. A file without numbers may hold
    anything."""
    names = ("min.partition", "max.partition", "min.offset", "max.offset")
    if any(extent.get(name) is None for name in names):
        return True
    first_partition, last_partition, first, last = (extent[name] for name in names)
    return any(first_partition <= each.partition <= last_partition and each.start <= last and first < each.end for each in ranges)
