"""Files that cannot have a row of the wanted offsets are not read; whatever may have one is."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.tables.test_lake_table import BY, ensure, rows
from tidelog.spark.pipelines.offset_ranges import OffsetRange
from tidelog.spark.pipelines.table_files import frame_of, may_have
from tidelog.spark.tables.data_files import write_files
from tidelog.spark.tables.lake_table import LakeTable

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
