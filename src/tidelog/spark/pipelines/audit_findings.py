"""What differs, row by row, each by partition and offset, and what it means. Frames in, frames out. Pure.

A *difference* is what two readings of the same offsets do not agree in: ``gap`` (the topic has it, the table does not),
``duplicate``, ``changed``, ``absent`` (the table has it, the topic does not), ``foreign`` (it never was of this topic).

What an absent row means is said last, when it is known how far retention came while the audit read: it has expired, or
compaction took it, or it is foreign.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere with Spark

from tidelog.spark.pipelines.audit_rows import CONTENT, EXPIRED, FOREIGN

GAP, DUPLICATE, CHANGED, ABSENT, COMPACTED = "gap", "duplicate", "changed", "absent", "compacted"
FINDINGS = (GAP, DUPLICATE, CHANGED, FOREIGN)
"""What makes an audit fail; the others are counted."""


def differences(topic: DataFrame, table: DataFrame, topic_name: str) -> DataFrame:
    """Both placed, and of the same offsets. Columns: kind, partition, offset, detail."""
    return _of_residents(topic, table.where(F.col("place") != FOREIGN)).unionByName(_of_strays(table, topic_name))


def _of_residents(topic: DataFrame, table: DataFrame) -> DataFrame:
    """Of places that the topic can have: what it has there, beside every copy that the table has."""
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
        # A message without headers and one with none of them are the same message.
        sent, kept = F.when(F.size(sent) > 0, sent), F.when(F.size(kept) > 0, kept)
    is_in_both = F.col("sent").isNotNull() & F.col("kept").isNotNull()
    return F.when(is_in_both & ~sent.eqNullSafe(kept), F.lit(name))


def _difference(kind: str, detail: Column) -> Column:
    return F.struct(F.lit(kind).alias("kind"), detail.alias("detail"))


def _of_strays(table: DataFrame, topic: str) -> DataFrame:
    """Rows that cannot be of the topic, whatever it has."""
    detail = (
        F.when(F.col("topic").isNull(), "without a topic")
        .when(F.col("topic") != topic, F.concat(F.lit("of topic "), F.col("topic")))
        .when(F.col("partition").isNull() | F.col("offset").isNull(), "without a place in the topic")
        .when(F.col("end").isNull(), "the topic has no such partition")
        .otherwise("the archive has not come to this offset, or the topic does not go so far")
    )
    strays = table.where(F.col("place") == FOREIGN)
    return strays.select(F.lit(FOREIGN).alias("kind"), "partition", "offset", detail.alias("detail"))


def settled(found: DataFrame, bounds: DataFrame, is_compacted: bool) -> DataFrame:
    """``bounds`` as they are now: retention may have gone on meanwhile."""
    meaning = F.when(F.col("offset") < F.col("log_start"), EXPIRED).otherwise(COMPACTED if is_compacted else FOREIGN)
    known = found.join(F.broadcast(bounds.select("partition", "log_start")), "partition", "left")
    return known.withColumn("kind", F.when(F.col("kind") == ABSENT, meaning).otherwise(F.col("kind"))).drop("log_start")
