"""Events joined with a materialized table, and with ``--gap`` as sessions, into a topic exactly once.

The table is read anew in every micro-batch (``enrich_table``): an event gets the row that its key has when the event is handled.
With sessions the events of a key are counted and summed in Spark's state until none has come for the gap, and the session gets
the row of that moment. What goes out is committed by the sink together with the batch: after a crash nothing is missing, and
nothing is there twice.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import NumericType, StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.option_values import duration_ms
from tidelog.spark.pipelines.archive_rows import archive_rows
from tidelog.spark.pipelines.archive_schema import BAD, read_schema
from tidelog.spark.pipelines.cluster_options import BOOTSTRAP, find_topics, kafka_settings, spark_options
from tidelog.spark.pipelines.enrich_counts import EnrichCounts, observe_events, observe_joined
from tidelog.spark.pipelines.enrich_rows import (
    ENDED,
    EVENTS,
    STARTED,
    TIME,
    event_messages,
    join_with_table,
    session_messages,
    sessions,
)
from tidelog.spark.pipelines.enrich_table import FORMAT, KIND, MaterializedTable
from tidelog.spark.pipelines.materialize import table_columns
from tidelog.spark.pipelines.pipeline import Outcome, Reporter
from tidelog.spark.pipelines.query_run import run_query
from tidelog.spark.tables.lake_table import LakeTable, check_checkpoint_place, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY = "Events joined with a materialized table, and as sessions, into a topic exactly once."
EXAMPLE = (
    "tidelog pipeline run enrich --topic orders --schema 'customer STRING NOT NULL, amount DOUBLE' --on customer "
    "--table lake/customers --output orders-with-customers --checkpoint checkpoints/orders-with-customers"
)

ROWS_PER_BATCH = 1_000_000
# A table of so many bytes of Parquet is sent to every task whole; a larger one is sorted by key together with the events.
BROADCAST_BYTES_MAX = 16 << 20


@dataclass(frozen=True)
class EnrichOptions:
    topic: str = field(metadata={"help": "The topic of the events.", "metavar": "NAME"})
    schema: str = field(
        metadata={"help": "Fields of the events' JSON: 'customer STRING NOT NULL, amount DOUBLE'.", "metavar": "DDL"}
    )
    on: str = field(metadata={"help": "The field of an event that has the key of the table's row.", "metavar": "FIELD"})
    table: str = field(metadata={"help": "A table that materialize fills.", "metavar": "DIRECTORY"})
    output: str = field(metadata={"help": "The topic that gets the outcome; it is there already.", "metavar": "NAME"})
    checkpoint: str = field(metadata={"help": "Where Spark keeps progress and state.", "metavar": "DIRECTORY"})
    take: tuple[str, ...] = field(
        default=(), metadata={"help": "A column of the table; several are fine, all fields if none is.", "metavar": "COLUMN"}
    )
    gap: str | None = field(
        default=None, metadata={"help": "Make sessions: one ends when its key has no event for so long.", "metavar": "TIME"}
    )
    sum: tuple[str, ...] = field(
        default=(), metadata={"help": "With --gap: a number to sum in each session.", "metavar": "FIELD"}
    )
    watermark: str = field(default="10m", metadata={"help": "With --gap: how late an event may be.", "metavar": "TIME"})
    start: str = field(
        default="earliest", metadata={"help": "Where a first run begins: earliest or latest.", "metavar": "OFFSET"}
    )
    bootstrap: str = field(default=BOOTSTRAP, metadata={"help": "host:port of a broker.", "metavar": "ADDRESS"})
    kafka: tuple[str, ...] = field(
        default=(), metadata={"help": "A setting of librdkafka, say linger.ms=50; several are fine.", "metavar": "NAME=VALUE"}
    )
    at_least_once: bool = field(default=False, metadata={"help": "Write without transactions: where TLS or SASL need it."})
    continuous: bool = field(default=False, metadata={"help": "Go on with what comes, until stopped."})
    trigger_seconds: float = field(default=10.0, metadata={"help": "Between batches, when continuous.", "metavar": "SECONDS"})
    group_id: str | None = field(
        default=None, metadata={"help": "Show the progress as a consumer group, for who watches lag.", "metavar": "NAME"}
    )
    batch_rows: int = field(default=ROWS_PER_BATCH, metadata={"help": "At most so many events in one batch.", "metavar": "COUNT"})

    def __post_init__(self) -> None:
        for name in ("topic", "schema", "on", "table", "output", "checkpoint"):
            if not getattr(self, name):
                raise InvalidArgument(f"--{name} is missing")
        if self.topic == self.output:
            raise InvalidArgument(f"--output {self.output} is the topic of the events: it would be read again for ever")
        if self.start not in ("earliest", "latest"):
            raise InvalidArgument(f"--start is earliest or latest: not {self.start}")
        if self.sum and self.gap is None:
            raise InvalidArgument("--sum is of sessions: give --gap")
        if self.trigger_seconds <= 0:
            raise InvalidArgument(f"--trigger-seconds is more than 0: not {self.trigger_seconds}")
        if self.batch_rows < 1:
            raise InvalidArgument(f"--batch-rows is 1 or more: not {self.batch_rows}")
        for name, text in (("--gap", self.gap), ("--watermark", self.watermark)):
            if text is not None:
                _interval(name, text)
        kafka_settings(self.kafka)


OPTIONS = EnrichOptions


def run(spark: "SparkSession", options: EnrichOptions, reporter: Reporter) -> Outcome:
    schema = read_schema(options.schema, None)
    assert schema is not None
    table = LakeTable.open(options.table, kind=KIND)
    check_checkpoint_place(local_path(options.checkpoint), table.place)
    take = chosen_columns(options, schema, table)
    topic, _ = find_topics(options.bootstrap, options.kafka, [options.topic, options.output])
    reporter.step(f"joining {topic.name}, {topic.partitions} partitions, with {table.place} into {options.output}")
    spark.dataSource.register(MaterializedTable)
    rows = table_rows(spark, table, take)
    messages = enriched(events_of(messages_of(spark, options), schema), rows, options, schema, take)
    writer = messages.writeStream.format("tidelog").options(**spark_options(options.bootstrap, options.kafka))
    writer = writer.options(
        topic=options.output,
        checkpointLocation=str(local_path(options.checkpoint)),
        deliveryGuarantee="at_least_once" if options.at_least_once else "exactly_once",
    )
    if options.continuous:
        writer = writer.trigger(processingTime=f"{int(options.trigger_seconds * 1000)} milliseconds")
    else:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    counts = EnrichCounts(query, reporter)
    end = run_query(query, counts, unit="events")
    return outcome_of(options, counts, is_stopped=end.is_stopped)


def chosen_columns(options: EnrichOptions, schema: StructType, table: LakeTable) -> list[str]:
    """Of the table, beside the key."""
    if options.on not in schema.names:
        raise InvalidArgument(f"--on {options.on} is no field of --schema: there are {', '.join(schema.names)}")
    for name in options.sum:
        if name not in schema.names or not isinstance(schema[name].dataType, NumericType):
            raise InvalidArgument(f"--sum {name} is no number of --schema: {schema.simpleString()}")
    own = table_columns(None).names
    found = list(options.take) or [name for name in table.columns.names if name not in own]
    if not found:
        raise InvalidArgument(f"the table {table.place} has no fields: materialize it with --schema, or --take value")
    fields = schema.names if options.gap is None else [options.on, STARTED, ENDED, EVENTS, *_sums(options)]
    for name in found:
        if name not in table.columns.names:
            raise InvalidArgument(f"--take {name} is no column of {table.place}: there are {', '.join(table.columns.names)}")
        if name.lower() in [field.lower() for field in fields]:
            raise InvalidArgument(f"--take {name}: what goes out has a field of that name already; --take others")
    return found


def messages_of(spark: "SparkSession", options: EnrichOptions) -> "DataFrame":
    given = {
        **spark_options(options.bootstrap, options.kafka),
        "subscribe": options.topic,
        "includeHeaders": "true",
        "startingOffsets": options.start,
        "maxOffsetsPerTrigger": str(options.batch_rows),
        # One task for a partition, however large: two would write its events out of order.
        "maxRecordsPerPartition": str(options.batch_rows),
    }
    if options.group_id is not None:
        given["groupId"] = options.group_id
    return spark.readStream.format("tidelog").options(**given).load()


def events_of(messages: "DataFrame", schema: StructType) -> "DataFrame":
    """Good ones; the others are counted."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    return observe_events(archive_rows(messages, schema)).where(~F.col(BAD) & F.col("value").isNotNull())


