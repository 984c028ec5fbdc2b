"""Checks that an archive holds exactly what its topic held. librdkafka reads the topic, not the fetcher that filled the table.

The audit compares the offsets from the log's start to the table's position: first sums by portion, then rows where the sums
differ (``rows``). Memory stays small: Spark joins, and the driver holds the sums and the first findings.

Offsets lie on a grid: portion ``n`` of a partition has those from ``n * size`` on. A sample is a choice of portions made by a
seed: the same seed over the same bounds chooses the same portions.

These are not differences: offsets taken by transaction markers and aborted messages (nobody reads them), rows that retention or
compaction removed from the topic after they were archived, and rows that arrived after the archive's last run.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.errors import TopicRecreated
from tidelog.spark.pipelines.audit import rows
from tidelog.spark.pipelines.audit.report import COLLECTED_MAX, AuditComparison, AuditFinding, document, outcome
from tidelog.spark.pipelines.audit.rows import FINDINGS, GAP, differences, with_meaning
from tidelog.spark.pipelines.offset_ranges import OffsetRange, bridged, clipped, frame_of, joined, parse_ranges, total_size
from tidelog.spark.pipelines.options import ClusterOptions, flag
from tidelog.spark.pipelines.pipeline import PipelineFailed, PipelineOutcome, Reporter
from tidelog.spark.pipelines.topics import TopicSnapshot, id_text, librdkafka_source, topic_rows, topic_snapshot
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.table_sink import position_name

SUMMARY = "Compare an archive with its topic, row by row: gaps, duplicates, changed and foreign rows by partition and offset."
EXAMPLE = "tidelog pipeline run audit --table lake/orders --report audit.json"
KIND = "archive"
# Messages since the archive's last run are counted by reading them, up to this many; beyond, only offsets are reported.
LATER_OFFSETS_MAX = 1_000_000
# The topic is read in at most this many ranges; if there are more, some gaps between them are read as well.
RANGES_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class AuditOptions(ClusterOptions):
    table: str = flag("The directory of the archive table.", "DIRECTORY")
    topic: str | None = flag("Its topic; the table knows it, and any other is refused.", "NAME", default=None)
    offsets: tuple[str, ...] = flag("Only these: PARTITION:FROM-TO, TO not included; repeatable.", "RANGE", default=())
    sample: float | None = flag("Compare this share of the offsets, such as 0.01.", "FRACTION", default=None)
    whole: bool = flag("Compare all offsets, however many there are.", default=False)
    seed: int | None = flag("Which sample; by default the table's version.", "NUMBER", default=None)
    report: str | None = flag("Write the whole result as JSON.", "FILE", default=None)

    def __post_init__(self) -> None:
        if not self.table.strip():
            raise InvalidArgument("--table is missing: the directory of an archive")
        if self.sample is not None and not 0 < self.sample <= 1:
            raise InvalidArgument(f"--sample is a share from 0 to 1, say 0.01: not {self.sample:g}")
        if self.sample is not None and self.whole:
            raise InvalidArgument("--sample and --whole: give one of them")
        parse_ranges("--offsets", self.offsets)
        super().__post_init__()


OPTIONS = AuditOptions


class AuditScope(NamedTuple):
    """The scope of a comparison: these ranges within these bounds, in portions of this size."""

    facts: TopicSnapshot
    bounds: dict[int, tuple[int, int]]
    """The start of the log and the end of the comparison, for each partition."""
    ranges: tuple[OffsetRange, ...]
    size: int
    fraction: float
    is_whole: bool
    """Whether nothing is left out: then rows of the table that lie nowhere in the topic are searched as well."""
    later: tuple[OffsetRange, ...]
    """The offsets that the table has not reached."""
    lost_offsets: int
    """The number of offsets that retention deleted before the archive reached them."""

    @property
    def counts_later(self) -> bool:
        return self.is_whole and total_size(self.later) <= LATER_OFFSETS_MAX


def run(spark: SparkSession, options: AuditOptions, reporter: Reporter) -> PipelineOutcome:
    table = LakeTable.open(options.table, kind=KIND)
    if options.topic is not None:
        table.check_identity({"topic": options.topic})
    topic = table.identity["topic"]
    source = librdkafka_source(options, topic)
    reporter.step(f"asking for {topic}")
    facts = topic_snapshot(source)
    _check_topic_id(table, facts)
    positions = {number: table.position(position_name(topic, number)) for number in facts.ends}
    seed = table.version if options.seed is None else options.seed
    scope = scope_of(facts, positions, options, seed)
    audit = Audit(spark, source, table, scope)
    reporter.step(f"comparing {total_size(scope.ranges):,} offsets of {topic}, {len(facts.ends)} partitions")
    cells = audit.compared_cells()
    differing = [cell for cell in cells if cell.differs]
    counts: dict[str, int] = {}
    findings: list[AuditFinding] = []
    if differing:
        reporter.step(f"{len(differing):,} of {len(cells):,} portions differ: looking at their rows")
        counts, findings = audit.findings(differing)
    # Expired rows in portions that were compared row by row are in ``counts`` already.
    counts["expired"] = counts.get("expired", 0) + sum(cell.table_rows for cell in cells if cell.place == rows.EXPIRED)
    compared = _compared(table, scope, cells, seed, tuple(options.offsets))
    if options.report is not None:
        _write(Path(options.report), document(compared, counts, findings))
    return outcome(compared, counts, findings)


def scope_of(facts: TopicSnapshot, positions: dict[int, int], options: AuditOptions, seed: int) -> AuditScope:
    bounds = {
        number: (start, max(start, min(positions[number], facts.ends[number]))) for number, start in facts.log_starts.items()
    }
    every = clipped(bounds, parse_ranges("--offsets", options.offsets))
    if options.offsets and not total_size(every):
        raise InvalidArgument(f"--offsets {', '.join(options.offsets)}: the archive has not reached any of them")
    fraction = fraction_of(every, options.sample, options.whole)
    size = portion_size(total_size(every))
    later = clipped({number: (max(positions[number], facts.log_starts[number]), end) for number, end in facts.ends.items()})
    lost = sum(max(0, facts.log_starts[number] - position) for number, position in positions.items() if position)
    chosen = every if fraction == 1 else sampled(every, size, fraction, seed)
    return AuditScope(facts, bounds, chosen, size, fraction, fraction == 1 and not options.offsets, later, lost)


def _check_topic_id(table: LakeTable, facts: TopicSnapshot) -> None:
    known, found = table.identity.get("topic_id"), id_text(facts.topic_id)
    if known is not None and any(facts.topic_id) and known != found:
        raise TopicRecreated(
            f"{facts.topic} was deleted and created again since {table.place} was made: its id is {found}, and was {known}. "
            "There is nothing left to compare the table with"
        )


class Audit:
    """The frames of one run."""

    def __init__(self, spark: SparkSession, source: Mapping[str, str], table: LakeTable, scope: AuditScope) -> None:
        self._spark = spark
        self._source = source
        self._scope = scope
        self._table = table
        self._bounds = self._bounds_frame(scope.facts)
        cut = [
            (each.partition, each.start // scope.size, each.start, each.end - 1) for each in portions(scope.ranges, scope.size)
        ]
        columns = "partition int, portion bigint, first bigint, last bigint"
        self._ranges = None if scope.is_whole else spark.createDataFrame(cut, columns)

    def compared_cells(self) -> list[Any]:
        scope = self._scope
        later = scope.later if scope.counts_later else ()
        ranges = bridged((*scope.ranges, *later), RANGES_MAX)
        topic = self._restricted(topic_rows(self._spark, self._source, scope.facts.topic, ranges))
        topic_sums = rows.sums(rows.placed_topic(topic, self._bounds, scope.size), scope.size)
        return rows.rows_of(rows.compared(topic_sums, rows.sums(self._table_rows(), scope.size)))

    def findings(self, cells: Sequence[Any]) -> tuple[dict[str, int], list[AuditFinding]]:
        """Count all findings, and return the first of them individually."""
        scope = self._scope
        frame = self._spark.createDataFrame([(*cell[:3],) for cell in cells], "partition int, portion bigint, place string")
        wanted = [
            OffsetRange(cell.partition, cell.portion * scope.size, (cell.portion + 1) * scope.size)
            for cell in cells
            if cell.place == rows.INSIDE
        ]
        ranges = bridged(_within(wanted, scope.ranges), RANGES_MAX)
        read = self._restricted(topic_rows(self._spark, self._source, scope.facts.topic, ranges))
        topic = rows.placed_topic(read, self._bounds, scope.size)
        table = rows.in_cells(self._table_rows(), frame)
        found = differences(rows.in_cells(topic, frame), table, scope.facts.topic).persist()
        try:
            found.count()
            # This runs when everything is read: rows that retention deleted in the meantime are not foreign.
            now = topic_snapshot(self._source)
            told = with_meaning(found, self._bounds_frame(now), scope.facts.is_compacted)
            counts = {row.kind: row["count"] for row in told.groupBy("kind").count().collect()}
            named = told.where(told.kind.isin(*FINDINGS))
            first = named.orderBy("partition", "offset", "kind").limit(COLLECTED_MAX).select(*AuditFinding._fields).collect()
            places = {tuple(row) for row in named.selectExpr("partition", f"offset div {scope.size}").distinct().collect()}
            taken = taken_away(cells, places, now.log_starts, scope.size)
            counts[GAP] = counts.get(GAP, 0) + len(taken)
            return counts, [*taken, *(AuditFinding(*row) for row in first)]
        finally:
            found.unpersist()

    def _table_rows(self) -> DataFrame:
        scope = self._scope
        table = self._table.frame(self._spark) if scope.is_whole else frame_of(self._spark, self._table, scope.ranges)
        return rows.placed_table(self._restricted(table), scope.facts.topic, self._bounds, scope.size)

    def _restricted(self, frame: DataFrame) -> DataFrame:
        return frame if self._ranges is None else rows.chosen(frame, self._ranges, self._scope.size)

    def _bounds_frame(self, facts: TopicSnapshot) -> DataFrame:
        bounds = [(number, facts.log_starts.get(number, start), end) for number, (start, end) in self._scope.bounds.items()]
        return self._spark.createDataFrame(bounds, "partition int, log_start bigint, end bigint")


def taken_away(cells: Sequence[Any], named: Set[tuple[Any, ...]], log_starts: Mapping[int, int], size: int) -> list[AuditFinding]:
    """The portions that differed and no longer do, because retention has begun to delete their rows: from the topic alone, as it
    had no fewer rows than the table. It is no longer known what differed, but it must be reported that something did."""
    detail = f"within {size:,} offsets, told by sums: retention took the rows meanwhile"
    return [
        AuditFinding(GAP, cell.partition, cell.portion * size, detail)
        for cell in cells
        if cell.place == rows.INSIDE
        and cell.topic_rows >= cell.table_rows
        and cell.portion * size < log_starts.get(cell.partition, 0)
        and (cell.partition, cell.portion) not in named
    ]


def _within(ranges: Sequence[OffsetRange], outer: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the parts that both have."""
    by_partition: dict[int, list[OffsetRange]] = {}
    for each in outer:
        by_partition.setdefault(each.partition, []).append(each)
    return [
        OffsetRange(each.partition, max(each.start, limit.start), min(each.end, limit.end))
        for each in ranges
        for limit in by_partition.get(each.partition, ())
        if limit.start < each.end and each.start < limit.end
    ]


