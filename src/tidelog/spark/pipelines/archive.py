"""Topics to Delta tables, every message once: as it is, and with the fields of its JSON as columns.

A table per topic, partitioned by the UTC day of the message and by whether it is bad. What is promised is the table's: its own
commits say how far it has come (``tables.lake_table``), so that neither a crash nor a lost checkpoint loses a message or brings
one twice. A run with more fields adds columns and goes on where it was; one with other types is refused before it reads.
"""

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.pipelines.archive_checkpoint import note_end, set_aside_if_ahead
from tidelog.spark.pipelines.archive_outcome import added_by, outcome_of
from tidelog.spark.pipelines.archive_parquet import check_parquet_place, parquet_outcome
from tidelog.spark.pipelines.archive_rows import archive_rows
from tidelog.spark.pipelines.archive_schema import PARTITION_BY, archive_columns, read_schema
from tidelog.spark.pipelines.archive_source import FORMAT as FILES
from tidelog.spark.pipelines.archive_source import TABLE_OPTION, ArchiveFilesSource
from tidelog.spark.pipelines.cluster_options import BOOTSTRAP, Topic, find_topics, kafka_settings, spark_options
from tidelog.spark.pipelines.pipeline import Outcome, Reporter
from tidelog.spark.pipelines.query_run import run_query, stop_on_signals
from tidelog.spark.tables.lake_table import LakeTable, check_checkpoint_place, local_path
from tidelog.spark.tables.positions import position_name
from tidelog.spark.tables.table_sink import FORMAT as TABLE
from tidelog.spark.tables.table_sink import RUN, TidelogTableSink
from tidelog.spark.tables.upkeep import RETENTION_HOURS, RETENTION_HOURS_MIN, vacuumed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SUMMARY = "Topics to Delta tables, every message exactly once, with the fields of its JSON as columns."
EXAMPLE = "tidelog pipeline run archive --topic orders --table lake/orders --schema 'id BIGINT NOT NULL, city STRING'"

KIND = "archive"
DELTA, PARQUET = "delta", "parquet"
# A batch that a crash interrupts is done again: this many are seconds of work.
ROWS_PER_BATCH = 5_000_000
_EARLIEST = -2


@dataclass(frozen=True)
class ArchiveOptions:
    topic: tuple[str, ...] = field(metadata={"help": "A topic; several are fine.", "metavar": "NAME"})
    table: str = field(
        metadata={"help": "The table's directory; with several topics, that of their tables.", "metavar": "DIRECTORY"}
    )
    bootstrap: str = field(default=BOOTSTRAP, metadata={"help": "host:port of a broker.", "metavar": "ADDRESS"})
    kafka: tuple[str, ...] = field(
        default=(), metadata={"help": "A setting of librdkafka, say sasl.username=me; several are fine.", "metavar": "NAME=VALUE"}
    )
    format: str = field(default=DELTA, metadata={"help": "delta, or parquet: files without a table's log.", "metavar": "NAME"})
    schema: str | None = field(
        default=None,
        metadata={"help": "Fields of the values' JSON that become columns: 'id BIGINT NOT NULL, city STRING'.", "metavar": "DDL"},
    )
    schema_file: str | None = field(
        default=None, metadata={"help": "The same from a file, as DDL or as the JSON of a StructType.", "metavar": "FILE"}
    )
    checkpoint: str | None = field(
        default=None, metadata={"help": "Where Spark keeps its progress; else within the table.", "metavar": "DIRECTORY"}
    )
    continuous: bool = field(default=False, metadata={"help": "Go on with what comes, until stopped."})
    trigger_seconds: float = field(default=10.0, metadata={"help": "Between batches, when continuous.", "metavar": "SECONDS"})
    group_id: str | None = field(
        default=None, metadata={"help": "Show the progress as a consumer group, for who watches lag.", "metavar": "NAME"}
    )
    batch_rows: int = field(default=ROWS_PER_BATCH, metadata={"help": "At most so many in one commit.", "metavar": "COUNT"})
    retention_hours: int = field(
        default=RETENTION_HOURS, metadata={"help": "Files that the table has no more are removed after that.", "metavar": "HOURS"}
    )
    skip_lost: bool = field(default=False, metadata={"help": "Go on where the topic has lost messages before they were read."})

    def __post_init__(self) -> None:
        if not self.topic or not all(self.topic):
            raise InvalidArgument("--topic is missing: the topic to archive")
        if len(set(self.topic)) != len(self.topic):
            raise InvalidArgument("--topic: one is named twice")
        if not self.table:
            raise InvalidArgument("--table is missing: the directory of the table")
        if self.format not in (DELTA, PARQUET):
            raise InvalidArgument(f"--format is {DELTA} or {PARQUET}: not {self.format!r}")
        if self.schema is not None and self.schema_file is not None:
            raise InvalidArgument("--schema and --schema-file: give one of them")
        if self.trigger_seconds <= 0:
            raise InvalidArgument(f"--trigger-seconds is more than 0: not {self.trigger_seconds}")
        if self.batch_rows < 1:
            raise InvalidArgument(f"--batch-rows is 1 or more: not {self.batch_rows}")
        if self.retention_hours < RETENTION_HOURS_MIN:
            raise InvalidArgument(f"--retention-hours is {RETENTION_HOURS_MIN} or more: not {self.retention_hours}")
        kafka_settings(self.kafka)


OPTIONS = ArchiveOptions


