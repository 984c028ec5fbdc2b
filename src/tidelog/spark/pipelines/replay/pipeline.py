"""Replays a range of an archive into a topic: the same key, value, headers and time, in the same order per key, each exactly
once.

The rows are divided into chunks (``plan``), which the sink writes one after the other, each under its own ``writeId``. The plan
is kept: running the same command again after a crash continues with the same chunks, skips those that were sent, and aborts what
was open. A replay that is done is not done again under its id.
"""

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere with Spark

from tidelog.client.errors import InvalidArgument
from tidelog.spark.pipelines.archive.pipeline import KIND
from tidelog.spark.pipelines.failures import error_behind
from tidelog.spark.pipelines.offset_ranges import OffsetRange, frame_of, parse_ranges
from tidelog.spark.pipelines.options import ClusterOptions, flag
from tidelog.spark.pipelines.pipeline import PipelineFailed, PipelineOutcome, Reporter
from tidelog.spark.pipelines.query_run import stop_on_signals
from tidelog.spark.pipelines.replay.plan import (
    ROWS_PER_CHUNK,
    ChunkPacer,
    OffsetBucket,
    ReplayChunk,
    ReplayPlan,
    ReplayPlanFile,
    bucket_offsets,
    checked_id,
    cut,
    digest,
    rows_wanted,
)
from tidelog.spark.pipelines.topics import TopicSnapshot, id_text, librdkafka_source, topic_snapshot
from tidelog.spark.tables.lake_table import LakeTable

# -- rows ---------------------------------------------------------------------------------------------------------------------


class ReplaySelection(NamedTuple):
    """Selects rows of a table; ``to_ms`` is excluded."""

    from_ms: int | None = None
    to_ms: int | None = None
    ranges: tuple[OffsetRange, ...] = ()
    keys: tuple[str, ...] = ()
    is_good_only: bool = False


def selected(table: DataFrame, selection: ReplaySelection) -> DataFrame:
    rows = table
    if selection.from_ms is not None:
        rows = rows.where(F.col("timestamp") >= _moment(selection.from_ms))
    if selection.to_ms is not None:
        rows = rows.where(F.col("timestamp") < _moment(selection.to_ms))
    if selection.keys:
        rows = rows.where(F.col("key").isin(*(F.lit(key.encode()) for key in selection.keys)))
    if selection.is_good_only:
        rows = rows.where(~F.col("bad"))
    return rows.where(is_within(selection.ranges)) if selection.ranges else rows


def is_within(ranges: Sequence[OffsetRange]) -> Column:
    """Comparisons of columns with numbers, which let Spark skip Parquet files."""
    return reduce(
        or_, ((F.col("partition") == each.partition) & F.col("offset").between(each.start, each.end - 1) for each in ranges)
    )


def counted(rows: DataFrame, bucket_offsets: int) -> DataFrame:
    """Counts by partition and bucket of offsets: partition, first, last, rows, oldest."""
    return (
        rows.groupBy("partition", F.expr(f"`offset` div {bucket_offsets}").alias("bucket"))
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count(F.lit(1)).alias("rows"),
            F.min(F.unix_millis("timestamp")).alias("oldest_ms"),
        )
        .select("partition", "first", "last", "rows", "oldest_ms")
    )


def messages(rows: DataFrame, *, keeps_partitions: bool, keeps_timestamps: bool) -> DataFrame:
    """Rows for the sink. One task writes a source partition in the order of its offsets, which keeps the order of every key."""
    columns = ["key", "value", "headers"]
    ordered = rows.repartition("partition").sortWithinPartitions("partition", "offset")
    if keeps_partitions:
        columns.append("partition")
    if keeps_timestamps:
        # Messages from before Kafka had timestamps; a null becomes the time of sending.
        ordered = ordered.withColumn("timestamp", F.when(F.col("timestamp") >= _moment(0), F.col("timestamp")))
        columns.append("timestamp")
    return ordered.select(*columns)


def _moment(milliseconds: int) -> Column:
    return F.timestamp_millis(F.lit(milliseconds))


