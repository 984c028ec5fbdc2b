"""Ranges of offsets: read, joined, clipped, and made fewer.

Files that cannot have a row of the wanted offsets are not read; whatever may have one is.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.tables.test_lake_table import BY, ensure, rows
from tidelog.client.errors import InvalidArgument
from tidelog.spark.options import OFFSETS_MAX
from tidelog.spark.pipelines.offset_ranges import (
    OffsetRange,
    bridged,
    clipped,
    frame_of,
    joined,
    may_have,
    parse_ranges,
    total_size,
)
from tidelog.spark.tables.data_files import write_files
from tidelog.spark.tables.lake_table import LakeTable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", (3, 0, OFFSETS_MAX)),
        ("3:57", (3, 57, 58)),
        ("3:0", (3, 0, 1)),
        ("3:100-200", (3, 100, 200)),
        ("3:100-", (3, 100, OFFSETS_MAX)),
        ("3:-200", (3, 0, 200)),
        (" 0:1-2 ", (0, 1, 2)),
    ],
)
def test_what_users_write(text: str, expected: tuple[int, int, int]) -> None:
    assert parse_ranges("--offsets", [text]) == (OffsetRange(*expected),)


@pytest.mark.parametrize("text", ["", "x", "3:", "3:-", "-1", "3:5-x", "3:1-2-3", "3;1-2", "3:9-8", "3:8-8"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--offsets"):
        parse_ranges("--offsets", [text])


def test_ranges_that_touch_are_one() -> None:
    given = [OffsetRange(1, 5, 9), OffsetRange(0, 0, 5), OffsetRange(0, 5, 7), OffsetRange(0, 6, 6), OffsetRange(0, 8, 9)]
    assert joined(given) == (OffsetRange(0, 0, 7), OffsetRange(0, 8, 9), OffsetRange(1, 5, 9))
    assert total_size(joined(given)) == 12


def test_clipped_to_what_is_there() -> None:
    bounds = {0: (10, 20), 1: (0, 0)}
    assert clipped(bounds) == (OffsetRange(0, 10, 20),)
    wanted = [OffsetRange(0, 0, 12), OffsetRange(0, 18, 99), OffsetRange(0, 30, 40), OffsetRange(1, 0, 5), OffsetRange(7, 0, 5)]
    assert clipped(bounds, wanted) == (OffsetRange(0, 10, 12), OffsetRange(0, 18, 20))


def test_fewer_ranges_take_in_the_narrowest_gaps() -> None:
    given = [OffsetRange(0, 0, 10), OffsetRange(0, 11, 20), OffsetRange(0, 100, 110), OffsetRange(1, 0, 1)]
    assert bridged(given, 4) == tuple(given)
    assert bridged(given, 3) == (OffsetRange(0, 0, 20), OffsetRange(0, 100, 110), OffsetRange(1, 0, 1))
    assert bridged(given, 1) == (OffsetRange(0, 0, 110), OffsetRange(1, 0, 1)), "a partition at the least"


EXTENT = {"min.partition": 0, "max.partition": 1, "min.offset": 10, "max.offset": 19}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (OffsetRange(0, 0, 10), False),
        (OffsetRange(0, 0, 11), True),
        (OffsetRange(1, 19, 99), True),
        (OffsetRange(1, 20, 99), False),
        (OffsetRange(2, 10, 20), False),
    ],
)
def test_what_a_file_may_have(wanted: OffsetRange, expected: bool) -> None:
    assert may_have(EXTENT, [wanted]) is expected
    assert may_have({**EXTENT, "max.offset": None}, [wanted]), "nobody knows"
    assert not may_have(EXTENT, [])


def test_only_such_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    for first in (0, 20, 40):
        table = ensure(tmp_path)
        table.append(write_files([rows(first, 20)], table.place, BY, ("partition", "offset")), {})
    found = frame_of(spark, LakeTable.open(tmp_path), [OffsetRange(0, 25, 27)])
    # Every tenth row is bad, and in a file of its own, which begins at 29.
    assert sorted(row.offset for row in found.select("offset").collect()) == [*range(20, 29), *range(30, 39)]
