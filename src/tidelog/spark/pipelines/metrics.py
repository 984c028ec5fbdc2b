"""Throughput, bytes, delay, hot keys and skew of topics, by windows of time: into a Delta table, and into a metrics topic.

A window comes once, when the watermark (the latest event time seen, less ``--watermark-seconds``) has passed its end. What comes
later for it is dropped, and counted. So the last windows of a topic stay open until more data comes: without ``--continuous``
they are kept in the checkpoint, and the next run goes on with them.

The checkpoint holds what the open windows have so far. Without it, or with another one, windows would come a second time: a table
that has windows of another checkpoint is refused.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.client.admin import Admin
from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.spark.options import SinkOptions
from tidelog.spark.pipelines.cluster_options import BOOTSTRAP, Topic, find_topics, kafka_settings, spark_options
from tidelog.spark.pipelines.metrics_batches import COLUMNS, MetricsBatches, read_query_id
from tidelog.spark.pipelines.metrics_windows import events, interval, windows
from tidelog.spark.pipelines.pipeline import Outcome, Reporter
from tidelog.spark.pipelines.query_run import QueryEnd, run_query
from tidelog.spark.sink.connections import check_security
from tidelog.spark.tables.errors import WrongTable
from tidelog.spark.tables.lake_table import LakeTable, check_checkpoint_place, local_path
from tidelog.spark.tables.upkeep import RETENTION_HOURS, merge_after_commit, vacuumed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SUMMARY = "Throughput, bytes, delay, hot keys and skew of topics, by windows of time, to a Delta table and a topic."
EXAMPLE = "tidelog pipeline run metrics --topic orders --table lake/metrics --metrics-topic orders-metrics --event-time sent_at"

KIND = "metrics"
_FIELD = re.compile(r"[^\s.'\"\[\]\\$]+(?:\.[^\s.'\"\[\]\\$]+)*")


@dataclass(frozen=True)
class MetricsOptions:
    topic: tuple[str, ...] = field(metadata={"help": "A topic to watch; several are fine.", "metavar": "NAME"})
    table: str = field(metadata={"help": "The table's directory.", "metavar": "DIRECTORY"})
    metrics_topic: str | None = field(
        default=None, metadata={"help": "Where the same goes as JSON; made when it is not there.", "metavar": "NAME"}
    )
    event_time: str | None = field(
        default=None, metadata={"help": "The field of JSON values that has the time, say meta.sent_at.", "metavar": "FIELD"}
    )
    window_seconds: float = field(default=60.0, metadata={"help": "How long a window is.", "metavar": "SECONDS"})
    watermark_seconds: float = field(
        default=60.0, metadata={"help": "How long a window waits for what comes late.", "metavar": "SECONDS"}
    )
    bootstrap: str = field(default=BOOTSTRAP, metadata={"help": "host:port of a broker.", "metavar": "ADDRESS"})
    kafka: tuple[str, ...] = field(
        default=(), metadata={"help": "A setting of librdkafka, say sasl.username=me; several are fine.", "metavar": "NAME=VALUE"}
    )
    checkpoint: str | None = field(
        default=None, metadata={"help": "Where Spark keeps its progress; else within the table.", "metavar": "DIRECTORY"}
    )
    continuous: bool = field(default=False, metadata={"help": "Go on with what comes, until stopped."})
    trigger_seconds: float = field(default=10.0, metadata={"help": "Between batches, when continuous.", "metavar": "SECONDS"})

    def __post_init__(self) -> None:
        if not self.topic or not all(self.topic):
            raise InvalidArgument("--topic is missing: the topic to watch")
        if len(set(self.topic)) != len(self.topic):
            raise InvalidArgument("--topic: one is named twice")
        if not self.table:
            raise InvalidArgument("--table is missing: the directory of the table")
        if self.metrics_topic in self.topic:
            raise InvalidArgument(f"--metrics-topic {self.metrics_topic} is one of those watched: it would be about itself")
        if self.event_time is not None and not _FIELD.fullmatch(self.event_time):
            raise InvalidArgument(f"--event-time {self.event_time}: expected a field such as sent_at or meta.sent_at")
        for name in ("window_seconds", "trigger_seconds"):
            if getattr(self, name) < 0.001:
                raise InvalidArgument(f"--{name.replace('_', '-')} is 0.001 or more: not {getattr(self, name)}")
        if self.watermark_seconds < 0:
            raise InvalidArgument(f"--watermark-seconds is 0 or more: not {self.watermark_seconds}")
        kafka_settings(self.kafka)


OPTIONS = MetricsOptions


def run(spark: "SparkSession", options: MetricsOptions, reporter: Reporter) -> Outcome:
    sink = sink_options(options)
    topics = find_topics(options.bootstrap, options.kafka, options.topic)
    checkpoint = checkpoint_of(options)
    check_checkpoint_place(checkpoint, local_path(options.table))
    table = LakeTable.ensure(options.table, COLUMNS, identity=identity_of(options))
    check_checkpoint(table, checkpoint)
    if sink is not None:
        ensure_metrics_topic(options)
    batches = MetricsBatches(table.place, checkpoint, {topic.name: topic.partitions for topic in topics}, sink)
    reporter.step(f"counting {', '.join(options.topic)} by windows of {options.window_seconds:g} s")
    late = LateGroups()
    query = _start(spark, options, topics, checkpoint, batches, late)
    late.query = query
    with vacuumed([table.place], retention_hours=RETENTION_HOURS):
        end = run_query(query, reporter, unit="messages")
    late.look()
    return outcome_of(options, end, batches.windows, late.count)


def identity_of(options: MetricsOptions) -> dict[str, str]:
    """Windows of another length, or by another time, are another table."""
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
    """Those of the metrics topic; refused before anything is read where they cannot be exactly once."""
    if options.metrics_topic is None:
        return None
    given = {**spark_options(options.bootstrap, options.kafka), "topic": options.metrics_topic}
    check_security(SinkOptions.parse(given))
    return given


def ensure_metrics_topic(options: MetricsOptions) -> None:
    """With one partition: a message for each window and topic is not much, and so all of them stay in order."""
    assert options.metrics_topic is not None, "asked for only where there is one"
    try:
        find_topics(options.bootstrap, options.kafka, [options.metrics_topic])
    except UnknownTopic:
        with Admin(options.bootstrap, config=kafka_settings(options.kafka)) as admin:
            admin.create_topic(options.metrics_topic, partitions=1, exists_ok=True)


class LateGroups:
    """What Spark dropped because it came after the watermark: by window, topic and partition of a batch, one each, for Spark sums
    up before it looks. It keeps the last hundred reports, so they are looked at while the query runs."""

    def __init__(self) -> None:
        self.query: StreamingQuery | None = None
        self._by_batch: dict[int, int] = {}

    def look(self) -> None:
        if self.query is None:
            return
        for progress in self.query.recentProgress:
            told = json.loads(progress.json)
            dropped = sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in told.get("stateOperators") or ())
            # A batch that found nothing tells the same number again.
            self._by_batch[int(told["batchId"])] = max(self._by_batch.get(int(told["batchId"]), 0), dropped)

    @property
    def count(self) -> int:
        return sum(self._by_batch.values())


def _start(
    spark: "SparkSession",
    options: MetricsOptions,
    topics: list[Topic],
    checkpoint: Path,
    batches: MetricsBatches,
    late: LateGroups,
) -> "StreamingQuery":
    given = {
        **spark_options(options.bootstrap, options.kafka),
        "subscribe": ",".join(topic.name for topic in topics),
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
    if options.continuous:
        return writer.trigger(processingTime=interval(options.trigger_seconds)).start()
    return writer.trigger(availableNow=True).start()


def outcome_of(options: MetricsOptions, end: QueryEnd, added: int, late: int) -> Outcome:
    figures: dict[str, int | float | str] = {
        "messages read": end.rows,
        "windows written": added,
        "late groups dropped": late,
        "table": options.table,
    }
    if options.metrics_topic is not None:
        figures["metrics topic"] = options.metrics_topic
    how = "stopped; the same command goes on from here" if end.is_stopped else "windows that are still open wait for more data"
    return Outcome(f"{added:,} windows of {', '.join(options.topic)} to {options.table}: {how}", figures)
