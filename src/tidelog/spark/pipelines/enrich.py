"""Joins events with a materialized table, and with ``--gap`` as sessions, into a topic, exactly once.

Every micro-batch reads the table at its newest version: an event gets the row that its key has when the event is handled. With
sessions, the events of a key are counted and summed in Spark's state until none has arrived for the gap, and the session gets
the row of that moment. The sink commits the output together with the batch, so a crash loses and repeats nothing.

**The newest rows.** Spark plans the static side of a join once for the life of a query: the files listed then would be that day's
table, and would be gone after a vacuum. What Spark repeats in every batch is running the tasks. So
``format("tidelog_materialized")`` plans buckets, whose number a table keeps for life, and a task opens the table and reads what
its buckets hold now. Two tasks may see two versions, but a row lies in one bucket. Its options are ``path``, ``columns``
(separated by commas) and ``tasks``, the greatest number of tasks.

**Counts** need no job of their own: Spark reports what it observed with the progress of each batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import NumericType, StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.options import parse_duration_ms
from tidelog.spark.pipelines.archive.rows import BAD, archive_rows, read_schema
from tidelog.spark.pipelines.archive.source import messages_with_fields
from tidelog.spark.pipelines.materialize.batches import BUCKET
from tidelog.spark.pipelines.materialize.pipeline import table_columns
from tidelog.spark.pipelines.options import TopicStreamOptions, flag
from tidelog.spark.pipelines.pipeline import PipelineOutcome, Reporter
from tidelog.spark.pipelines.query_run import run_query
from tidelog.spark.pipelines.topics import find_topics
from tidelog.spark.spark_session import parallelism
from tidelog.spark.tables.lake_table import LakeTable, check_checkpoint_place, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# -- rows ---------------------------------------------------------------------------------------------------------------------


STARTED, ENDED, EVENTS = "started", "ended", "events"
TIME = "timestamp"
IS_MATCHED = "_is_matched"
_JSON = {"timeZone": "UTC", "ignoreNullFields": "false"}


def join_with_table(events: DataFrame, table: DataFrame, on: str, take: Sequence[str]) -> DataFrame:
    """Each event with the columns ``take`` of the row whose key is the text of its field ``on``.

    An event without such a row is kept, with nulls. ``_is_matched`` says whether there was a row.
    """
    rows = table.select(F.col("key").cast("string").alias("_key"), *take, F.lit(True).alias(IS_MATCHED))
    joined = events.join(rows, F.col(on).cast("string") == F.col("_key"), "left").drop("_key")
    return joined.withColumn(IS_MATCHED, F.coalesce(IS_MATCHED, F.lit(False)))


def sessions(events: DataFrame, by: str, gap: str, watermark: str, sums: Sequence[str] = ()) -> DataFrame:
    """One row for each run of events of a key with at most ``gap`` between two events.

    In a stream a session is emitted when the watermark, the latest time seen less ``watermark``, is past its last event by
    ``gap``. It is final then, and events of it that arrive later are dropped.
    """
    window = F.session_window(TIME, gap)
    totals = [F.sum(name).alias(f"sum_{name}") for name in sums]
    grouped = events.withWatermark(TIME, watermark).groupBy(window, by)
    found = grouped.agg(F.min(TIME).alias(STARTED), F.max(TIME).alias(ENDED), F.count(F.lit(1)).alias(EVENTS), *totals)
    return found.select(by, STARTED, ENDED, EVENTS, *[f"sum_{name}" for name in sums])


def event_messages(joined: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Messages for a topic, with the key, time and headers of the event."""
    value = F.to_json(F.struct(*fields), _JSON)
    return joined.select("key", value.alias("value"), "headers", F.col(TIME).alias("timestamp"))


def session_messages(joined: DataFrame, by: str, fields: Sequence[str]) -> DataFrame:
    """Messages under the key of the session, at the time of its last event."""
    value = F.to_json(F.struct(*fields), _JSON)
    return joined.select(F.col(by).cast("string").alias("key"), value.alias("value"), F.col(ENDED).alias("timestamp"))


# -- the table's newest rows --------------------------------------------------------------------------------------------------


FORMAT = "tidelog_materialized"
KIND = "materialize"


class BucketsPartition(InputPartition):
    """Plain data, which Spark sends to the task."""

    def __init__(self, buckets: Sequence[int]) -> None:
        self.buckets = list(buckets)


