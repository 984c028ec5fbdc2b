"""Topics to Delta tables, every message once: as it is, and with the fields of its JSON as columns.

A table per topic, partitioned by the UTC day of the message and by whether it is bad. What is promised is the table's: its own
commits say how far it has come (``tables.lake_table``), so that neither a crash nor a lost checkpoint loses a message or brings
one twice. A run with more fields adds columns and goes on where it was; one with other types is refused before it reads.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.pipelines.archive_outcome import added_since, outcome_of
from tidelog.spark.pipelines.archive_rows import archive_rows
from tidelog.spark.pipelines.archive_schema import PARTITION_BY, archive_columns, read_schema
from tidelog.spark.pipelines.cluster_options import BOOTSTRAP, Topic, find_topics, kafka_settings, spark_options
from tidelog.spark.pipelines.pipeline import Outcome, Reporter
from tidelog.spark.pipelines.query_run import QueryEnd, run_query, stop_on_signals
from tidelog.spark.tables.lake_table import LakeTable, local_path
from tidelog.spark.tables.positions import position_name
from tidelog.spark.tables.table_sink import FORMAT, TidelogTableSink
from tidelog.spark.tables.upkeep import RETENTION_HOURS, RETENTION_HOURS_MIN, vacuumed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY = "Topics to Delta tables, every message exactly once, with the fields of its JSON as columns."
EXAMPLE = "tidelog pipeline run archive --topic orders --table lake/orders --schema 'id BIGINT NOT NULL, city STRING'"

KIND = "archive"
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
    """Of the table, before this run."""


def run(spark: "SparkSession", options: ArchiveOptions, reporter: Reporter) -> Outcome:
    spark.dataSource.register(TidelogTableSink)
    schema = read_schema(options.schema, options.schema_file)
    topics = find_topics(options.bootstrap, options.kafka, options.topic)
    # All of them before the first one begins: what is refused is refused before anything is read.
    targets = [_target(options, topic, schema) for topic in topics]
    with vacuumed([target.place for target in targets], retention_hours=options.retention_hours):
        if options.continuous and len(targets) > 1:
            is_stopped = _take_turns(spark, options, schema, targets, reporter)
        else:
            is_stopped = any(_run_one(spark, options, schema, target, reporter).is_stopped for target in targets)
    return outcome_of([added_since(target.place, target.version, target.topic) for target in targets], is_stopped=is_stopped)


def messages_of(spark: "SparkSession", options: ArchiveOptions, topic: Topic, table: LakeTable) -> "DataFrame":
    given = {
        **spark_options(options.bootstrap, options.kafka),
        "subscribe": topic.name,
        "includeHeaders": "true",
        "startingOffsets": starting_offsets(topic, table),
        "maxOffsetsPerTrigger": str(options.batch_rows),
        "failOnDataLoss": str(not options.skip_lost).lower(),
    }
    if options.group_id is not None:
        given["groupId"] = options.group_id
    return spark.readStream.format("tidelog").options(**given).load()


def starting_offsets(topic: Topic, table: LakeTable) -> str:
    """Where a query without a checkpoint begins: what the table has need not be read again."""
    positions = {number: table.position(position_name(topic.name, number)) for number in range(topic.partitions)}
    if not any(positions.values()):
        return "earliest"
    return json.dumps({topic.name: {str(number): position or _EARLIEST for number, position in positions.items()}})


def _target(options: ArchiveOptions, topic: Topic, schema: StructType | None) -> Target:
    is_only = len(options.topic) == 1
    place = local_path(options.table) if is_only else local_path(options.table) / topic.name
    identity = {"kind": KIND, "topic": topic.name} | ({"topic_id": topic.topic_id} if topic.topic_id else {})
    table = LakeTable.ensure(place, archive_columns(schema), partition_by=PARTITION_BY, identity=identity)
    within = place / "_tidelog" / "checkpoint"
    chosen = within if options.checkpoint is None else Path(options.checkpoint) / ("" if is_only else topic.name)
    return Target(topic, place, chosen, table.version)


def _run_one(
    spark: "SparkSession",
    options: ArchiveOptions,
    schema: StructType | None,
    target: Target,
    reporter: Reporter,
    *,
    is_turn: bool = False,
) -> QueryEnd:
    reporter.step(f"archiving {target.topic.name}, {target.topic.partitions} partitions, to {target.place}")
    rows = archive_rows(messages_of(spark, options, target.topic, LakeTable.open(target.place)), schema)
    writer = (
        rows.writeStream.format(FORMAT).option("path", str(target.place)).option("checkpointLocation", str(target.checkpoint))
    )
    if options.continuous and not is_turn:
        writer = writer.trigger(processingTime=f"{int(options.trigger_seconds * 1000)} milliseconds")
    else:
        writer = writer.trigger(availableNow=True)
    return run_query(writer.start(), reporter)


def _take_turns(
    spark: "SparkSession", options: ArchiveOptions, schema: StructType | None, targets: list[Target], reporter: Reporter
) -> bool:
    """Several topics without an end: what is there now of each, and again."""
    with stop_on_signals() as stop:
        while True:
            for target in targets:
                if _run_one(spark, options, schema, target, reporter, is_turn=True).is_stopped:
                    return True
            if stop.wait(options.trigger_seconds):
                return True
