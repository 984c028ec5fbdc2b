"""What happens to a micro-batch of ``materialize``: newest rows to files on the executors, merged by the driver, and counted.

The positions of the commit are where Spark planned the batch to end, not its last offset: what follows may be markers of
transactions, or compacted away, and is behind the table all the same.
"""

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.archive_schema import BAD
from tidelog.spark.pipelines.checkpoint_offsets import offsets_of_batch, planned_batch
from tidelog.spark.pipelines.materialize_deletes import CAUGHT_UP
from tidelog.spark.pipelines.materialize_merge import merge
from tidelog.spark.pipelines.materialize_rows import keyed, newest_per_key, unsettled
from tidelog.spark.pipelines.pipeline import PipelineFailed
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.positions import position_name
from tidelog.spark.tables.upkeep import merge_after_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of one bucket. A merge makes one of those in which it changes a row; new keys alone add a file each time.
SMALL_FILES_MAX = 16
STAGED_IN, STAGED = "_tidelog", "batch-"
# Longer than any batch takes.
STAGED_HOURS_MAX = 24


def remove_leftovers(place: Path, now_seconds: float) -> None:
    """Of drivers that were killed in the middle of a batch."""
    for path in (place / STAGED_IN).glob(f"{STAGED}*"):
        if now_seconds - path.stat().st_mtime > STAGED_HOURS_MAX * 3600:
            shutil.rmtree(path, ignore_errors=True)


@dataclass
class Counts:
    messages: int = 0
    keyless: int = 0
    bad: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class MaterializeBatches:
    """Called by Spark in this process, one batch after the other."""

    def __init__(self, place: Path, checkpoint: Path, *, strict: bool, at_end_rows: int = 0) -> None:
        """A batch of fewer offsets than ``at_end_rows`` ends at the topic's end, and the table notes that; 0: none does."""
        self._place = place
        self._checkpoint = checkpoint
        self._strict = strict
        self._at_end_rows = at_end_rows
        # Not the checkpoint's, nor the same for all: of two runs on one table neither may read the other's rows.
        self._staged = place / STAGED_IN / f"{STAGED}{secrets.token_hex(8)}"
        self.counts = Counts()

    def __call__(self, rows: "DataFrame", number: int) -> None:
        table = LakeTable.open(self._place)
        planned = planned_batch(self._checkpoint, number)
        ends = planned.offset.positions
        standing = {partition: table.position(position_name(*partition)) for partition in ends}
        if all(end <= standing[partition] for partition, end in ends.items()):
            return
        positions = {position_name(*partition): max(end, standing[partition]) for partition, end in ends.items()}
        # Of the batch, not of what the table lacks of it: under an old checkpoint a full one may bring little news.
        if self._at_end_rows and offsets_of_batch(self._checkpoint, number) < self._at_end_rows:
            positions[CAUGHT_UP] = planned.planned_ms
        fresh = unsettled(rows, {partition.partition: position for partition, position in standing.items()})
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
        """Writes the newest rows to files, and counts those that they come from."""
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
