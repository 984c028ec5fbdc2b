"""Compares rows of a topic with rows of a table, as frames: sums by portion of offsets, then row by row where these differ. Pure.

**Sums.** A row's fingerprint is 64 bits over its place and everything a message has; null and empty differ. A portion is summed
up as its number of rows, its number of distinct offsets, and the sum of each 32-bit half of the fingerprints, so that no sum
overflows. Portions that agree in all of these hold the same rows, except for a chance of one in 2^64.

**Differences.** Two readings of the same offsets may disagree in a ``gap`` (the topic has a row, the table does not), a
``duplicate``, a ``changed`` row, an ``absent`` row (the table has it, the topic does not) or a ``foreign`` row (it never belonged
to this topic). What an absent row means is decided last, when it is known how far retention got while the audit read: it has
expired, or was compacted away, or is foreign.
"""

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere with Spark

CONTENT = ("key", "value", "headers", "timestamp", "timestampType")
RAW = ("topic", "partition", "offset", *CONTENT)
INSIDE, EXPIRED, FOREIGN, LATER = "inside", "expired", "foreign", "later"
"""The place of a row of the table: within the comparison, before the log's start, or nowhere in the topic. LATER is a row of the
topic that the table has not reached."""
CELL = ("partition", "portion", "place")
_LOW_BITS = 0xFFFFFFFF


def placed_table(table: DataFrame, topic: str, bounds: DataFrame, size: int) -> DataFrame:
    """``bounds`` holds the start of the log and the end of the comparison for each partition: partition, log_start, end."""
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
    """The rows of a sample. ``ranges`` has the columns partition, portion, first and last."""
    wanted = F.broadcast(ranges.withColumnsRenamed({"partition": "range_partition", "portion": "range_portion"}))
    is_in = (
        (F.col("partition") == F.col("range_partition"))
        & (_portion(size) == F.col("range_portion"))
        & F.col("offset").between(F.col("first"), F.col("last"))
    )
    # A table may have further columns of any name.
    return rows.select(*RAW).join(wanted, is_in, "left_semi")


def sums(rows: DataFrame, size: int) -> DataFrame:
    """Sums of placed rows by partition, portion and place."""
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
    """Hash a row. Spark's hash skips nulls, so each null is added explicitly; each field has its own hash, which marks where it
    ends."""
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
    """Collects sums, which are few, in order."""
    return sorted(frame.collect(), key=lambda row: tuple((value is not None, value) for value in row[:3]))


# -- row by row ---------------------------------------------------------------------------------------------------------------


GAP, DUPLICATE, CHANGED, ABSENT, COMPACTED = "gap", "duplicate", "changed", "absent", "compacted"
FINDINGS = (GAP, DUPLICATE, CHANGED, FOREIGN)
"""The kinds that make an audit fail; the others are only counted."""


def differences(topic: DataFrame, table: DataFrame, topic_name: str) -> DataFrame:
    """Both frames are placed, and cover the same offsets. Columns: kind, partition, offset, detail."""
    return _of_residents(topic, table.where(F.col("place") != FOREIGN)).unionByName(_of_strays(table, topic_name))


def _of_residents(topic: DataFrame, table: DataFrame) -> DataFrame:
    """Join each offset that the topic can have: the topic's row next to every copy in the table."""
    one = topic.select("partition", "offset", F.struct(*CONTENT).alias("sent"))
    other = table.select("partition", "offset", F.struct(*CONTENT).alias("kept"), (F.col("place") == EXPIRED).alias("expired"))
    both = one.join(other, ["partition", "offset"], "full_outer").select(
        "partition",
        "offset",
        F.col("sent").isNotNull().alias("is_sent"),
        F.col("kept").isNotNull().alias("is_kept"),
        F.coalesce("expired", F.lit(False)).alias("expired"),
        F.array_compact(F.array(*(_change(name) for name in CONTENT))).alias("changes"),
    )
    places = both.groupBy("partition", "offset").agg(
        F.max("is_sent").alias("is_sent"),
        F.sum(F.col("is_kept").cast("int")).alias("copies"),
        F.max("expired").alias("expired"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("changes")))).alias("changes"),
    )
    copies = F.col("copies")
    found = [
        F.when(F.col("is_sent") & (copies == 0), _difference(GAP, F.lit(""))),
        F.when(copies > 1, _difference(DUPLICATE, F.concat(copies.cast("string"), F.lit(" copies")))),
        F.when(F.col("is_sent") & (copies > 0) & (F.size("changes") > 0), _difference(CHANGED, F.array_join("changes", ", "))),
        F.when(~F.col("is_sent") & ~F.col("expired"), _difference(ABSENT, F.lit("the topic has no such message"))),
    ]
    return places.select("partition", "offset", F.explode(F.array_compact(F.array(*found))).alias("each")).select(
        "each.kind", "partition", "offset", "each.detail"
    )


def _change(name: str) -> Column:
    sent, kept = F.col(f"sent.{name}"), F.col(f"kept.{name}")
    if name == "headers":
        # Null headers and an empty list of headers mean the same.
        sent, kept = F.when(F.size(sent) > 0, sent), F.when(F.size(kept) > 0, kept)
    is_in_both = F.col("sent").isNotNull() & F.col("kept").isNotNull()
    return F.when(is_in_both & ~sent.eqNullSafe(kept), F.lit(name))


def _difference(kind: str, detail: Column) -> Column:
    return F.struct(F.lit(kind).alias("kind"), detail.alias("detail"))


def _of_strays(table: DataFrame, topic: str) -> DataFrame:
    """Rows that cannot belong to the topic, whatever it holds."""
    detail = (
        F.when(F.col("topic").isNull(), "without a topic")
        .when(F.col("topic") != topic, F.concat(F.lit("of topic "), F.col("topic")))
        .when(F.col("partition").isNull() | F.col("offset").isNull(), "without a place in the topic")
        .when(F.col("end").isNull(), "the topic has no such partition")
        .otherwise("the archive has not come to this offset, or the topic does not go so far")
    )
    strays = table.where(F.col("place") == FOREIGN)
    return strays.select(F.lit(FOREIGN).alias("kind"), "partition", "offset", detail.alias("detail"))


def with_meaning(found: DataFrame, bounds: DataFrame, is_compacted: bool) -> DataFrame:
    """``bounds`` are current, because retention may have continued in the meantime."""
    meaning = F.when(F.col("offset") < F.col("log_start"), EXPIRED).otherwise(COMPACTED if is_compacted else FOREIGN)
    known = found.join(F.broadcast(bounds.select("partition", "log_start")), "partition", "left")
    return known.withColumn("kind", F.when(F.col("kind") == ABSENT, meaning).otherwise(F.col("kind"))).drop("log_start")
