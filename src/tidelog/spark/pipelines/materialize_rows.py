"""Which rows of a batch a table of the newest row per key gets. Pure: DataFrame in, DataFrame out.

Within a partition the greater offset is the newer row. A key has one partition, unless partitions were added to its topic: then
the newest row of each is compared by timestamp, and of equal ones the greater partition wins.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

BUCKET = "bucket"


def with_bucket(rows: DataFrame, buckets: int) -> DataFrame:
    """By a checksum that every language has, so that whoever looks for one key can tell in which files it is."""
    return rows.withColumn(BUCKET, F.expr(f"cast(crc32(key) % {buckets} as int)"))


def unsettled(rows: DataFrame, positions: Mapping[int, int]) -> DataFrame:
    """Without those that come before the table's position in their partition: it has heard of them, or of newer ones."""
    begun = {partition: position for partition, position in positions.items() if position > 0}
    if not begun:
        return rows
    settled = F.create_map(*[F.lit(number) for pair in begun.items() for number in pair])
    return rows.where(F.col("offset") >= F.coalesce(F.element_at(settled, F.col("partition")), F.lit(0)))


def keyed(rows: DataFrame) -> DataFrame:
    """A row without a key is nobody's newest."""
    return rows.where(F.col("key").isNotNull())


def newest_per_key(rows: DataFrame) -> DataFrame:
    row = F.struct(*rows.columns)
    of_partition = rows.groupBy("key", "partition").agg(F.max_by(row, "offset").alias("row"))
    order = F.struct("row.timestamp", "row.partition")
    return of_partition.groupBy("key").agg(F.max_by("row", order).alias("row")).select("row.*")
