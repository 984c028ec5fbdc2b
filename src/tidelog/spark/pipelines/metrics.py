"""Measures throughput, bytes, delay, hot keys and skew of topics, by windows of time: into a Delta table and a metrics topic.

A window is written once, when the watermark (the latest event time seen, less ``--watermark-seconds``) has passed its end. What
arrives for it later is dropped and counted. So the last windows of a topic stay open until more data arrives: without
``--continuous`` the checkpoint keeps them, and the next run completes them.

The checkpoint holds the open windows. Without it, or with another one, windows would be written a second time, so a table that
has windows of another checkpoint is refused.

**Each window exactly once.** Closed windows go into the table first and then into the topic. The table's commit carries query and
batch as its position, the topic's write carries both as its ``writeId``. A batch that runs again after a crash finds its position
taken and leaves the table alone. The topic is always written from the table's rows, so that both hold the same values to the last
digit of a sketch, and a second write with the same id is skipped.

**Windows** are pure transformations, the same for a stream and for a batch. ``events`` finds the time of each message,
``windows`` counts by window, topic and partition (the part that has state), and ``by_topic`` makes one row of the partitions of a
window, all of which close together.

**Times.** A message's event time is the named field of its JSON value, else the record's timestamp. Impossible times (none,
before 1970, or further ahead of now than AHEAD_SECONDS, since one wrong clock would close all windows at once) are not believed:
the record's timestamp stands in, then the time of reading. Such messages are counted as ``undated``.

**Delay** is arrival minus event time: with a field, the record's timestamp minus the field; without one, the time of reading
minus the record's timestamp.

What cannot be counted exactly in bounded memory is a sketch: hot keys by ``approx_top_k``, percentiles by KLL.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelog.client.admin import Admin
from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.spark.options import SinkOptions
from tidelog.spark.pipelines.options import SECONDS_MIN, StreamOptions, flag
from tidelog.spark.pipelines.pipeline import PipelineFailed, PipelineOutcome, Reporter
from tidelog.spark.pipelines.query_run import QueryEnd, run_query
from tidelog.spark.pipelines.topics import find_topics
from tidelog.spark.sink.connections import check_security
from tidelog.spark.tables.errors import WrongTable
from tidelog.spark.tables.lake_table import LakeTable, check_checkpoint_place, local_path
from tidelog.spark.tables.table_sink import append_frame
from tidelog.spark.tables.upkeep import RETENTION_HOURS, merge_after_commit, vacuumed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# -- windows ------------------------------------------------------------------------------------------------------------------


AHEAD_SECONDS = 300
HOT_KEYS = 5
# This many are kept for each partition, since a key spread over several may be the hottest overall but in none of them.
HOT_KEYS_PER_PARTITION = 20
KEYS_TRACKED = 1000
KEY_CHARACTERS_MAX = 200

# Seconds, milliseconds, microseconds: by size, as the years from 1973 to 5138 have them.
_MILLISECONDS_FROM, _MICROSECONDS_FROM, _NANOSECONDS_FROM = 1e11, 1e14, 1e17


def events(messages: "DataFrame", event_time: str | None = None) -> "DataFrame":
    """The columns of each message that are counted. ``event_time`` is a field, ``sent_at`` or ``meta.sent_at``."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    now = F.current_timestamp()
    recorded = F.when(_is_believed(F.col("timestamp")), F.col("timestamp"))
    told = F.lit(None).cast("timestamp") if event_time is None else field_time(F.col("value").cast("string"), event_time)
    wanted = recorded if event_time is None else F.when(_is_believed(told), told)
    arrived, happened = (now, recorded) if event_time is None else (recorded, wanted)
    delay_ms = F.unix_millis(arrived) - F.unix_millis(happened)
    key = F.col("key").cast("string")
    return messages.select(
        "topic",
        "partition",
        F.substring(
            F.when(F.is_valid_utf8(key), key).otherwise(F.concat(F.lit("0x"), F.hex("key"))), 1, KEY_CHARACTERS_MAX
        ).alias("key"),
        (F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0)))
        .cast("bigint")
        .alias("bytes"),
        F.coalesce(wanted, recorded, now).alias("event_time"),
        wanted.isNull().alias("undated"),
        # The greatest of null and 0 would be 0.
        F.when(delay_ms.isNotNull(), F.greatest(delay_ms, F.lit(0))).cast("double").alias("delay_ms"),
    )


