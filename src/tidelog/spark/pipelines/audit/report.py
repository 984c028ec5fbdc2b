"""The findings of an audit for people and for programs: figures, the first findings by name, and all of it as JSON. Pure.

Adjacent findings of one kind are shown as one, because a lost file would otherwise fill the page.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.spark.pipelines.audit.rows import COMPACTED, EXPIRED, FINDINGS
from tidelog.spark.pipelines.pipeline import PipelineOutcome

SHOWN_MAX = 100
COLLECTED_MAX = 10_000
"""The maximum number of findings that are collected individually; all of them are counted."""
DIFFERENT = 3
"""The exit code of an audit that found something."""


class AuditFinding(NamedTuple):
    kind: str
    partition: int | None
    offset: int | None
    detail: str


class FindingRange(NamedTuple):
    """Findings of one kind at offsets that follow each other."""

    kind: str
    partition: int | None
    first: int | None
    last: int | None
    detail: str

    def place(self, topic: str) -> str:
        """orders[3] offset 57, or offsets 57 to 60."""
        name = f"{topic}[{'?' if self.partition is None else self.partition}]"
        if self.first is None or self.last is None:
            return f"{name} offset ?"
        return f"{name} offset {self.first}" if self.first == self.last else f"{name} offsets {self.first} to {self.last}"

    @property
    def text(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class AuditComparison(NamedTuple):
    """The scope and counts of an audit."""

    topic: str
    table: str
    version: int
    offsets: int
    topic_rows: int
    table_rows: int
    portions: int
    portions_differing: int
    fraction: float
    seed: int
    later_rows: int | None
    """The number of rows of the topic that the table has not reached; None when they were not counted."""
    later_offsets: int
    lost_offsets: int
    """The number of offsets that retention deleted before the archive reached them."""
    ranges: tuple[str, ...] = ()
    """The ranges as given; empty means all."""


def finding_ranges(findings: Sequence[AuditFinding]) -> list[FindingRange]:
    found: list[FindingRange] = []
    for each in sorted(findings, key=lambda finding: (finding.kind, finding.detail, *_place(finding.partition, finding.offset))):
        last = found[-1] if found else None
        is_like_last = last is not None and (last.kind, last.partition, last.detail) == (each.kind, each.partition, each.detail)
        if last is not None and is_like_last and _follows(last.last, each.offset):
            found[-1] = last._replace(last=each.offset)
        else:
            found.append(FindingRange(each.kind, each.partition, each.offset, each.offset, each.detail))
    return sorted(found, key=lambda run: (*_place(run.partition, run.first), run.kind))


def _place(partition: int | None, offset: int | None) -> tuple[int, int]:
    return -1 if partition is None else partition, -1 if offset is None else offset


def _follows(last: int | None, offset: int | None) -> bool:
    return last is not None and offset is not None and offset <= last + 1


def outcome(compared: AuditComparison, counts: Mapping[str, int], findings: Sequence[AuditFinding]) -> PipelineOutcome:
    total = sum(counts.get(kind, 0) for kind in FINDINGS)
    figures: dict[str, int | float | str] = {
        "rows of the topic": compared.topic_rows,
        "rows of the table": compared.table_rows,
        "offsets compared": compared.offsets,
        "portions that differ": f"{compared.portions_differing:,} of {compared.portions:,}",
        **{_plural(kind): counts.get(kind, 0) for kind in FINDINGS},
        "expired since": counts.get(EXPIRED, 0),
        "compacted since": counts.get(COMPACTED, 0),
    }
    if compared.later_rows is None:
        figures["offsets not archived yet"] = compared.later_offsets
    else:
        figures["not archived yet"] = compared.later_rows
    if compared.lost_offsets:
        figures["offsets lost before they were archived"] = compared.lost_offsets
    if compared.fraction < 1:
        figures["sample"] = f"{compared.fraction:.4g} (--sample {compared.fraction:.4g} --seed {compared.seed})"
    shown = finding_ranges(findings)
    for run in shown[:SHOWN_MAX]:
        place = run.place(compared.topic)
        figures[place] = f"{figures[place]}; {run.text}" if place in figures else run.text
    if len(shown) > SHOWN_MAX or total > len(findings):
        figures["more findings"] = "not shown; all are counted"
    return PipelineOutcome(_summary(compared, counts, total), figures, DIFFERENT if total else 0)


def _plural(kind: str) -> str:
    return {"gap": "gaps", "duplicate": "duplicates", "changed": "changed rows", "foreign": "foreign rows"}[kind]


def _summary(compared: AuditComparison, counts: Mapping[str, int], total: int) -> str:
    what = f"{compared.table} (version {compared.version})"
    extent = f" in offsets {', '.join(compared.ranges)}" if compared.ranges else ""
    extent += "" if compared.fraction == 1 else f" in a sample of {compared.fraction:.4g}"
    if not total:
        rows = f"{compared.topic_rows:,} rows compared{_left_out(compared)}"
        return f"{what} holds exactly what {compared.topic} holds{extent}: {rows}"
    parts = [
        f"{counts[kind]:,} {_plural(kind).removesuffix('s' if counts[kind] == 1 else '')}"
        for kind in FINDINGS
        if counts.get(kind)
    ]
    return f"{what} differs from {compared.topic}{extent}: {', '.join(parts)}"


def _left_out(compared: AuditComparison) -> str:
    """The offsets that "exactly" does not cover."""
    later, unit = (compared.later_offsets, "offsets") if compared.later_rows is None else (compared.later_rows, "rows")
    parts = [f"; {later:,} {unit} not archived yet"] if later else []
    if compared.lost_offsets:
        parts.append(f"; {compared.lost_offsets:,} offsets lost before they were archived")
    return "".join(parts)


def document(compared: AuditComparison, counts: Mapping[str, int], findings: Sequence[AuditFinding]) -> dict[str, Any]:
    """The document that ``--report`` writes."""
    total = sum(counts.get(kind, 0) for kind in FINDINGS)
    return {
        "is_clean": total == 0,
        **compared._asdict(),
        "counts": {kind: counts.get(kind, 0) for kind in (*FINDINGS, EXPIRED, COMPACTED)},
        "findings": [run._asdict() for run in finding_ranges(findings)],
        "findings_are_all": total == len(findings),
    }
