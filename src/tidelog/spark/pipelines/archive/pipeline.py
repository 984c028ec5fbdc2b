"""Archives topics in Delta tables, every message once: as it is, and with the fields of its JSON as columns.

Each topic has a table, partitioned by the UTC day of the message and by whether the message is bad. The table keeps the promise:
its own commits say how far it has come (``tables.lake_table``), so neither a crash nor a lost checkpoint loses or repeats a
message. A run with more fields adds columns and resumes where the table is; one with other types is refused before it reads.

**The checkpoint.** A query resumes where its checkpoint says. When the table was removed, restored from an older copy, or is a
different one, the checkpoint is ahead of it, and the messages in between would end up in neither. Then the checkpoint is moved
aside and the table's own positions say where to begin. A topic that ends with transaction markers also has a checkpoint ahead of
the table, because markers are offsets without a message. Reading them again would be correct but leave a directory each time, so
a run that ends well notes where both stand.

**Parquet.** With ``--format parquet`` Spark's own sink writes plain files, and the promise is Spark's: the sink's log
(``_spark_metadata``) says which files count, and only Spark reads it; other readers also see what crashes left. It depends on the
checkpoint: with a new one every message would be written again, and with that of another directory batches would be missing. A
checkpoint whose batches are not those of the directory is refused. Nothing is merged and nothing vacuumed.

**The outcome** comes from the tables' own history: what the run committed is counted, and nothing else.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.checkpoint_offsets import last_batch_done, last_batch_planned, planned_batch
from tidelog.spark.pipelines.archive.json_columns import can_parse
from tidelog.spark.pipelines.archive.rows import BAD, PARTITION_BY, archive_columns, archive_rows, read_schema
from tidelog.spark.pipelines.archive.source import (
    FILES_FORMAT,
    ROWS_COLUMN,
    SCHEMA_OPTION,
    TABLE_OPTION,
    ArchiveFilesSource,
    messages_with_fields,
)
from tidelog.spark.pipelines.options import TableStreamOptions, flag
from tidelog.spark.pipelines.pipeline import PipelineOutcome, Reporter
from tidelog.spark.pipelines.query_run import run_query, stop_on_signals
from tidelog.spark.pipelines.topics import FoundTopic, find_topics
from tidelog.spark.progress_listener import OBSERVED_ROWS
from tidelog.spark.tables.errors import WrongTable
from tidelog.spark.tables.lake_table import PREFIX, LakeTable, check_checkpoint_place, local_path
from tidelog.spark.tables.table_sink import FORMAT as TABLE
from tidelog.spark.tables.table_sink import MESSAGE_COLUMN, RUN, TidelogTableSink, position_name
from tidelog.spark.tables.upkeep import merged, vacuumed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SUMMARY = "Topics to Delta tables, every message exactly once, with the fields of its JSON as columns."
EXAMPLE = "tidelog pipeline run archive --topic orders --table lake/orders --schema 'id BIGINT NOT NULL, city STRING'"

KIND = "archive"
DELTA, PARQUET = "delta", "parquet"
# A batch that a crash interrupts is repeated: this many messages are seconds of work.
ROWS_PER_BATCH = 5_000_000
_EARLIEST = -2


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(TableStreamOptions):
    topic: tuple[str, ...] = flag("A topic; repeatable.", "NAME")
    table: str = flag("The directory of the table; with several topics, of their tables.", "DIRECTORY")
    format: str = flag("delta, or parquet: files without a table's log.", "NAME", default=DELTA)
    batch_rows: int = flag("The greatest number of messages in one commit.", "COUNT", default=ROWS_PER_BATCH)

    def __post_init__(self) -> None:
        if not self.topic or not all(self.topic):
            raise InvalidArgument("--topic is missing: the topic to archive")
        if len(set(self.topic)) != len(self.topic):
            raise InvalidArgument("--topic names one topic twice")
        if self.format not in (DELTA, PARQUET):
            raise InvalidArgument(f"--format is {DELTA} or {PARQUET}: not {self.format!r}")
        super().__post_init__()


OPTIONS = ArchiveOptions


class ArchiveTarget(NamedTuple):
    """A topic and the table that it goes to."""

    topic: FoundTopic
    place: Path
    checkpoint: Path
    version: int
    """The table's version before this run; 0 if the table is new."""
    run: int
    """A number that is noted in the commits of this run and of no other."""


def run(spark: "SparkSession", options: ArchiveOptions, reporter: Reporter) -> PipelineOutcome:
    spark.dataSource.register(TidelogTableSink)
    spark.dataSource.register(ArchiveFilesSource)
    schema = read_schema(options.schema, options.schema_file)
    topics = find_topics(options, options.topic)
    # Check all of them before the first one begins, so that nothing is read if one is refused.
    targets = [_target(options, topic, schema) for topic in topics]
    if options.format == PARQUET:
        is_stopped, rows = _run_all(spark, options, schema, targets, reporter)
        return parquet_outcome(spark, [target.place for target in targets], rows, is_stopped=is_stopped)
    places = [target.place for target in targets]
    with vacuumed(places, retention_hours=options.retention_hours), merged(spark, places):
        is_stopped, _ = _run_all(spark, options, schema, targets, reporter)
    added = [added_by(target.run, target.place, target.version, target.topic) for target in targets]
    return outcome_of(added, is_stopped=is_stopped)