def field_time(text: "Column", field: str) -> "Column":
    """The time in a JSON value: ISO 8601, or seconds, milliseconds, microseconds or nanoseconds since 1970; else null."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    path = "$" + "".join(f"['{part}']" for part in field.split("."))
    found = F.get_json_object(text, path)
    number = found.try_cast("double")
    seconds = (
        F.when(number >= _NANOSECONDS_FROM, number / 1e9)
        .when(number >= _MICROSECONDS_FROM, number / 1e6)
        .when(number >= _MILLISECONDS_FROM, number / 1e3)
        .otherwise(number)
    )
    # A number that is too large for a time gives null, not an error.
    since_1970 = F.when(seconds.between(0, 253_402_300_799), F.timestamp_micros((seconds * 1_000_000).cast("bigint")))
    return F.when(number.isNotNull(), since_1970).otherwise(found.try_cast("timestamp"))


def _is_believed(moment: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    ahead = F.current_timestamp() + F.make_dt_interval(secs=F.lit(AHEAD_SECONDS))
    return moment.between(F.timestamp_seconds(F.lit(0)), ahead)


def windows(found: "DataFrame", window_seconds: float, watermark_seconds: float) -> "DataFrame":
    """Count events by window, topic and partition. In a stream a window is emitted once, when none of its events can arrive any
    more."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    watermarked = found.withWatermark("event_time", interval(watermark_seconds))
    return watermarked.groupBy(F.window("event_time", interval(window_seconds)), "topic", "partition").agg(
        F.count("*").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.count_if(F.col("key").isNull()).alias("keyless"),
        F.count_if("undated").alias("undated"),
        F.count("delay_ms").alias("delays"),
        F.max("delay_ms").alias("delay_max_ms"),
        F.expr("kll_sketch_agg_double(delay_ms)").alias("delay_sketch"),
        F.expr(f"approx_top_k(key, {HOT_KEYS_PER_PARTITION}, {KEYS_TRACKED}) FILTER (WHERE key IS NOT NULL)").alias("hot_keys"),
    )


def by_topic(found: "DataFrame", partitions: Mapping[str, int]) -> "DataFrame":
    """Combine the windows of partitions into one row for each window and topic. ``partitions`` is how many a topic has, if
    known."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    summed = found.groupBy("window", "topic").agg(
        *(F.sum(name).alias(name) for name in ("messages", "bytes", "keyless", "undated", "delays")),
        F.max("delay_max_ms").alias("delay_max_ms"),
        F.expr("kll_merge_agg_double(delay_sketch)").alias("delay_sketch"),
        F.flatten(F.collect_list("hot_keys")).alias("keys"),
        # If two partitions are equally busy, the first one counts.
        F.max(F.struct("messages", (-F.col("partition")).alias("partition"))).alias("busiest"),
        (F.max("partition") + 1).alias("partitions_seen"),
    )
    known = F.coalesce(*(F.when(F.col("topic") == topic, F.lit(count)) for topic, count in sorted(partitions.items())), F.lit(0))
    seconds = (F.unix_micros("window.end") - F.unix_micros("window.start")) / 1_000_000
    delay = F.when(F.col("delays") > 0, F.expr("kll_sketch_get_quantile_double(delay_sketch, array(0.5D, 0.95D, 0.99D))"))
    counted = summed.withColumns({"partitions": F.greatest(known, "partitions_seen"), "delay": delay})
    return counted.select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "topic",
        "messages",
        "bytes",
        (F.col("messages") / seconds).alias("messages_per_second"),
        (F.col("bytes") / seconds).alias("bytes_per_second"),
        *(F.get("delay", F.lit(at)).alias(f"delay_p{name}_ms") for at, name in enumerate((50, 95, 99))),
        "delay_max_ms",
        "undated",
        "keyless",
        hot_keys(F.col("keys")).alias("hot_keys"),
        "partitions",
        (-F.col("busiest.partition")).alias("busiest_partition"),
        skew(F.col("busiest.messages"), F.col("messages"), F.col("partitions")).alias("skew"),
    )


def skew(busiest: "Column", messages: "Column", partitions: "Column") -> "Column":
    """How many times its fair share the busiest partition got: 1 is even, the number of partitions the worst."""
    return busiest * partitions / messages


def hot_keys(found: "Column") -> "Column":
    """The hottest keys over all partitions; a key that several partitions name is one."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    def total(key: "Column") -> "Column":
        of_it = F.filter(found, lambda each: each["item"] == key)
        return F.aggregate(of_it, F.lit(0).cast("bigint"), lambda sum_, each: sum_ + each["count"])

    keys = F.array_distinct(F.transform(found, lambda each: each["item"]))
    ordered = F.array_sort(F.transform(keys, lambda key: F.struct((-total(key)).alias("less"), key.alias("key"))))
    return F.transform(
        F.slice(ordered, 1, HOT_KEYS), lambda each: F.struct(each["key"].alias("key"), (-each["less"]).alias("messages"))
    )


