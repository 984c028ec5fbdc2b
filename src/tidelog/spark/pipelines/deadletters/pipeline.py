"""Archives dead-letter topics in a Delta table, and writes a page that says what waits, since when, why, and what is worth a
replay.

Each run reads what the table lacks, from the table's own positions to the ends of the topics, and commits it at once: there is no
checkpoint to lose, and a killed run leaves nothing half-done. The report covers the whole table, compared with the ledgers of
what was replayed or discarded. New topics are found automatically. A topic that was deleted and created again starts over,
because its id is part of the position's name.
"""

import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.client import FetchClient
from tidelog.client.topic_partition import TopicPartition
from tidelog.deadletters.topics import DEAD_LETTER_SUFFIX, LEDGER_SUFFIX, is_dead_letter_topic, ledger_topic
from tidelog.spark.pipelines.deadletters.counts import count
from tidelog.spark.pipelines.deadletters.letters import COLUMNS, LogStart, letters, with_status
from tidelog.spark.pipelines.deadletters.page import dead_letters_page
from tidelog.spark.pipelines.deadletters.report import DeadLetterReport, age, make_report
from tidelog.spark.pipelines.options import StreamOptions, flag
from tidelog.spark.pipelines.pipeline import PipelineFailed, PipelineOutcome, Reporter
from tidelog.spark.pipelines.query_run import stop_on_signals
from tidelog.spark.pipelines.topics import id_text
from tidelog.spark.tables.lake_table import LakeTable, local_path
from tidelog.spark.tables.table_sink import append_frame
from tidelog.spark.tables.upkeep import RETENTION_HOURS, merge_after_commit, vacuumed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY = "Dead letters to a Delta table and a page: what waits, since when, why, and what is worth a replay."
EXAMPLE = "tidelog pipeline run deadletters --table lake/deadletters --page deadletters.html"

KIND = "deadletters"
# A file is worth at least this many rows; fewer go into one.
ROWS_PER_FILE_MIN = 250_000
_TOPICS = re.compile(rf".+(?:{re.escape(DEAD_LETTER_SUFFIX)}|{re.escape(DEAD_LETTER_SUFFIX + LEDGER_SUFFIX)})")


@dataclass(frozen=True, kw_only=True)
class DeadLettersOptions(StreamOptions):
    table: str = flag("The directory of the table.", "DIRECTORY")
    page: str = flag("The file that the report is written to.", "FILE", default="deadletters.html")
    topic: tuple[str, ...] = flag("A dead-letter topic, TOPIC.GROUP.dlq; repeatable; all by default.", "NAME", default=())
    top: int = flag("How many errors are shown one by one.", "COUNT", default=20)
    quiet_minutes: float = flag("After this time without a failure, a passing error has passed.", "MINUTES", default=15.0)
    hide_values: bool = flag("Leave keys, values and headers of messages out of the page.", default=False)
    continuous: bool = flag("Look again and rewrite the page, until stopped.", default=False)
    trigger_seconds: float = flag("Time between two looks with --continuous.", "SECONDS", default=60.0)

    def __post_init__(self) -> None:
        if not self.table:
            raise InvalidArgument("--table is missing: the directory of the table")
        if not self.page:
            raise InvalidArgument("--page is missing: the file that the report is written to")
        if Path(self.page).absolute().is_relative_to(local_path(self.table)):
            raise InvalidArgument(f"--page {self.page} lies within the table, whose upkeep would remove it: name another place")
        for name in self.topic:
            if not is_dead_letter_topic(name):
                raise InvalidArgument(f"--topic {name}: no dead-letter topic; they are called TOPIC.GROUP{DEAD_LETTER_SUFFIX}")
        if not 1 <= self.top <= 1000:
            raise InvalidArgument(f"--top is from 1 to 1000: not {self.top}")
        if self.quiet_minutes < 0:
            raise InvalidArgument(f"--quiet-minutes must not be negative: not {self.quiet_minutes}")
        super().__post_init__()


OPTIONS = DeadLettersOptions


class DeadLetterTopics(NamedTuple):
    """The dead-letter topics of the cluster."""

    topic_ids: Mapping[str, str]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    ledgers: tuple[str, ...]
    """Names of the ledger topics that exist."""