class MaterializedTable(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(columns_of(LakeTable.open(self.options["path"], kind=KIND), self._names()))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - it is our own
        return BucketsReader(self.options["path"], self._names(), int(self.options["tasks"]))

    def _names(self) -> list[str]:
        return str(self.options["columns"]).split(",")


class BucketsReader(DataSourceReader):
    def __init__(self, path: str, names: Sequence[str], tasks: int) -> None:
        self._path = path
        self._names = list(names)
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        buckets = int(LakeTable.open(self._path, kind=KIND).identity["buckets"])
        return [BucketsPartition(range(first, buckets, self._tasks)) for first in range(min(self._tasks, buckets))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BucketsPartition)
        yield from newest_rows(self._path, self._names, partition.buckets)


def newest_rows(path: str, names: Sequence[str], buckets: Sequence[int]) -> Iterator[pa.RecordBatch]:
    table = LakeTable.open(path, kind=KIND)
    schema = columns_of(table, names)
    wanted = {str(bucket) for bucket in buckets}
    files = [str(table.place / file.path) for file in table.files() if file.partition_values[BUCKET] in wanted]
    if files:
        # A column that was added later is null in older files.
        yield from ds.dataset(files, schema=schema, format="parquet").to_batches()


def columns_of(table: LakeTable, names: Sequence[str]) -> pa.Schema:
    return pa.schema([table.columns.field(name) for name in names])


# -- counts -------------------------------------------------------------------------------------------------------------------


_EVENTS, _JOINED = "events", "joined"


def observe_events(rows: "DataFrame") -> "DataFrame":
    return rows.observe(
        _EVENTS,
        F.count(F.lit(1)).alias("rows"),
        F.count_if(BAD).alias("bad"),
        F.count_if(~F.col(BAD) & F.col("value").isNull()).alias("tombstones"),
    )


def observe_joined(rows: "DataFrame") -> "DataFrame":
    return rows.observe(_JOINED, F.count(F.lit(1)).alias("rows"), F.count_if(~F.col(IS_MATCHED)).alias("unmatched"))


class EnrichCounts:
    """A reporter that also counts: whenever there is progress, Spark has the reports of the last hundred batches."""

    def __init__(self, query: "StreamingQuery", reporter: Reporter) -> None:
        self.messages = self.bad = self.tombstones = self.written = self.unmatched = 0
        self._query = query
        self._reporter = reporter
        self._last_batch = -1

    def step(self, text: str) -> None:
        self._reporter.step(text)

    def progress(self, done: int, total: int | None, unit: str = "rows") -> None:
        self._reporter.progress(done, total, unit)
        for report in self._query.recentProgress:
            found = report.observedMetrics
            # A batch that found nothing to do is reported under the number of the next one.
            if report.batchId <= self._last_batch or _EVENTS not in found:
                continue
            self._last_batch = report.batchId
            self.messages += found[_EVENTS]["rows"]
            self.bad += found[_EVENTS]["bad"]
            self.tombstones += found[_EVENTS]["tombstones"]
            self.written += found[_JOINED]["rows"]
            self.unmatched += found[_JOINED]["unmatched"]


# -- the pipeline -------------------------------------------------------------------------------------------------------------


SUMMARY = "Events joined with a materialized table, and as sessions, into a topic exactly once."
EXAMPLE = (
    "tidelog pipeline run enrich --topic orders --schema 'customer STRING NOT NULL, amount DOUBLE' --on customer "
    "--table lake/customers --output orders-with-customers --checkpoint checkpoints/orders-with-customers"
)

ROWS_PER_BATCH = 1_000_000
# A table of up to this many bytes of Parquet is sent whole to every task; a larger one is sorted by key with the events.
BROADCAST_BYTES_MAX = 16 << 20


@dataclass(frozen=True, kw_only=True)
class EnrichOptions(TopicStreamOptions):
    topic: str = flag("The topic of the events.", "NAME")
    schema: str = flag("Fields of the events' JSON: 'customer STRING NOT NULL, amount DOUBLE'.", "DDL")
    on: str = flag("The field of an event that has the key of the table's row.", "FIELD")
    table: str = flag("A table that materialize fills.", "DIRECTORY")
    output: str = flag("The topic for the output, which must exist.", "NAME")
    checkpoint: str = flag("Where Spark keeps progress and state.", "DIRECTORY")
    take: tuple[str, ...] = flag("A column of the table; repeatable; all fields by default.", "COLUMN", default=())
    gap: str | None = flag("Make sessions: one ends when its key has had no event for this time.", "TIME", default=None)
    sum: tuple[str, ...] = flag("With --gap: a number to sum in each session; repeatable.", "FIELD", default=())
    watermark: str = flag("With --gap: how late an event may be.", "TIME", default="10m")
    start: str = flag("Where a first run begins: earliest or latest.", "OFFSET", default="earliest")
    at_least_once: bool = flag("Write without transactions, where TLS or SASL require it.", default=False)
    batch_rows: int = flag("The greatest number of events in one batch.", "COUNT", default=ROWS_PER_BATCH)

    def __post_init__(self) -> None:
        for name in ("topic", "schema", "on", "table", "output", "checkpoint"):
            if not getattr(self, name):
                raise InvalidArgument(f"--{name} is missing")
        if self.topic == self.output:
            raise InvalidArgument(
                f"--output {self.output} is the topic of the events: the pipeline would read its own output for ever"
            )
        if self.start not in ("earliest", "latest"):
            raise InvalidArgument(f"--start is earliest or latest: not {self.start}")
        if self.sum and self.gap is None:
            raise InvalidArgument("--sum is for sessions: give --gap")
        for name, text in (("--gap", self.gap), ("--watermark", self.watermark)):
            if text is not None:
                _interval(name, text)
        super().__post_init__()


OPTIONS = EnrichOptions


def run(spark: "SparkSession", options: EnrichOptions, reporter: Reporter) -> PipelineOutcome:
    schema = read_schema(options.schema, None)
    assert schema is not None
    table = LakeTable.open(options.table, kind=KIND)
    check_checkpoint_place(local_path(options.checkpoint), table.place)
    take = chosen_columns(options, schema, table)
    topic, _ = find_topics(options, [options.topic, options.output])
    reporter.step(f"joining {topic.name}, {topic.partitions} partitions, with {table.place} into {options.output}")
    spark.dataSource.register(MaterializedTable)
    rows = table_rows(spark, table, take)
    messages = enriched(events_of(messages_of(spark, options, schema), schema), rows, options, schema, take)
    writer = messages.writeStream.format("tidelog").options(**options.connection)
    writer = writer.options(
        topic=options.output,
        checkpointLocation=str(local_path(options.checkpoint)),
        deliveryGuarantee="at_least_once" if options.at_least_once else "exactly_once",
    )
    query = writer.trigger(**options.trigger).start()
    counts = EnrichCounts(query, reporter)
    end = run_query(query, counts, unit="events")
    return outcome_of(options, counts, is_stopped=end.is_stopped)


def chosen_columns(options: EnrichOptions, schema: StructType, table: LakeTable) -> list[str]:
    """The columns to take from the table, apart from the key."""
    if options.on not in schema.names:
        raise InvalidArgument(f"--on {options.on} is not a field of --schema, which has {', '.join(schema.names)}")
    for name in options.sum:
        if name not in schema.names or not isinstance(schema[name].dataType, NumericType):
            raise InvalidArgument(f"--sum {name} is not a numeric field of --schema: {schema.simpleString()}")
    own = table_columns(None).names
    found = list(options.take) or [name for name in table.columns.names if name not in own]
    if not found:
        raise InvalidArgument(f"the table {table.place} has no fields: materialize it with --schema, or --take value")
    fields = schema.names if options.gap is None else [options.on, STARTED, ENDED, EVENTS, *_sums(options)]
    for name in found:
        if name not in table.columns.names:
            raise InvalidArgument(f"--take {name} is not a column of {table.place}, which has {', '.join(table.columns.names)}")
        if name.lower() in [field.lower() for field in fields]:
            raise InvalidArgument(f"--take {name}: the output already has a field of that name; take other columns")
    return found


def messages_of(spark: "SparkSession", options: EnrichOptions, schema: StructType) -> "DataFrame":
    # One task per partition, however large: two would write its events out of order.
    given = options.source(options.topic, options.start) | {"maxRecordsPerPartition": str(options.batch_rows)}
    return messages_with_fields(spark, given, schema)


def events_of(messages: "DataFrame", schema: StructType) -> "DataFrame":
    """The good events; the others are counted."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    return observe_events(archive_rows(messages, schema)).where(~F.col(BAD) & F.col("value").isNotNull())


def table_rows(spark: "SparkSession", table: LakeTable, take: list[str]) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    tasks = parallelism(spark)
    reader = spark.read.format(FORMAT).options(path=str(table.place), columns=",".join(["key", *take]), tasks=str(tasks))
    size_bytes = sum(pa.table(table.delta.get_add_actions(flatten=True)).column("size_bytes").to_pylist())
    return F.broadcast(reader.load()) if size_bytes <= BROADCAST_BYTES_MAX else reader.load()


def enriched(events: "DataFrame", rows: "DataFrame", options: EnrichOptions, schema: StructType, take: list[str]) -> "DataFrame":
    """The messages for the output."""
    if options.gap is None:
        joined = observe_joined(join_with_table(events, rows, options.on, take))
        return event_messages(joined, [*schema.names, *take])
    gap, watermark = _interval("--gap", options.gap), _interval("--watermark", options.watermark)
    found = sessions(events.select(TIME, *schema.names), options.on, gap, watermark, options.sum)
    joined = observe_joined(join_with_table(found, rows, options.on, take))
    return session_messages(joined, options.on, [options.on, STARTED, ENDED, EVENTS, *_sums(options), *take])


def outcome_of(options: EnrichOptions, counts: EnrichCounts, *, is_stopped: bool) -> PipelineOutcome:
    stopped = "; stopped, the same command continues from here" if is_stopped else ""
    what = "events" if options.gap is None else "sessions"
    return PipelineOutcome(
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
    """Rewrite a duration for Spark, which reads ``10m`` as months."""
    return f"{parse_duration_ms(name, text)} milliseconds"