def rows_of(spark: "SparkSession", options: ArchiveOptions, schema: StructType | None, target: ArchiveTarget) -> "DataFrame":
    """The rows of the archive. Into a table, and if the schema allows it, they are those that tasks have not written to files
    themselves, with the names of those files."""
    starting = "earliest" if options.format == PARQUET else starting_offsets(target.topic, LakeTable.open(target.place))
    given = options.source(target.topic.name, starting)
    if options.format == PARQUET or (schema is not None and not can_parse(schema)):
        return archive_rows(messages_with_fields(spark, given, schema), schema)
    parsing = {} if schema is None else {SCHEMA_OPTION: schema.json()}
    found = spark.readStream.format(FILES_FORMAT).options(**given, **parsing, **{TABLE_OPTION: str(target.place)}).load()
    found = found.observe(OBSERVED_ROWS, F.sum(ROWS_COLUMN).alias("rows")).drop(ROWS_COLUMN)
    return found if schema is None else archive_rows(found, schema, MESSAGE_COLUMN)


def starting_offsets(topic: FoundTopic, table: LakeTable) -> str:
    """Where a query without a checkpoint begins: the messages that the table has need not be read again."""
    positions = {number: table.position(position_name(topic.name, number)) for number in range(topic.partitions)}
    if not any(positions.values()):
        return "earliest"
    return json.dumps({topic.name: {str(number): position or _EARLIEST for number, position in positions.items()}})


def _target(options: ArchiveOptions, topic: FoundTopic, schema: StructType | None) -> ArchiveTarget:
    is_only = len(options.topic) == 1
    place = local_path(options.table) if is_only else local_path(options.table) / topic.name
    within = place / "_tidelog" / "checkpoint"
    checkpoint = within if options.checkpoint is None else local_path(options.checkpoint) / ("" if is_only else topic.name)
    if options.format == PARQUET:
        check_parquet_place(place, checkpoint)
        return ArchiveTarget(topic, place, checkpoint, 0, 0)
    check_checkpoint_place(checkpoint, place)
    identity = {"kind": KIND, "topic": topic.name} | ({"topic_id": topic.topic_id} if topic.topic_id else {})
    table = LakeTable.ensure(place, archive_columns(schema), partition_by=PARTITION_BY, identity=identity)
    return ArchiveTarget(topic, place, checkpoint, table.version, 1 + secrets.randbits(48))


def _run_all(
    spark: "SparkSession", options: ArchiveOptions, schema: StructType | None, targets: list[ArchiveTarget], reporter: Reporter
) -> tuple[bool, int]:
    """Return whether the run was stopped, and how many rows passed through Spark. Several topics without an end take turns."""
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


def _check_checkpoint(target: ArchiveTarget, reporter: Reporter) -> None:
    if aside := set_aside_if_ahead(LakeTable.open(target.place), target.checkpoint, target.topic.name):
        reporter.step(f"the checkpoint is ahead of the table {target.place}: moved to {aside}, going on where the table is")


def _start(
    spark: "SparkSession", options: ArchiveOptions, schema: StructType | None, target: ArchiveTarget, *, is_only: bool
) -> "StreamingQuery":
    writer = rows_of(spark, options, schema, target).writeStream.option("checkpointLocation", str(target.checkpoint))
    # Several topics take turns, each up to what is there.
    writer = writer.trigger(**options.trigger) if is_only else writer.trigger(availableNow=True)
    if options.format == PARQUET:
        return writer.format("parquet").partitionBy(*PARTITION_BY).start(str(target.place))
    return writer.format(TABLE).option(RUN, str(target.run)).start(str(target.place))


# -- the checkpoint -----------------------------------------------------------------------------------------------------------


NOTE = "tidelog-table.json"


def set_aside_if_ahead(table: LakeTable, checkpoint: Path, topic: str) -> Path | None:
    """Move the checkpoint aside if it is ahead of the table, and return where it is now."""
    begins = next_offsets(checkpoint, topic)
    if all(offset <= table.position(name) for name, offset in begins.items()) or _noted(checkpoint) == _standing(table, begins):
        return None
    number = 1
    while (aside := checkpoint.with_name(f"{checkpoint.name}.ahead-{number}")).exists():
        number += 1
    return checkpoint.rename(aside)


def note_end(table: LakeTable, checkpoint: Path, topic: str) -> None:
    """Called when a run ended well: if the checkpoint is ahead of the table, there are no messages in between."""
    if begins := next_offsets(checkpoint, topic):
        (checkpoint / NOTE).write_text(json.dumps(_standing(table, begins)))


