"""Handles a micro-batch of ``materialize``: executors write its newest rows to files, the driver merges them and counts.

**Newest rows.** Within a partition the greater offset is newer. A key lies in one partition, unless partitions were added to its
topic: then the newest rows of each partition are compared by timestamp, and among equal ones the greater partition wins.

**The merge** streams those files into one commit with the positions, so that Spark's driver holds none of the rows. It rewrites
only files of buckets in which something changes. The positions are where Spark planned the batch to end, not its last offset:
the offsets after that may be transaction markers, or compacted away, and the table has passed them all the same.
"""

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tidelog.spark.checkpoint_offsets import offsets_of_batch, planned_batch
from tidelog.spark.pipelines.archive.rows import BAD
from tidelog.spark.pipelines.pipeline import PipelineFailed
from tidelog.spark.tables.errors import TableUnwritable
from tidelog.spark.tables.lake_table import LakeTable, commit_properties
from tidelog.spark.tables.table_sink import position_name
from tidelog.spark.tables.upkeep import merge_after_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# -- rows ---------------------------------------------------------------------------------------------------------------------


BUCKET = "bucket"


def with_bucket(rows: DataFrame, buckets: int) -> DataFrame:
    """Uses a checksum that every language has, so that anyone can tell which files hold a key."""
    return rows.withColumn(BUCKET, F.expr(f"cast(crc32(key) % {buckets} as int)"))


def after_positions(rows: DataFrame, positions: Mapping[int, int]) -> DataFrame:
    """Drops rows before the table's position in their partition: the table has seen them, or newer ones."""
    begun = {partition: position for partition, position in positions.items() if position > 0}
    if not begun:
        return rows
    settled = F.create_map(*[F.lit(number) for pair in begun.items() for number in pair])
    return rows.where(F.col("offset") >= F.coalesce(F.element_at(settled, F.col("partition")), F.lit(0)))


def keyed(rows: DataFrame) -> DataFrame:
    """Drop rows without a key, which cannot be the newest row of any."""
    return rows.where(F.col("key").isNotNull())


def newest_per_key(rows: DataFrame) -> DataFrame:
    row = F.struct(*rows.columns)
    of_partition = rows.groupBy("key", "partition").agg(F.max_by(row, "offset").alias("row"))
    order = F.struct("row.timestamp", "row.partition")
    return of_partition.groupBy("key").agg(F.max_by("row", order).alias("row")).select("row.*")


# -- the merge ----------------------------------------------------------------------------------------------------------------


# In the same partition, the row in the batch is newer: older ones were dropped by their offset.
_IS_NEWER = (
    "(s.partition = t.partition OR s.timestamp > t.timestamp OR (s.timestamp = t.timestamp AND s.partition > t.partition))"
)
_FILES = WriterProperties(compression="ZSTD", compression_level=1)


class MergeCounts(NamedTuple):
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def merge(table: LakeTable, newest: Path, positions: Mapping[str, int]) -> MergeCounts:
    """``newest`` has at most one row for a key; without a value it is a tombstone. Raises TableConflict when another run was
    faster."""
    rows = ds.dataset(newest, format="parquet", schema=_schema_in(table.columns, newest))
    buckets = _buckets_in(rows)
    if not buckets:
        table.append([], positions)
        return MergeCounts()
    columns = {f"`{name}`": f"s.`{name}`" if name in rows.schema.names else "NULL" for name in table.columns.names}
    try:
        found = (
            table.delta.merge(
                rows.scanner().to_reader(),
                f"t.{BUCKET} = s.{BUCKET} AND t.key = s.key AND t.{BUCKET} IN ({', '.join(str(each) for each in buckets)})",
                source_alias="s",
                target_alias="t",
                commit_properties=commit_properties(positions),
                writer_properties=_FILES,
            )
            .when_matched_delete(f"s.value IS NULL AND {_IS_NEWER}")
            .when_matched_update(columns, predicate=_IS_NEWER)
            .when_not_matched_insert(columns, predicate="s.value IS NOT NULL")
            .execute()
        )
    except CommitFailedError as error:
        raise table.conflict(error) from error
    except (DeltaError, OSError) as error:
        raise TableUnwritable(f"nothing can be merged into the table {table.place}: {error}") from error
    return MergeCounts(found["num_target_rows_inserted"], found["num_target_rows_updated"], found["num_target_rows_deleted"])


