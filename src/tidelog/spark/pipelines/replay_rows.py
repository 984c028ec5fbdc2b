"""Rows of an archive as messages again. Frames in, frames out. Pure."""

import datetime
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere with Spark

from tidelog.client.errors import InvalidArgument
from tidelog.spark.pipelines.offset_ranges import OffsetRange


class Selection(NamedTuple):
    """Which rows of a table; ``to_ms`` is not in it."""

    from_ms: int | None = None
    to_ms: int | None = None
    ranges: tuple[OffsetRange, ...] = ()
    keys: tuple[str, ...] = ()
    is_good_only: bool = False


def selected(table: DataFrame, selection: Selection) -> DataFrame:
    rows = table
    if selection.from_ms is not None:
        rows = rows.where(F.col("timestamp") >= _moment(selection.from_ms))
    if selection.to_ms is not None:
        rows = rows.where(F.col("timestamp") < _moment(selection.to_ms))
    if selection.keys:
        rows = rows.where(F.col("key").isin(*(F.lit(key.encode()) for key in selection.keys)))
    if selection.is_good_only:
        rows = rows.where(~F.col("bad"))
    return rows.where(is_within(selection.ranges)) if selection.ranges else rows


def is_within(ranges: Sequence[OffsetRange]) -> Column:
    """As comparisons of columns with numbers, which Parquet files are skipped by."""
    return reduce(
        or_, ((F.col("partition") == each.partition) & F.col("offset").between(each.start, each.end - 1) for each in ranges)
    )


def counted(rows: DataFrame, bucket_offsets: int) -> DataFrame:
    """By partition and bucket of offsets: partition, first, last, rows, oldest."""
    return (
        rows.groupBy("partition", F.expr(f"`offset` div {bucket_offsets}").alias("bucket"))
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count(F.lit(1)).alias("rows"),
            F.min(F.unix_millis("timestamp")).alias("oldest_ms"),
        )
        .select("partition", "first", "last", "rows", "oldest_ms")
    )


def messages(rows: DataFrame, *, keeps_partitions: bool, keeps_timestamps: bool) -> DataFrame:
    """As the sink takes them. A source partition is written by one task in the order of its offsets, and so is every key."""
    columns = ["key", "value", "headers"]
    ordered = rows.repartition("partition").sortWithinPartitions("partition", "offset")
    if keeps_partitions:
        columns.append("partition")
    if keeps_timestamps:
        # Messages from before Kafka had times; a null is the time of sending.
        ordered = ordered.withColumn("timestamp", F.when(F.col("timestamp") >= _moment(0), F.col("timestamp")))
        columns.append("timestamp")
    return ordered.select(*columns)


def _moment(milliseconds: int) -> Column:
    return F.timestamp_millis(F.lit(milliseconds))


def time_ms(option: str, text: str) -> int:
    """ISO 8601, in UTC where no zone is given, or milliseconds since 1970."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgument(f"{option} is a time such as 2026-11-16T12:00 (UTC) or 1763290800000: not {text!r}") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp() * 1000)