def _compared(table: LakeTable, scope: AuditScope, cells: Sequence[Any], seed: int, ranges: tuple[str, ...]) -> AuditComparison:
    inside = [cell for cell in cells if cell.place == rows.INSIDE]
    return AuditComparison(
        topic=scope.facts.topic,
        table=str(table.place),
        version=table.version,
        offsets=total_size(scope.ranges),
        topic_rows=sum(cell.topic_rows for cell in inside),
        table_rows=sum(cell.table_rows for cell in cells),
        portions=len(inside),
        portions_differing=sum(cell.differs for cell in cells),
        fraction=scope.fraction,
        seed=seed,
        later_rows=sum(cell.topic_rows for cell in cells if cell.place == rows.LATER) if scope.counts_later else None,
        later_offsets=total_size(scope.later),
        lost_offsets=scope.lost_offsets,
        ranges=ranges,
    )


def _write(path: Path, found: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(found, indent=2) + "\n")
    except OSError as error:
        raise PipelineFailed(f"--report {path} cannot be written: {error.strerror or error}") from error


# -- portions and samples -----------------------------------------------------------------------------------------------------


PORTION_OFFSETS = 10_000
# The sums of a portion have a bitmap of its offsets, and Spark's has this many bits.
PORTION_OFFSETS_MAX = 32_768
# The driver collects their sums: some tens of megabytes at most.
PORTIONS_WANTED_MAX = 100_000
WHOLE_OFFSETS_MAX = 10_000_000
"""The number of offsets that are compared by default; beyond that a sample is taken, unless --whole is given."""