def _schema_in(columns: pa.Schema, newest: Path) -> pa.Schema:
    """The schema with the table's types: Spark's files have the same columns, but other names inside lists."""
    written = ds.dataset(newest, format="parquet").schema.names
    return pa.schema([field for field in columns if field.name in written])


def _buckets_in(rows: ds.Dataset) -> Sequence[int]:
    found: set[int] = set()
    for batch in rows.to_batches(columns=[BUCKET]):
        found.update(pc.unique(batch.column(BUCKET)).to_pylist())
    return sorted(found)


# -- batches ------------------------------------------------------------------------------------------------------------------


# The limit per bucket. A merge combines the files in which it changes a row; new keys alone add a file each time.
SMALL_FILES_MAX = 16
# The position that says when the table was last at the end of its topic, in milliseconds.
CAUGHT_UP = "caught-up"
STAGED_IN, STAGED = "_tidelog", "batch-"
# Longer than any batch takes.
STAGED_HOURS_MAX = 24


def remove_leftovers(place: Path, now_seconds: float) -> None:
    """Remove what drivers left that were killed in the middle of a batch."""
    for path in (place / STAGED_IN).glob(f"{STAGED}*"):
        if now_seconds - path.stat().st_mtime > STAGED_HOURS_MAX * 3600:
            shutil.rmtree(path, ignore_errors=True)


@dataclass
class MaterializeCounts:
    messages: int = 0
    keyless: int = 0
    bad: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class MaterializeBatches:
    """Called by Spark in this process, one batch after the other."""

    def __init__(self, place: Path, checkpoint: Path, *, strict: bool, at_end_rows: int = 0) -> None:
        """A batch of fewer offsets than ``at_end_rows`` ends at the topic's end, and the table notes that; with 0 no batch
        does."""
        self._place = place
        self._checkpoint = checkpoint
        self._strict = strict
        self._at_end_rows = at_end_rows
        # It is not the checkpoint's name, nor the same for all: of two runs on one table neither may read the other's rows.
        self._staged = place / STAGED_IN / f"{STAGED}{secrets.token_hex(8)}"
        self.counts = MaterializeCounts()

    def __call__(self, rows: "DataFrame", number: int) -> None:
        table = LakeTable.open(self._place)
        planned = planned_batch(self._checkpoint, number)
        ends = planned.offset.positions
        standing = {partition: table.position(position_name(*partition)) for partition in ends}
        if all(end <= standing[partition] for partition, end in ends.items()):
            return
        positions = {position_name(*partition): max(end, standing[partition]) for partition, end in ends.items()}
        # The size of the batch counts, not how much of it is new: under an old checkpoint a full batch may bring few new rows.
        if self._at_end_rows and offsets_of_batch(self._checkpoint, number) < self._at_end_rows:
            positions[CAUGHT_UP] = planned.planned_ms
        fresh = after_positions(rows, {partition.partition: position for partition, position in standing.items()})
        try:
            self._stage(fresh)
            merged = merge(table, self._staged, positions)
        finally:
            shutil.rmtree(self._staged, ignore_errors=True)
        self.counts.inserted += merged.inserted
        self.counts.updated += merged.updated
        self.counts.deleted += merged.deleted
        merge_after_commit(self._place, files_max=SMALL_FILES_MAX)

    def _stage(self, rows: "DataFrame") -> None:
        """Write the newest rows to files, and count the rows that they come from."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        # Arrow has no room for times before 1677 and after 2262 as Spark writes them by default. The session is the query's own.
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        counted = Observation()
        counts = {"messages": F.lit(1), "keyless": F.when(F.col("key").isNull(), 1), BAD: F.when(F.col(BAD), 1)}
        observed = rows.observe(counted, *[F.count(column).alias(name) for name, column in counts.items()])
        newest_per_key(keyed(observed)).write.mode("overwrite").parquet(str(self._staged))
        # Where there are no rows at all, Spark may leave out what would count them.
        found = dict.fromkeys(counts, 0) | counted.get
        if self._strict and found["keyless"]:
            raise PipelineFailed(
                f"{found['keyless']} messages of this batch have no key, and --strict was given: nothing of the batch was merged"
            )
        self.counts.messages += found["messages"]
        self.counts.keyless += found["keyless"]
        self.counts.bad += found[BAD]