class UnreadRanges(NamedTuple):
    """The offsets that the table lacks."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    lost: int
    """The number of offsets that retention deleted before they were read."""

    @property
    def size(self) -> int:
        return sum(end - self.starts[partition] for partition, end in self.ends.items())


def run(spark: "SparkSession", options: DeadLettersOptions, reporter: Reporter) -> PipelineOutcome:
    if not options.continuous:
        with vacuumed([local_path(options.table)], retention_hours=RETENTION_HOURS):
            return run_once(spark, options, reporter, _now_ms())
    with stop_on_signals() as stop, vacuumed([local_path(options.table)], retention_hours=RETENTION_HOURS):
        while True:
            outcome = run_once(spark, options, reporter, _now_ms())
            if stop.wait(options.trigger_seconds):
                return outcome


def run_once(spark: "SparkSession", options: DeadLettersOptions, reporter: Reporter, now_ms: int) -> PipelineOutcome:
    """``now_ms`` is the time that ages are counted from."""
    cluster = find_dead_letters(options)
    table = LakeTable.ensure(options.table, COLUMNS, identity={"kind": KIND})
    ranges = lacking(cluster, table)
    reporter.step(f"reading {ranges.size:,} new letters of {len(cluster.topic_ids):,} dead-letter topics")
    added = take(spark, options, cluster, table, ranges)
    reporter.progress(added, added, "letters")
    reporter.step("counting what waits")
    report = report_of(spark, options, cluster, now_ms)
    write_page(Path(options.page), dead_letters_page(report, hides_values=options.hide_values))
    return outcome_of(report, added, ranges.lost, options.page)


def find_dead_letters(options: DeadLettersOptions) -> DeadLetterTopics:
    """Raises UnknownTopic when a named topic does not exist."""
    with FetchClient(options.bootstrap, settings=options.settings) as client:
        found = client.topics(_TOPICS)
        wanted = client.topics(options.topic) if options.topic else {}
        topics = wanted or {name: info for name, info in found.items() if is_dead_letter_topic(name)}
        partitions = [TopicPartition(name, number) for name, info in topics.items() for number in range(info.partitions)]
        # Look up the ends first, so that what retention deletes in between is not reported as lost.
        ends = client.offsets(partitions, "latest") if partitions else {}
        starts = client.offsets(partitions, "earliest") if partitions else {}
    ids = {name: id_text(info.topic_id) for name, info in sorted(topics.items())}
    return DeadLetterTopics(ids, starts, ends, tuple(name for name in map(ledger_topic, ids) if name in found))


def lacking(cluster: DeadLetterTopics, table: LakeTable) -> UnreadRanges:
    starts, ends, lost = {}, {}, 0
    for partition, end in cluster.ends.items():
        position = table.position(position_name(partition, cluster.topic_ids))
        log_start = cluster.starts.get(partition, 0)
        lost += max(0, log_start - position) if position else 0
        if max(position, log_start) < end:
            starts[partition], ends[partition] = max(position, log_start), end
    return UnreadRanges(starts, ends, lost)


def position_name(partition: TopicPartition, topic_ids: Mapping[str, str]) -> str:
    return f"{partition.topic}/{topic_ids[partition.topic]}/{partition.partition}"


def take(
    spark: "SparkSession", options: DeadLettersOptions, cluster: DeadLetterTopics, table: LakeTable, ranges: UnreadRanges
) -> int:
    """Copy the letters of these ranges into the table. Returns how many they were (fewer than offsets: some are transaction
    markers)."""
    if not ranges.size:
        return 0
    given = {
        **options.connection,
        "assign": json.dumps(_by_topic({partition: partition.partition for partition in ranges.ends})),
        "startingOffsets": json.dumps(_offsets(ranges.starts)),
        "endingOffsets": json.dumps(_offsets(ranges.ends)),
        "includeHeaders": "true",
        "failOnDataLoss": "false",
    }
    messages = spark.read.format("tidelog").options(**given).load()
    rows = letters(messages.coalesce(max(1, ranges.size // ROWS_PER_FILE_MIN)), cluster.topic_ids)
    positions = {position_name(partition, cluster.topic_ids): end for partition, end in ranges.ends.items()}
    added = append_frame(rows, table, positions).rows
    merge_after_commit(table.place)
    return added


def report_of(spark: "SparkSession", options: DeadLettersOptions, cluster: DeadLetterTopics, now_ms: int) -> DeadLetterReport:
    found = LakeTable.open(options.table, kind=KIND).frame(spark)
    if options.topic:
        found = found.where(found["topic"].isin(*cluster.topic_ids))
    starts = [
        LogStart(partition.topic, cluster.topic_ids[partition.topic], partition.partition, start)
        for partition, start in cluster.starts.items()
    ]
    counted = count(with_status(found, _marks(spark, options, cluster.ledgers), starts, spark), top=options.top, now_ms=now_ms)
    return make_report(
        counted,
        tuple(cluster.topic_ids),
        options.bootstrap,
        now_ms=now_ms,
        quiet_ms=int(options.quiet_minutes * 60_000),
    )


def _marks(spark: "SparkSession", options: DeadLettersOptions, ledgers: Sequence[str]) -> "DataFrame | None":
    if not ledgers:
        return None
    given = {**options.connection, "subscribe": ",".join(ledgers), "failOnDataLoss": "false"}
    return spark.read.format("tidelog").options(**given).load()


def write_page(path: Path, content: str) -> None:
    """Write the page as a whole or not at all: a reader who has it open never sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
                out.write(content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise PipelineFailed(f"--page {path} cannot be written: {error.strerror or error}") from error


def outcome_of(report: DeadLetterReport, added: int, lost: int, page: str) -> PipelineOutcome:
    totals = report.totals
    figures: dict[str, int | float | str] = {
        "new letters": added,
        "waiting": totals.waiting,
        "different errors": totals.errors,
        "worth a replay": report.worth_a_replay,
        "replayed": totals.replayed,
        "discarded": totals.discarded,
        "no longer in their topic": totals.gone,
        "without a story": totals.foreign,
    }
    if report.unjudged:
        figures["errors not judged"] = f"{report.unjudged:,}, beyond the --top {len(report.errors):,}"
    if report.oldest is not None:
        figures["oldest"] = f"{age(report.made_ms - report.oldest.failed_ms)} ({report.oldest.topic})"
    if lost:
        figures["lost before they were read"] = lost
    figures["page"] = page
    what = f"{totals.waiting:,} dead letters wait" if totals.waiting != 1 else "one dead letter waits"
    topics = f"{len(report.topics):,} topic{'' if len(report.topics) == 1 else 's'}"
    worth = f"{'at least ' if report.unjudged else ''}{report.worth_a_replay:,} worth a replay"
    return PipelineOutcome(f"{what} in {topics}, {worth}: open {page}", figures)


def _offsets(found: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    offsets: dict[str, dict[str, int]] = {}
    for partition, offset in found.items():
        offsets.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return offsets


def _by_topic(found: Mapping[TopicPartition, int]) -> dict[str, list[int]]:
    assigned: dict[str, list[int]] = {}
    for partition, number in found.items():
        assigned.setdefault(partition.topic, []).append(number)
    return assigned


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