class Target(NamedTuple):
    """A topic and what it goes to."""

    topic: Topic
    place: Path
    checkpoint: Path
    version: int
    """Of the table, before this run; 0 where it has none."""
    run: int
    """In the commits of this run, and of no other."""


def run(spark: "SparkSession", options: ArchiveOptions, reporter: Reporter) -> Outcome:
    spark.dataSource.register(TidelogTableSink)
    spark.dataSource.register(ArchiveFilesSource)
    schema = read_schema(options.schema, options.schema_file)
    topics = find_topics(options.bootstrap, options.kafka, options.topic)
    # All of them before the first one begins: what is refused is refused before anything is read.
    targets = [_target(options, topic, schema) for topic in topics]
    if options.format == PARQUET:
        is_stopped, rows = _run_all(spark, options, schema, targets, reporter)
        return parquet_outcome(spark, [target.place for target in targets], rows, is_stopped=is_stopped)
    with vacuumed([target.place for target in targets], retention_hours=options.retention_hours):
        is_stopped, _ = _run_all(spark, options, schema, targets, reporter)
    added = [added_by(target.run, target.place, target.version, target.topic) for target in targets]
    return outcome_of(added, is_stopped=is_stopped)


def rows_of(spark: "SparkSession", options: ArchiveOptions, schema: StructType | None, target: Target) -> "DataFrame":
    """Into a table and without a schema, of the files that tasks have written."""
    starting = "earliest" if options.format == PARQUET else starting_offsets(target.topic, LakeTable.open(target.place))
    given = source_options(options, target.topic, starting)
    if schema is None and options.format == DELTA:
        return spark.readStream.format(FILES).options(**given, **{TABLE_OPTION: str(target.place)}).load()
    return archive_rows(spark.readStream.format("tidelog").options(**given).load(), schema)


def source_options(options: ArchiveOptions, topic: Topic, starting: str) -> dict[str, str]:
    given = {
        **spark_options(options.bootstrap, options.kafka),
        "subscribe": topic.name,
        "includeHeaders": "true",
        "startingOffsets": starting,
        "maxOffsetsPerTrigger": str(options.batch_rows),
        "failOnDataLoss": str(not options.skip_lost).lower(),
    }
    if options.group_id is not None:
        given["groupId"] = options.group_id
    return given


def starting_offsets(topic: Topic, table: LakeTable) -> str:
    """Where a query without a checkpoint begins: what the table has need not be read again."""
    positions = {number: table.position(position_name(topic.name, number)) for number in range(topic.partitions)}
    if not any(positions.values()):
        return "earliest"
    return json.dumps({topic.name: {str(number): position or _EARLIEST for number, position in positions.items()}})


def _target(options: ArchiveOptions, topic: Topic, schema: StructType | None) -> Target:
    is_only = len(options.topic) == 1
    place = local_path(options.table) if is_only else local_path(options.table) / topic.name
    within = place / "_tidelog" / "checkpoint"
    checkpoint = within if options.checkpoint is None else local_path(options.checkpoint) / ("" if is_only else topic.name)
    if options.format == PARQUET:
        check_parquet_place(place, checkpoint)
        return Target(topic, place, checkpoint, 0, 0)
    check_checkpoint_place(checkpoint, place)
    identity = {"kind": KIND, "topic": topic.name} | ({"topic_id": topic.topic_id} if topic.topic_id else {})
    table = LakeTable.ensure(place, archive_columns(schema), partition_by=PARTITION_BY, identity=identity)
    return Target(topic, place, checkpoint, table.version, 1 + secrets.randbits(48))


def _run_all(
    spark: "SparkSession", options: ArchiveOptions, schema: StructType | None, targets: list[Target], reporter: Reporter
) -> tuple[bool, int]:
    """Whether it was stopped, and how many rows came through Spark. Several topics without an end are taken in turns."""
    rows = 0
    with stop_on_signals() as stop:
        while True:
            for target in targets:
                reporter.step(f"archiving {target.topic.name}, {target.topic.partitions} partitions, to {target.place}")
                if options.format == DELTA:
                    _check_checkpoint(target, reporter)
                query = _start(spark, options, schema, target, is_only=len(targets) == 1)
                end = run_query(query, reporter, stop=stop)
                if options.format == DELTA:
                    note_end(LakeTable.open(target.place), target.checkpoint, target.topic.name)
                rows += end.rows
                if end.is_stopped:
                    return True, rows
            if not options.continuous:
                return False, rows
            if stop.wait(options.trigger_seconds):
                return True, rows


def _check_checkpoint(target: Target, reporter: Reporter) -> None:
    if aside := set_aside_if_ahead(LakeTable.open(target.place), target.checkpoint, target.topic.name):
        reporter.step(f"the checkpoint is ahead of the table {target.place}: moved to {aside}, going on where the table is")


def _start(
    spark: "SparkSession", options: ArchiveOptions, schema: StructType | None, target: Target, *, is_only: bool
) -> "StreamingQuery":
    writer = rows_of(spark, options, schema, target).writeStream.option("checkpointLocation", str(target.checkpoint))
    if options.continuous and is_only:
        writer = writer.trigger(processingTime=f"{int(options.trigger_seconds * 1000)} milliseconds")
    else:
        writer = writer.trigger(availableNow=True)
    if options.format == PARQUET:
        return writer.format("parquet").partitionBy(*PARTITION_BY).start(str(target.place))
    return writer.format(TABLE).option(RUN, str(target.run)).start(str(target.place))