def table_rows(spark: "SparkSession", table: LakeTable, take: list[str]) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    tasks = spark.sparkContext.defaultParallelism
    reader = spark.read.format(FORMAT).options(path=str(table.place), columns=",".join(["key", *take]), tasks=str(tasks))
    size_bytes = sum(pa.table(table.delta.get_add_actions(flatten=True)).column("size_bytes").to_pylist())
    return F.broadcast(reader.load()) if size_bytes <= BROADCAST_BYTES_MAX else reader.load()


def enriched(events: "DataFrame", rows: "DataFrame", options: EnrichOptions, schema: StructType, take: list[str]) -> "DataFrame":
    """Messages for the output."""
    if options.gap is None:
        joined = observe_joined(join_with_table(events, rows, options.on, take))
        return event_messages(joined, [*schema.names, *take])
    gap, watermark = _interval("--gap", options.gap), _interval("--watermark", options.watermark)
    found = sessions(events.select(TIME, *schema.names), options.on, gap, watermark, options.sum)
    joined = observe_joined(join_with_table(found, rows, options.on, take))
    return session_messages(joined, options.on, [options.on, STARTED, ENDED, EVENTS, *_sums(options), *take])


def outcome_of(options: EnrichOptions, counts: EnrichCounts, *, is_stopped: bool) -> Outcome:
    stopped = "; stopped, the same command goes on from here" if is_stopped else ""
    what = "events" if options.gap is None else "sessions"
    return Outcome(
        f"{counts.written:,} {what} of {counts.messages:,} messages of {options.topic} are in {options.output}{stopped}",
        {
            "messages": counts.messages,
            "bad": counts.bad,
            "tombstones": counts.tombstones,
            what: counts.written,
            "without_row": counts.unmatched,
        },
    )


def _sums(options: EnrichOptions) -> list[str]:
    return [f"sum_{name}" for name in options.sum]


def _interval(name: str, text: str) -> str:
    """For Spark, which reads ``10m`` as months."""
    return f"{duration_ms(name, text)} milliseconds"