def interval(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"


# -- batches ------------------------------------------------------------------------------------------------------------------


_TIME = pa.timestamp("us", "UTC")
COLUMNS = pa.schema(
    [
        ("window_start", _TIME),
        ("window_end", _TIME),
        ("topic", pa.string()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("messages_per_second", pa.float64()),
        ("bytes_per_second", pa.float64()),
        ("delay_p50_ms", pa.float64()),
        ("delay_p95_ms", pa.float64()),
        ("delay_p99_ms", pa.float64()),
        ("delay_max_ms", pa.float64()),
        ("undated", pa.int64()),
        ("keyless", pa.int64()),
        ("hot_keys", pa.list_(pa.struct([("key", pa.string()), ("messages", pa.int64())]))),
        ("partitions", pa.int32()),
        ("busiest_partition", pa.int32()),
        ("skew", pa.float64()),
        ("query_id", pa.string()),
        ("batch", pa.int64()),
    ]
)
_MESSAGE = tuple(name for name in COLUMNS.names if name not in ("query_id", "batch"))


class MetricsBatches:
    """Called by Spark in this process, one batch after the other."""

    def __init__(self, place: Path, checkpoint: Path, partitions: Mapping[str, int], sink: Mapping[str, str] | None) -> None:
        """``sink`` has the options of the metrics topic; None if there is no such topic."""
        self.place = place
        self._checkpoint = checkpoint
        self._partitions = partitions
        self._sink = sink
        self.windows = 0
        """Rows that were added to the table."""

    def __call__(self, rows: "DataFrame", number: int) -> None:
        query_id = read_query_id(self._checkpoint)
        if query_id is None:
            raise PipelineFailed(f"the checkpoint {self._checkpoint} does not say which query it is of: begin a new one")
        written = self._into_table(rows, query_id, number)
        if written is not None and self._sink is not None:
            write_topic(messages(written), self._sink, f"{query_id}-{number}")

    def _into_table(self, rows: "DataFrame", query_id: str, number: int) -> "DataFrame | None":
        """The rows of this batch as the table has them; None if no window was closed."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

        spark = rows.sparkSession
        table = LakeTable.open(self.place)
        if table.position(query_id) > number + 1:
            raise PipelineFailed(
                f"the checkpoint {self._checkpoint} is at batch {number}, and the table {self.place} has batch "
                f"{table.position(query_id) - 1} of its query: an older copy of the checkpoint would leave windows out; "
                f"take the newest one, or a new table and a new checkpoint"
            )
        if table.position(query_id) > number:
            # The frame must run even when nobody needs its rows, because running it keeps the state of the open windows.
            rows.write.format("noop").mode("overwrite").save()
            return table.frame(spark).where((F.col("query_id") == query_id) & (F.col("batch") == number))
        found = by_topic(rows, self._partitions)
        named = found.withColumns({"query_id": F.lit(query_id), "batch": F.lit(number).cast("bigint")})
        appended = append_frame(named.coalesce(1), table, {query_id: number + 1})
        self.windows += appended.rows
        if not appended.files:
            return None
        # Files of another run may be among those that are new.
        written = LakeTable.open(self.place).frame(spark, files=appended.files)
        return written.where((F.col("query_id") == query_id) & (F.col("batch") == number))


def messages(found: "DataFrame") -> "DataFrame":
    """Rows of the table as messages: the topic as key, JSON as value, in the order of time."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    columns = [_iso(F.col(name)).alias(name) if name.startswith("window_") else F.col(name) for name in _MESSAGE]
    ordered = found.coalesce(1).sortWithinPartitions("window_start", "topic")
    return ordered.select(F.col("topic").alias("key"), F.to_json(F.struct(*columns)).alias("value"))


def _iso(moment: "Column") -> "Column":
    """Formatted in UTC, whatever the session's time zone is."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

    return F.date_format(F.to_utc_timestamp(moment, F.current_timezone()), "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def write_topic(found: "DataFrame", sink: Mapping[str, str], write_id: str) -> None:
    found.write.format("tidelog").options(**sink).option("writeId", write_id).mode("append").save()


def read_query_id(checkpoint: Path) -> str | None:
    """The id of the query that the checkpoint belongs to; None before its first start."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PipelineFailed(f"the checkpoint {checkpoint} cannot be read: {error}") from error


# -- the pipeline -------------------------------------------------------------------------------------------------------------


SUMMARY = "Throughput, bytes, delay, hot keys and skew of topics, by windows of time, to a Delta table and a topic."
EXAMPLE = "tidelog pipeline run metrics --topic orders --table lake/metrics --metrics-topic orders-metrics --event-time sent_at"

KIND = "metrics"
_FIELD = re.compile(r"[^\s.'\"\[\]\\$]+(?:\.[^\s.'\"\[\]\\$]+)*")


@dataclass(frozen=True, kw_only=True)
class MetricsOptions(StreamOptions):
    topic: tuple[str, ...] = flag("A topic to watch; repeatable.", "NAME")
    table: str = flag("The directory of the table.", "DIRECTORY")
    metrics_topic: str | None = flag("A topic for the same as JSON; it is created if missing.", "NAME", default=None)
    event_time: str | None = flag("The field of JSON values that has the time, such as meta.sent_at.", "FIELD", default=None)
    window_seconds: float = flag("Length of a window.", "SECONDS", default=60.0)
    watermark_seconds: float = flag("How long a window waits for late messages.", "SECONDS", default=60.0)
    checkpoint: str | None = flag("Where Spark keeps its progress; by default within the table.", "DIRECTORY", default=None)

    def __post_init__(self) -> None:
        if not self.topic or not all(self.topic):
            raise InvalidArgument("--topic is missing: the topic to watch")
        if len(set(self.topic)) != len(self.topic):
            raise InvalidArgument("--topic names one topic twice")
        if not self.table:
            raise InvalidArgument("--table is missing: the directory of the table")
        if self.metrics_topic in self.topic:
            raise InvalidArgument(f"--metrics-topic {self.metrics_topic} is one of those watched: it would be about itself")
        if self.event_time is not None and not _FIELD.fullmatch(self.event_time):
            raise InvalidArgument(f"--event-time {self.event_time}: expected a field such as sent_at or meta.sent_at")
        if self.window_seconds < SECONDS_MIN:
            raise InvalidArgument(f"--window-seconds must be at least {SECONDS_MIN}: not {self.window_seconds}")
        if self.watermark_seconds < 0:
            raise InvalidArgument(f"--watermark-seconds must not be negative: not {self.watermark_seconds}")
        super().__post_init__()


OPTIONS = MetricsOptions


def run(spark: "SparkSession", options: MetricsOptions, reporter: Reporter) -> PipelineOutcome:
    sink = sink_options(options)
    topics = find_topics(options, options.topic)
    checkpoint = checkpoint_of(options)
    check_checkpoint_place(checkpoint, local_path(options.table))
    table = LakeTable.ensure(options.table, COLUMNS, identity=identity_of(options))
    check_checkpoint(table, checkpoint)
    if sink is not None:
        ensure_metrics_topic(options)
    batches = MetricsBatches(table.place, checkpoint, {topic.name: topic.partitions for topic in topics}, sink)
    reporter.step(f"counting {', '.join(options.topic)} by windows of {options.window_seconds:g} s")
    late = LateGroups()
    query = _start(spark, options, checkpoint, batches, late)
    late.query = query
    with vacuumed([table.place], retention_hours=RETENTION_HOURS):
        end = run_query(query, reporter, unit="messages")
    late.look()
    return outcome_of(options, end, batches.windows, late.count)


def identity_of(options: MetricsOptions) -> dict[str, str]:
    """Windows of another length, or by another time, belong to another table."""
    return {
        "kind": KIND,
        "topics": ",".join(sorted(options.topic)),
        "window": interval(options.window_seconds),
        "event_time": options.event_time or "the record's timestamp",
    }


def checkpoint_of(options: MetricsOptions) -> Path:
    within = local_path(options.table) / "_tidelog" / "checkpoint"
    return within if options.checkpoint is None else local_path(options.checkpoint)


def check_checkpoint(table: LakeTable, checkpoint: Path) -> None:
    query_id = read_query_id(checkpoint)
    if table.delta.file_uris() and (query_id is None or not table.position(query_id)):
        raise WrongTable(
            f"the table {table.place} has windows of another checkpoint than {checkpoint}, and would get them a second time: "
            f"give the one that it was filled with, or write to a new table"
        )


def sink_options(options: MetricsOptions) -> dict[str, str] | None:
    """Options for writing the metrics topic; refused before anything is read if it cannot be exactly once."""
    if options.metrics_topic is None:
        return None
    given = {**options.connection, "topic": options.metrics_topic}
    check_security(SinkOptions.parse(given))
    return given


def ensure_metrics_topic(options: MetricsOptions) -> None:
    """Create the topic with one partition: a message for each window and topic is not much, and so all of them stay in order."""
    assert options.metrics_topic is not None, "asked for only where there is one"
    try:
        find_topics(options, [options.metrics_topic])
    except UnknownTopic:
        with Admin(options.bootstrap, config=options.settings) as admin:
            admin.create_topic(options.metrics_topic, partitions=1, exists_ok=True)


class LateGroups:
    """Counts what Spark dropped because it arrived after the watermark: by window, topic and partition of a batch, one each,
    because Spark sums before it checks. It keeps the last hundred reports, so they are read while the query runs."""

    def __init__(self) -> None:
        self.query: StreamingQuery | None = None
        self._by_batch: dict[int, int] = {}

    def look(self) -> None:
        if self.query is None:
            return
        for progress in self.query.recentProgress:
            told = json.loads(progress.json)
            dropped = sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in told.get("stateOperators") or ())
            # A batch that found nothing reports the same number again.
            self._by_batch[int(told["batchId"])] = max(self._by_batch.get(int(told["batchId"]), 0), dropped)

    @property
    def count(self) -> int:
        return sum(self._by_batch.values())


def _start(
    spark: "SparkSession",
    options: MetricsOptions,
    checkpoint: Path,
    batches: MetricsBatches,
    late: LateGroups,
) -> "StreamingQuery":
    given = {
        **options.connection,
        "subscribe": ",".join(options.topic),
        "startingOffsets": "earliest",
    }
    found = windows(
        events(spark.readStream.format("tidelog").options(**given).load(), options.event_time),
        options.window_seconds,
        options.watermark_seconds,
    )

    def write(rows: "DataFrame", number: int) -> None:
        batches(rows, number)
        merge_after_commit(batches.place)
        late.look()

    writer = found.writeStream.outputMode("append").foreachBatch(write).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**options.trigger).start()


def outcome_of(options: MetricsOptions, end: QueryEnd, added: int, late: int) -> PipelineOutcome:
    figures: dict[str, int | float | str] = {
        "messages read": end.rows,
        "windows written": added,
        "late groups dropped": late,
        "table": options.table,
    }
    if options.metrics_topic is not None:
        figures["metrics topic"] = options.metrics_topic
    how = "stopped; the same command continues from here" if end.is_stopped else "windows that are still open wait for more data"
    return PipelineOutcome(f"{added:,} windows of {', '.join(options.topic)} to {options.table}: {how}", figures)