def portion_size(offsets: int) -> int:
    return min(PORTION_OFFSETS_MAX, max(PORTION_OFFSETS, offsets // PORTIONS_WANTED_MAX))


def portions(ranges: Sequence[OffsetRange], size: int) -> Iterator[OffsetRange]:
    """Cut the ranges at the lines of the grid."""
    for each in ranges:
        start = each.start
        while start < each.end:
            end = min(each.end, (start // size + 1) * size)
            yield OffsetRange(each.partition, start, end)
            start = end


def fraction_of(ranges: Sequence[OffsetRange], sample: float | None, is_whole: bool) -> float:
    """How much of them is compared. By default this is as much as can be compared in minutes."""
    if is_whole:
        return 1.0
    return sample if sample is not None else min(1.0, WHOLE_OFFSETS_MAX / max(1, total_size(ranges)))


def sampled(ranges: Sequence[OffsetRange], size: int, fraction: float, seed: int) -> tuple[OffsetRange, ...]:
    """Choose a share of each partition's portions, at least one of each."""
    by_partition: dict[int, list[OffsetRange]] = {}
    for each in portions(ranges, size):
        by_partition.setdefault(each.partition, []).append(each)
    chosen: list[OffsetRange] = []
    for partition, cut in by_partition.items():
        # Seeded per partition, so that the choice in one does not depend on the length of another.
        dice = random.Random(f"{seed}/{partition}")  # noqa: S311 - a sample is no secret
        chosen += dice.sample(cut, min(len(cut), max(1, round(fraction * len(cut)))))
    return joined(chosen)