def time_ms(option: str, text: str) -> int:
    """ISO 8601, in UTC where no zone is given, or milliseconds since 1970."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgument(f"{option} is a time such as 2026-11-16T12:00 (UTC) or 1763290800000: not {text!r}") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


SUMMARY = "A range of an archive back into a topic, exactly once: same keys, values, headers and times, in the same order."
EXAMPLE = "tidelog pipeline run replay --table lake/orders --topic orders-again --from-time 2026-11-16T12:00"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(ClusterOptions):
    table: str = flag("The directory of the archive table.", "DIRECTORY")
    topic: str = flag("The topic for the messages, which must exist.", "NAME")
    from_time: str | None = flag("Messages of this time or later: 2026-11-16T12:00 (UTC), or milliseconds.", "TIME", default=None)
    to_time: str | None = flag("Messages before this time.", "TIME", default=None)
    offsets: tuple[str, ...] = flag("Only these: PARTITION:FROM-TO, TO not included; repeatable.", "RANGE", default=())
    key: tuple[str, ...] = flag("Only messages with this key; repeatable.", "TEXT", default=())
    good_only: bool = flag("Leave out rows that the archive marked as bad.", default=False)
    rate: float | None = flag("The greatest number of rows a second.", "ROWS", default=None)
    by_key: bool = flag("Choose partitions by key, even if the topic has as many as the archived one.", default=False)
    new_timestamps: bool = flag("Give messages the time of sending instead of their own.", default=False)
    same_topic: bool = flag("Send into the archived topic itself: its readers see messages again.", default=False)
    dry_run: bool = flag("Say what would be sent, and send nothing.", default=False)
    id: str | None = flag(
        "Name of this replay, which is done once under that name; by default made from the options.", "NAME", default=None
    )
    chunk_rows: int = flag("About how many rows become visible together.", "COUNT", default=ROWS_PER_CHUNK)

    def __post_init__(self) -> None:
        if not self.table.strip():
            raise InvalidArgument("--table is missing: the directory of an archive")
        if not self.topic.strip():
            raise InvalidArgument("--topic is missing: where the messages go")
        if self.rate is not None and not self.rate > 0:
            raise InvalidArgument(f"--rate is rows a second, more than 0: not {self.rate:g}")
        if self.chunk_rows < 1:
            raise InvalidArgument(f"--chunk-rows must be at least 1: not {self.chunk_rows}")
        if self.id is not None:
            checked_id("--id", self.id)
        selection = self.selection
        if selection.from_ms is not None and selection.to_ms is not None and selection.from_ms >= selection.to_ms:
            raise InvalidArgument(f"--from-time {self.from_time} is not before --to-time {self.to_time}")
        super().__post_init__()

    @property
    def selection(self) -> ReplaySelection:
        return ReplaySelection(
            None if self.from_time is None else time_ms("--from-time", self.from_time),
            None if self.to_time is None else time_ms("--to-time", self.to_time),
            parse_ranges("--offsets", self.offsets),
            tuple(sorted(set(self.key))),
            self.good_only,
        )


OPTIONS = ReplayOptions


def run(spark: SparkSession, options: ReplayOptions, reporter: Reporter) -> PipelineOutcome:
    return run_paced(spark, options, reporter, time.monotonic)


def run_paced(spark: SparkSession, options: ReplayOptions, reporter: Reporter, clock: Callable[[], float]) -> PipelineOutcome:
    table = LakeTable.open(options.table, kind=KIND)
    reporter.step(f"asking for {options.topic}")
    facts = topic_snapshot(librdkafka_source(options, options.topic))
    _check_target(options, table, facts)
    arguments = arguments_of(options, table, facts)
    file = ReplayPlanFile(table.place, options.id or digest(arguments))
    reporter.step(f"looking at {table.place}")
    known = file.read(arguments)
    plan, oldest_ms = (known, None) if known is not None else new_plan(spark, options, table, facts, arguments)
    before = 0 if known is None else file.chunks_done(known)
    note = retention_note(facts, None if options.new_timestamps else oldest_ms, int(time.time() * 1000))
    if options.dry_run or before == len(plan.chunks):
        return outcome_of(plan, options.topic, ReplayProgress(before, before, is_dry=options.dry_run), note)
    if known is None:
        plan = file.create(plan)
    reporter.step(f"sending {plan.rows:,} rows to {options.topic}, {len(plan.chunks):,} chunks")
    done = before
    with stop_on_signals() as stop:
        pacer = ChunkPacer(options.rate, clock, stop.wait)
        for chunk in plan.chunks[before:]:
            reporter.progress(plan.rows_of(done), plan.rows)
            if not pacer.admit(chunk.rows) or stop.is_set():
                break
            send_chunk(spark, options, table, plan, chunk)
            done = chunk.number + 1
            file.note(done)
    reporter.progress(plan.rows_of(done), plan.rows)
    return outcome_of(plan, options.topic, ReplayProgress(before, done, is_resumed=known is not None), note)


def arguments_of(options: ReplayOptions, table: LakeTable, facts: TopicSnapshot) -> dict[str, Any]:
    """Two replays with the same arguments are the same replay."""
    selection = options.selection
    return {
        "table": str(table.delta.metadata().id),
        "topic": options.topic,
        "topic_id": id_text(facts.topic_id),
        "from_time": selection.from_ms,
        "to_time": selection.to_ms,
        "offsets": [list(each) for each in selection.ranges],
        "key": list(selection.keys),
        "good_only": selection.is_good_only,
        "new_timestamps": options.new_timestamps,
        "by_key": options.by_key,
    }


def _check_target(options: ReplayOptions, table: LakeTable, facts: TopicSnapshot) -> None:
    archived_id, topic_id = table.identity.get("topic_id", ""), id_text(facts.topic_id)
    # If one of them has no id, only the names can be compared.
    is_same = table.identity.get("topic") == facts.topic and ("" in (archived_id, topic_id) or archived_id == topic_id)
    if is_same and not options.same_topic:
        raise PipelineFailed(
            f"{facts.topic} is the topic that {table.place} was made of: all its readers would see these messages a second time, "
            "the archive as well. Name another topic, or give --same-topic if that is what you want"
        )
    if facts.settings.get("message.timestamp.type") == "LogAppendTime" and not options.new_timestamps:
        raise PipelineFailed(
            f"{facts.topic} has message.timestamp.type=LogAppendTime, and the times of the messages would be lost: "
            "change that, or give --new-timestamps"
        )


def new_plan(
    spark: SparkSession, options: ReplayOptions, table: LakeTable, facts: TopicSnapshot, arguments: dict[str, Any]
) -> tuple[ReplayPlan, int | None]:
    """The plan, and the time of the oldest message; None if there are no messages."""
    wanted = rows_wanted(options.chunk_rows, options.rate)
    found = counted(selected(table.frame(spark), options.selection), bucket_offsets(wanted)).collect()
    chunks = cut([OffsetBucket(row.partition, row["first"], row["last"], row["rows"]) for row in found], wanted)
    is_every_there = all(row.partition in facts.ends for row in found)
    replay_id = options.id or digest(arguments)
    plan = ReplayPlan(replay_id, arguments, table.version, is_every_there and not options.by_key, chunks)
    return plan, min((row.oldest_ms for row in found), default=None)


def send_chunk(spark: SparkSession, options: ReplayOptions, table: LakeTable, plan: ReplayPlan, chunk: ReplayChunk) -> None:
    rows = selected(frame_of(spark, table, chunk.ranges), options.selection).where(is_within(chunk.ranges))
    outgoing = messages(rows, keeps_partitions=plan.keeps_partitions, keeps_timestamps=not options.new_timestamps)
    writer = outgoing.write.format("tidelog").mode("append").options(**options.connection)
    try:
        writer.option("topic", options.topic).option("writeId", plan.write_id(chunk)).save()
    except PySparkException as error:
        raise error_behind(error) from error


# -- the outcome --------------------------------------------------------------------------------------------------------------


# A run that made its own plan sends what it has just counted.
COUNTED = "by the plan: rows deleted from the table since, and a chunk that the run before sent last, may be among them"


class ReplayProgress(NamedTuple):
    before: int
    """Chunks that earlier runs sent."""
    done: int
    """Chunks that are sent by now."""
    is_dry: bool = False
    is_resumed: bool = False
    """Whether an earlier run made the plan."""


def outcome_of(plan: ReplayPlan, topic: str, progress: ReplayProgress, note: str) -> PipelineOutcome:
    before, done = progress.before, progress.done
    sent = plan.rows_of(done) - plan.rows_of(before)
    partitions = sorted({each.partition for chunk in plan.chunks for each in chunk.ranges})
    figures: dict[str, int | float | str] = {
        "rows": plan.rows,
        "sent by this run": sent,
        "sent before": plan.rows_of(before),
        "chunks": len(plan.chunks),
        "offsets": ", ".join(f"{number}: {_extent(plan, number)}" for number in partitions) or "none",
        "partitions": "the same as in the archive" if plan.keeps_partitions else "by key",
        "table version": plan.table_version,
        "id": plan.replay_id,
    }
    if progress.is_resumed and done > before:
        figures["counted"] = COUNTED
    if note:
        figures["note"] = note
    return PipelineOutcome(_summary(plan, topic, progress), figures)


def _summary(plan: ReplayPlan, topic: str, progress: ReplayProgress) -> str:
    before, done = progress.before, progress.done
    if not plan.chunks:
        return "nothing to replay: the table has no row in that range"
    left = plan.rows - plan.rows_of(before)
    if before == len(plan.chunks):
        return f"replay {plan.replay_id} was done before: {plan.rows:,} rows are in {topic}; another --id sends them again"
    if progress.is_dry:
        return f"{left:,} rows would be sent to {topic}, in {len(plan.chunks) - before:,} chunks; nothing was sent"
    sent = f"{plan.rows_of(done) - plan.rows_of(before):,} rows {'of the plan ' if progress.is_resumed else ''}sent to {topic}"
    if done < len(plan.chunks):
        return f"{sent}; stopped, {plan.rows - plan.rows_of(done):,} are left: the same command continues from here"
    return sent


def _extent(plan: ReplayPlan, partition: int) -> str:
    ranges = [each for chunk in plan.chunks for each in chunk.ranges if each.partition == partition]
    return f"{ranges[0].start} to {ranges[-1].end - 1}"


def retention_note(facts: TopicSnapshot, oldest_ms: int | None, now_ms: int) -> str:
    """A warning: a topic keeps messages by their own time, so old ones are deleted soon after they arrive."""
    kept_ms = int(facts.settings.get("retention.ms", "-1"))
    is_deleting = "delete" in facts.settings.get("cleanup.policy", "delete")
    if oldest_ms is None or kept_ms < 0 or not is_deleting or oldest_ms >= now_ms - kept_ms:
        return ""
    return (
        f"the oldest message is {(now_ms - oldest_ms) // 86_400_000} days old, and {facts.topic} keeps {kept_ms / 86_400_000:g} "
        "(retention.ms): it will delete such messages; raise it, or give --new-timestamps"
    )
