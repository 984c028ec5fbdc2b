"""Rows of an archive as messages, on a small frame: which of them, in which order, with what."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere with Spark

from tidelog.client.errors import InvalidArgument
from tidelog.spark.pipelines.offset_ranges import OffsetRange
from tidelog.spark.pipelines.replay_rows import Selection, counted, is_within, messages, selected, time_ms

SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, partition int, offset bigint, "
    "timestamp timestamp, bad boolean"
)
MOMENT = datetime(2026, 1, 5, 12, tzinfo=UTC)
MOMENT_MS = int(MOMENT.timestamp() * 1000)


def table(spark: SparkSession) -> DataFrame:
    """Two partitions of 40, out of order. A second between messages; key 1 of 4; every tenth is bad."""
    rows: list[Any] = [
        (b"%d" % (offset % 4), b"%d" % offset, None, partition, offset, MOMENT + timedelta(seconds=offset), offset % 10 == 9)
        for partition in range(2)
        for offset in range(40)
    ]
    random.Random(1).shuffle(rows)
    return spark.createDataFrame(rows, SCHEMA)


def test_which_rows(spark: SparkSession) -> None:
    rows = table(spark)
    chosen = {
        "time": Selection(from_ms=MOMENT_MS + 5_000, to_ms=MOMENT_MS + 8_000),
        "offsets": Selection(ranges=(OffsetRange(0, 38, 99), OffsetRange(1, 0, 2))),
        "keys": Selection(keys=("1", "3"), ranges=(OffsetRange(1, 0, 8),)),
        "good": Selection(is_good_only=True, ranges=(OffsetRange(0, 7, 12),)),
    }
    parts = [
        selected(rows, selection).select(F.lit(name).alias("name"), "partition", "offset") for name, selection in chosen.items()
    ]
    found = parts[0].union(parts[1]).union(parts[2]).union(parts[3]).collect()
    assert sorted(map(tuple, found)) == sorted(
        [("time", partition, offset) for partition in range(2) for offset in (5, 6, 7)]
        + [("offsets", 0, 38), ("offsets", 0, 39), ("offsets", 1, 0), ("offsets", 1, 1)]
        + [("keys", 1, offset) for offset in (1, 3, 5, 7)]
        + [("good", 0, offset) for offset in (7, 8, 10, 11)]
    )


def test_a_partition_is_one_task_in_order(spark: SparkSession) -> None:
    rows = table(spark).repartition(4).where(is_within([OffsetRange(0, 0, 30), OffsetRange(1, 3, 40)]))
    sent = messages(rows, keeps_partitions=True, keeps_timestamps=True)
    assert sent.columns == ["key", "value", "headers", "partition", "timestamp"]
    found = sent.withColumn("task", F.spark_partition_id()).collect()
    for partition, offsets in ((0, range(30)), (1, range(3, 40))):
        of_partition = [row for row in found if row.partition == partition]
        assert [int(row.value) for row in of_partition] == list(offsets)
        assert len({row.task for row in of_partition}) == 1
    assert messages(rows, keeps_partitions=False, keeps_timestamps=False).columns == ["key", "value", "headers"]


def test_how_many_there_are_where(spark: SparkSession) -> None:
    found = counted(table(spark).where("offset != 20"), 20).orderBy("partition", "first").collect()
    assert [tuple(row) for row in found] == [
        (partition, first, last, rows, MOMENT_MS + 1000 * first)
        for partition in range(2)
        for first, last, rows in ((0, 19, 20), (21, 39, 19))
    ]


def test_times_as_users_write_them() -> None:
    for text in ("2026-01-05T12:00", "2026-01-05 12:00:00Z", "2026-01-05T13:00+01:00", str(MOMENT_MS)):
        assert time_ms("--from-time", text) == MOMENT_MS
    with pytest.raises(InvalidArgument, match="--from-time is a time such as"):
        time_ms("--from-time", "yesterday")
