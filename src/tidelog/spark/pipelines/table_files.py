"""The files of a table that may have rows of some ranges of offsets, by the smallest and greatest of each in the table's log."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidelog.spark.pipelines.offset_ranges import OffsetRange
from tidelog.spark.tables.lake_table import LakeTable


def frame_of(spark: SparkSession, table: LakeTable, ranges: Sequence[OffsetRange]) -> DataFrame:
    """The rows of those files: all rows of the ranges, and others."""
    found = pa.table(table.delta.get_add_actions(flatten=True)).to_pylist()
    return table.frame(spark, files=[str(table.place / unquote(each["path"])) for each in found if may_have(each, ranges)])


def may_have(extent: Mapping[str, Any], ranges: Sequence[OffsetRange]) -> bool:
    """``extent`` is what the log has of a file. One without numbers may have anything."""
    names = ("min.partition", "max.partition", "min.offset", "max.offset")
    if any(extent.get(name) is None for name in names):
        return True
    first_partition, last_partition, first, last = (extent[name] for name in names)
    return any(first_partition <= each.partition <= last_partition and each.start <= last and first < each.end for each in ranges)
