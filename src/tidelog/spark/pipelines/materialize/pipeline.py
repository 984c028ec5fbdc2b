"""Materializes a keyed or compacted topic as a Delta table of the newest row per key: upserts, and deletes where the value is
null.

Spark reduces each micro-batch to its newest row per key, and one commit merges them into the table together with the offset that
comes next in each partition. Later batches drop rows before that offset, so whatever arrives again, after a crash or under
another checkpoint, changes nothing: no older row returns, and no deleted one.

A table is divided into buckets by key, and keeps their number for life. Beside it, in ``_tidelog``, are the checkpoint and the
rows of the batch that is being merged.

**Missed deletes.** Compaction removes a tombstone some time after it has removed what the tombstone deletes. A table that was
away for longer than tombstones are kept still has rows that the topic no longer has, and nothing in the topic says so. Beside
its positions, the table therefore keeps when it was last at the topic's end (``caught-up``, in milliseconds). A run that begins
too long after that is refused; half of the time for which tombstones are kept remains for the run to read.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.checkpoint_offsets import last_batch_done, planned_batch
from tidelog.spark.pipelines.archive.pipeline import starting_offsets
from tidelog.spark.pipelines.archive.rows import archive_columns, archive_rows, read_schema
from tidelog.spark.pipelines.archive.source import messages_with_fields
from tidelog.spark.pipelines.materialize.batches import BUCKET, CAUGHT_UP, MaterializeBatches, remove_leftovers, with_bucket
from tidelog.spark.pipelines.options import TableStreamOptions, flag
from tidelog.spark.pipelines.pipeline import PipelineOutcome, Reporter
from tidelog.spark.pipelines.query_run import run_query
from tidelog.spark.pipelines.topics import FoundTopic, TopicSnapshot, find_topics, topic_snapshot
from tidelog.spark.tables.errors import TableConflict, TableError, TableMissing, WrongTable
from tidelog.spark.tables.lake_table import LakeTable, check_checkpoint_place, local_path
from tidelog.spark.tables.table_sink import position_name
from tidelog.spark.tables.upkeep import vacuumed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY = "A keyed or compacted topic to a Delta table of the newest row per key."
EXAMPLE = "tidelog pipeline run materialize --topic customers --table lake/customers --schema 'name STRING, city STRING'"

KIND = "materialize"
BUCKETS = 16
BUCKETS_MAX = 4096
# With 1 KiB each this is half a GiB, which a merge holds in memory.
ROWS_PER_BATCH = 500_000
# Every merge rewrites files. The old ones are needed only by readers that began before.
RETENTION_HOURS = 24


@dataclass(frozen=True, kw_only=True)
class MaterializeOptions(TableStreamOptions):
    topic: str = flag("The topic; its messages have keys.", "NAME")
    buckets: int | None = flag(
        f"Number of parts by key that a new table has for good; {BUCKETS} by default.", "COUNT", default=None
    )
    strict: bool = flag("Fail on a message without a key instead of skipping and counting it.", default=False)
    batch_rows: int = flag("The greatest number of messages in one merge.", "COUNT", default=ROWS_PER_BATCH)
    retention_hours: int = flag(
        "Files that the table no longer uses are removed after this time.", "HOURS", default=RETENTION_HOURS
    )
    skip_lost: bool = flag("Continue where the topic has lost messages, or deletes, before they were read.", default=False)

    def __post_init__(self) -> None:
        if not self.topic:
            raise InvalidArgument("--topic is missing: the topic to materialize")
        if self.buckets is not None and not 1 <= self.buckets <= BUCKETS_MAX:
            raise InvalidArgument(f"--buckets is 1 to {BUCKETS_MAX}: not {self.buckets}")
        super().__post_init__()

    @property
    def place(self) -> Path:
        return local_path(self.table)

    @property
    def checkpoint_place(self) -> Path:
        return local_path(self.checkpoint) if self.checkpoint else self.place / "_tidelog" / "checkpoint"


OPTIONS = MaterializeOptions


def run(spark: "SparkSession", options: MaterializeOptions, reporter: Reporter) -> PipelineOutcome:
    schema = read_schema(options.schema, options.schema_file)
    (topic,) = find_topics(options, [options.topic])
    check_checkpoint_place(options.checkpoint_place, options.place)
    table = ensure_table(options, topic, schema)
    check_checkpoint(table, options.checkpoint_place)
    began_ms = now_ms()
    remove_leftovers(table.place, began_ms / 1000)
    facts = facts_of(options)
    if not options.skip_lost:
        check_deletes(table, facts, began_ms)
    if noted := first_time(table, facts, began_ms):
        table.append([], noted)
    reporter.step(f"merging {topic.name}, {topic.partitions} partitions, into {table.place}")
    at_end_rows = options.batch_rows if options.continuous and facts.is_compacted else 0
    batches = MaterializeBatches(table.place, options.checkpoint_place, strict=options.strict, at_end_rows=at_end_rows)
    rows = materialized_rows(messages_of(spark, options, topic, table, schema), schema, int(table.identity["buckets"]))
    writer = rows.writeStream.foreachBatch(batches).option("checkpointLocation", str(options.checkpoint_place))
    with vacuumed([table.place], retention_hours=options.retention_hours):
        end = run_query(writer.trigger(**options.trigger).start(), reporter, unit="messages")
    if facts.is_compacted:
        note_caught_up(options, None if end.is_stopped else began_ms)
    return outcome_of(options, batches, is_stopped=end.is_stopped)


def table_columns(schema: StructType | None) -> pa.Schema:
    """The columns of an archive without the day: a row is replaced, not kept by its time."""
    fields = [field for field in archive_columns(schema) if field.name != "day"]
    return pa.schema([*fields, pa.field(BUCKET, pa.int32())])


def materialized_rows(messages: "DataFrame", schema: StructType | None, buckets: int) -> "DataFrame":
    return with_bucket(archive_rows(messages, schema), buckets).select(*table_columns(schema).names)


def ensure_table(options: MaterializeOptions, topic: FoundTopic, schema: StructType | None) -> LakeTable:
    if schema is not None and BUCKET in [name.lower() for name in schema.names]:
        raise InvalidArgument(
            f"the schema has a field {BUCKET}, and the table has a column of that name of its own: leave it out"
        )
    try:
        buckets = LakeTable.open(options.place, kind=KIND).identity.get("buckets", "")
    except TableMissing:
        buckets = str(BUCKETS)
    identity = {"kind": KIND, "topic": topic.name} | ({"topic_id": topic.topic_id} if topic.topic_id else {})
    identity["buckets"] = buckets if options.buckets is None else str(options.buckets)
    return LakeTable.ensure(options.place, table_columns(schema), partition_by=(BUCKET,), identity=identity)


def check_checkpoint(table: LakeTable, checkpoint: Path) -> None:
    """Refuse a checkpoint that is ahead of the table: a query continues where its checkpoint says, and the rows between would be
    in neither."""
    done = last_batch_done(checkpoint)
    if done is None:
        return
    for partition, end in planned_batch(checkpoint, done).offset.positions.items():
        position = table.position(position_name(*partition))
        if position < end:
            raise WrongTable(
                f"the checkpoint {checkpoint} has done {position_name(*partition)} up to offset {end}, and the table "
                f"{table.place} has it up to {position}: it is of another table; remove it, or name another with --checkpoint"
            )


def messages_of(
    spark: "SparkSession", options: MaterializeOptions, topic: FoundTopic, table: LakeTable, schema: StructType | None
) -> "DataFrame":
    return messages_with_fields(spark, options.source(topic.name, starting_offsets(topic, table)), schema)


def facts_of(options: MaterializeOptions) -> TopicSnapshot:
    return topic_snapshot({**options.connection, "subscribe": options.topic})


def note_caught_up(options: MaterializeOptions, reached_ms: int | None) -> None:
    """Note that the end as it was at ``reached_ms`` is passed, even if nothing has arrived since."""
    table, asked_ms = LakeTable.open(options.place), now_ms()
    caught_up_ms = asked_ms if is_at_end(table, facts_of(options)) else reached_ms
    if caught_up_ms is not None:
        # Another run may be noting the same.
        with contextlib.suppress(TableConflict):
            table.append([], {CAUGHT_UP: caught_up_ms})


def now_ms() -> int:
    return int(time.time() * 1000)


def outcome_of(options: MaterializeOptions, batches: MaterializeBatches, *, is_stopped: bool) -> PipelineOutcome:
    counts = batches.counts
    table = LakeTable.open(options.place)
    keys = table.delta.count()
    stopped = "; stopped, the same command continues from here" if is_stopped else ""
    return PipelineOutcome(
        f"{counts.messages:,} messages of {options.topic} merged: {keys:,} keys are in {options.table}{stopped}",
        {
            "messages": counts.messages,
            "without_key": counts.keyless,
            "bad": counts.bad,
            "inserted": counts.inserted,
            "updated": counts.updated,
            "deleted": counts.deleted,
            "keys": keys,
            "version": table.version,
        },
    )


# -- deletes ------------------------------------------------------------------------------------------------------------------


# Kafka's default, where the setting may not be read.
_DELETE_RETENTION_MS = 86_400_000


class DeletesMissed(TableError):
    """Rows may have been deleted in the topic but not in the table."""


def check_deletes(table: LakeTable, facts: TopicSnapshot, now_ms: int) -> None:
    caught_up_ms = table.position(CAUGHT_UP)
    if not facts.is_compacted or not caught_up_ms or is_at_end(table, facts):
        return
    kept_ms = int(facts.settings.get("delete.retention.ms", _DELETE_RETENTION_MS))
    if now_ms - caught_up_ms > kept_ms // 2:
        raise DeletesMissed(
            f"the table {table.place} was last at the end of {facts.topic} {_hours(now_ms - caught_up_ms)} ago, and the topic "
            f"keeps deletes for {_hours(kept_ms)}: the table may still have rows that were deleted. "
            "Remove it and run again, or go on with --skip-lost"
        )


def is_at_end(table: LakeTable, facts: TopicSnapshot) -> bool:
    return all(table.position(position_name(facts.topic, partition)) >= end for partition, end in facts.ends.items())


def first_time(table: LakeTable, facts: TopicSnapshot, now_ms: int) -> Mapping[str, int]:
    """The position to commit before anything is read, since the first rows may be deleted before the last ones are read."""
    return {CAUGHT_UP: now_ms} if facts.is_compacted and not table.position(CAUGHT_UP) else {}


def _hours(milliseconds: int) -> str:
    return f"{milliseconds / 3_600_000:.1f} h"
