"""Rows of a topic against rows of a table, as frames: sums by portion of offsets first, then row by row where these differ. Pure.

A row's fingerprint is 64 bits over its place and all that a message has; absent and empty are not the same. Of a portion there
are the number of rows, the number of different offsets, and the fingerprints summed, each half of 32 bits by itself, so that no
sum overflows. Portions that agree in all of these hold the same rows, but for one chance in 2^64.
"""

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere with Spark

CONTENT = ("key", "value", "headers", "timestamp", "timestampType")
RAW = ("topic", "partition", "offset", *CONTENT)
INSIDE, EXPIRED, FOREIGN, LATER = "inside", "expired", "foreign", "later"
"""Where a row of the table lies: within what is compared; before the log's start; nowhere in the topic. LATER is a row of the
topic that the table has not come to."""
CELL = ("partition", "portion", "place")
_LOW_BITS = 0xFFFFFFFF


def placed_table(table: DataFrame, topic: str, bounds: DataFrame, size: int) -> DataFrame:
    """``bounds`` has of each partition where the log starts and where the comparison ends: partition, log_start, end."""
    offset = F.col("offset")
    is_of_topic = F.col("topic").eqNullSafe(topic) & F.col("end").isNotNull() & (offset >= 0)
    place = (
        F.when(~F.coalesce(is_of_topic, F.lit(False)), FOREIGN)
        .when(offset < F.col("log_start"), EXPIRED)
        .when(offset >= F.col("end"), FOREIGN)
        .otherwise(INSIDE)
    )
    rows = table.select(*RAW).join(F.broadcast(bounds), "partition", "left")
    return rows.withColumn("place", place).withColumn("portion", _portion(size)).drop("log_start")


def placed_topic(rows: DataFrame, bounds: DataFrame, size: int) -> DataFrame:
    known = rows.select("partition", "offset", *CONTENT).join(F.broadcast(bounds), "partition")
    place = F.when(F.col("offset") >= F.col("end"), LATER).otherwise(INSIDE)
    return known.withColumn("place", place).withColumn("portion", _portion(size)).drop("log_start", "end")


def chosen(rows: DataFrame, ranges: DataFrame, size: int) -> DataFrame:
    """Those in the ranges: partition, portion, first, last. For a sample."""
    wanted = F.broadcast(ranges.withColumnsRenamed({"partition": "range_partition", "portion": "range_portion"}))
    is_in = (
        (F.col("partition") == F.col("range_partition"))
        & (_portion(size) == F.col("range_portion"))
        & F.col("offset").between(F.col("first"), F.col("last"))
    )
    # A table may have columns of any name beside these.
    return rows.select(*RAW).join(wanted, is_in, "left_semi")


def sums(rows: DataFrame, size: int) -> DataFrame:
    """Of rows that are placed, by partition, portion and place."""
    mark = fingerprint()
    return (
        rows.withColumns({"low": mark.bitwiseAND(_LOW_BITS), "high": F.shiftrightunsigned(mark, 32)})
        .withColumn("bit", F.pmod(F.col("offset"), F.lit(size)))
        .groupBy(*CELL)
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.bitmap_count(F.bitmap_construct_agg("bit")).alias("offsets"),
            F.sum("low").alias("low"),
            F.sum("high").alias("high"),
        )
    )


def fingerprint() -> Column:
    """Spark's hash passes over nulls, so that each is said; and where one field ends is said by its own hash."""
    header = F.transform(
        F.coalesce(F.col("headers"), F.array()),
        lambda each: F.struct(each["key"].isNull(), each["key"], each["value"].isNull(), each["value"]),
    )
    plain = [part for name in CONTENT if name != "headers" for part in (F.col(name).isNull(), F.col(name))]
    return F.xxhash64("partition", "offset", *plain, F.size(header), header)


def compared(topic: DataFrame, table: DataFrame) -> DataFrame:
    """The sums of both, side by side: partition, portion, place, topic_rows, table_rows, differs."""
    one, other = topic.alias("topic"), table.alias("table")
    is_same_cell = F.lit(True)
    for name in CELL:
        is_same_cell = is_same_cell & F.col(f"topic.{name}").eqNullSafe(F.col(f"table.{name}"))
    is_equal = F.lit(True)
    for name in ("rows", "offsets", "low", "high"):
        is_equal = is_equal & F.col(f"topic.{name}").eqNullSafe(F.col(f"table.{name}"))
    place = F.coalesce("topic.place", "table.place")
    differs = (
        F.when(place == INSIDE, ~is_equal)
        .when(place == EXPIRED, F.col("table.rows") != F.col("table.offsets"))
        .otherwise(place == FOREIGN)
    )
    return one.join(other, is_same_cell, "full_outer").select(
        *(F.coalesce(f"topic.{name}", f"table.{name}").alias(name) for name in CELL),
        F.coalesce("topic.rows", F.lit(0)).alias("topic_rows"),
        F.coalesce("table.rows", F.lit(0)).alias("table_rows"),
        differs.alias("differs"),
    )


def in_cells(rows: DataFrame, cells: DataFrame) -> DataFrame:
    is_same_cell = F.lit(True)
    for name in CELL:
        is_same_cell = is_same_cell & rows[name].eqNullSafe(cells[name])
    return rows.join(F.broadcast(cells), is_same_cell, "left_semi")


def _portion(size: int) -> Column:
    return F.expr(f"`offset` div {size}")


def rows_of(frame: DataFrame) -> list[Any]:
    """In order, for the driver: sums, which are few."""
    return sorted(frame.collect(), key=lambda row: tuple((value is not None, value) for value in row[:3]))