def next_offsets(checkpoint: Path, topic: str) -> dict[str, int]:
    """Where a query continues, by the names of positions: at the end of the last batch, or of the one before if the last has to
    be repeated."""
    planned = last_batch_planned(checkpoint)
    if planned is None:
        return {}
    if last_batch_done(checkpoint) == planned:
        found = dict(planned_batch(checkpoint, planned).offset.positions)
    else:
        before = planned_batch(checkpoint, planned - 1).offset.positions if planned else {}
        found = {**before, **planned_batch(checkpoint, planned).offset.begins}
    # The source itself refuses a checkpoint of another topic.
    return {position_name(*partition): offset for partition, offset in found.items() if partition.topic == topic}


def _standing(table: LakeTable, begins: dict[str, int]) -> dict[str, Any]:
    positions = {name: table.position(name) for name in begins}
    return {"table": str(table.delta.metadata().id), "positions": positions, "next": begins}


def _noted(checkpoint: Path) -> object:
    try:
        return json.loads((checkpoint / NOTE).read_text())
    except (OSError, ValueError):
        return None


# -- the outcome --------------------------------------------------------------------------------------------------------------


class AddedRows(NamedTuple):
    """The rows that one run added to one table."""

    topic: str
    rows: int
    bad_rows: int
    files: int
    """The number of files that the table has now, from this run and earlier ones."""
    size_bytes: int
    version: int
    positions: dict[int, int]


def added_by(run: int, place: Path, version: int, topic: FoundTopic) -> AddedRows:
    """Count the rows since that version. Another run may have committed as well, while this one had nothing to do."""
    table = LakeTable.open(place)
    commits = table.delta.history(table.version - version) if table.version > version else []
    commits = [commit for commit in commits if int(commit.get(f"{PREFIX}{RUN}", 0)) == run]
    sizes = pa.table(table.delta.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
    return AddedRows(
        topic.name,
        sum(int(commit.get(f"{PREFIX}rows", 0)) for commit in commits),
        sum(int(commit.get(f"{PREFIX}badRows", 0)) for commit in commits),
        len(sizes),
        sum(sizes),
        table.version,
        {number: table.position(position_name(topic.name, number)) for number in range(topic.partitions)},
    )


def outcome_of(added: Sequence[AddedRows], *, is_stopped: bool) -> PipelineOutcome:
    rows, bad_rows = sum(each.rows for each in added), sum(each.bad_rows for each in added)
    bad = f", {bad_rows:,} of them bad and kept aside" if bad_rows else ""
    names = ", ".join(each.topic for each in added)
    stopped = "; stopped, the same command continues from here" if is_stopped else ""
    figures: dict[str, int | float | str] = {"rows": rows, "bad_rows": bad_rows}
    figures["files"] = sum(each.files for each in added)
    figures["bytes"] = sum(each.size_bytes for each in added)
    for each in added:
        prefix = f"{each.topic} " if len(added) > 1 else ""
        figures[f"{prefix}version"] = each.version
        figures[f"{prefix}positions"] = ", ".join(f"{number}: {position}" for number, position in each.positions.items())
    return PipelineOutcome(f"{rows:,} messages of {names} archived{bad}{stopped}", figures)


# -- Parquet ------------------------------------------------------------------------------------------------------------------


def check_parquet_place(place: Path, checkpoint: Path) -> None:
    if place.exists() and DeltaTable.is_deltatable(str(place)):
        raise WrongTable(f"{place} is a Delta table: leave --format parquet out, or name a new directory")
    written = last_batch(place / "_spark_metadata")
    if written > last_batch(checkpoint / "offsets"):
        raise WrongTable(
            f"{place} has files, and the checkpoint {checkpoint} does not know them: every message would be written a second "
            "time, or be left out; name the old checkpoint, or a new directory"
        )
    if written < last_batch(checkpoint / "commits"):
        raise WrongTable(
            f"the checkpoint {checkpoint} has done batches that {place} does not have: their messages would be missing; "
            "name another checkpoint, and a new directory"
        )
    if place.exists() and not (place / "_spark_metadata").exists() and any(_parquet_files(place)):
        raise WrongTable(f"{place} has Parquet files that this pipeline did not write: name a new directory")


def last_batch(log: Path) -> int:
    """The greatest number in one of Spark's logs; -1 if the log is empty. Several batches may be one file: ``9.compact``."""
    names = [path.name.removesuffix(".compact") for path in log.iterdir()] if log.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def parquet_outcome(spark: "SparkSession", places: Sequence[Path], rows: int, *, is_stopped: bool) -> PipelineOutcome:
    written = [place for place in places if (place / "_spark_metadata").exists()]
    bad = sum(spark.read.parquet(str(place)).where(f"{BAD} = 'true'").count() for place in written if _parquet_files(place))
    files = [file for place in written for file in _parquet_files(place)]
    figures: dict[str, int | float | str] = {
        "rows": rows,
        "bad_rows_in_all": bad,
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
    }
    stopped = "; stopped, the same command continues from here" if is_stopped else ""
    return PipelineOutcome(f"{rows:,} messages archived as Parquet{stopped}", figures)


def _parquet_files(place: Path) -> list[Path]:
    return list(place.glob("day=*/bad=*/*.parquet"))
