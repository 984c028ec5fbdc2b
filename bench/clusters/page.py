"""The tables of clusters in docs/BENCHMARKS.md. The page itself is the store: a run replaces the cells that it has measured.

A row belongs to a line of an experiment and is found by its first cell. Each row says when it was measured, and with how much
other work on the machine: the load average before its experiment began. Rows that nobody has measured say so.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.beside.document import PAGE, figure_text, markdown_table, replace_part
from bench.clusters.experiment import Experiment, Line
from bench.measure import Figure, Row

PART = "clusters"
NOT_MEASURED = "not measured yet"
RATIO, TARGET, VERDICT, MEASURED = "ratio", "target", "", "measured"
VALUE_COLUMNS = ("Tidelog", "Tidelog, compiled", "Apache Kafka")
OURS, COMPILED, THEIRS = VALUE_COLUMNS
HEADINGS = ("what", *VALUE_COLUMNS, RATIO, TARGET, VERDICT, MEASURED)

Rows = dict[str, dict[str, str]]
"""For each line of an experiment, its cells by heading."""


@dataclass(slots=True)
class Found:
    """The figures of one experiment by column, and the circumstances."""

    load_before: float
    circumstances: list[str]
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def measured(self) -> str:
        load = f"load {self.load_before:.1f} before, {os.getloadavg()[0]:.1f} at the end"
        rounds = max((len(values) for found in self.values.values() for values in found.values()), default=0)
        repeated = [f"{rounds} rounds"] if rounds > 1 else []
        return "; ".join([f"{datetime.now(UTC):%Y-%m-%d}", load, *repeated, *self.circumstances, *self.notes])


def updated(rows: Rows, lines: Sequence[Line], found: Found) -> Rows:
    """The rows with what was found in their place. Cells of clusters that were not measured now stay."""
    rows = {what: dict(cells) for what, cells in rows.items()}
    for line in lines:
        figures = {column: Figure.of(values[line.what]) for column, values in found.values.items() if line.what in values}
        if not figures:
            continue
        cells = rows.setdefault(line.what, {})
        for column, figure in figures.items():
            # Of a percentage, what is missing to a hundred counts.
            cells[column] = f"{figure.value:.6g} %" if line.unit == "%" else figure_text(figure, line.unit)
        cells[MEASURED] = found.measured()
        if OURS in figures:
            cells.update(_judged(line, figures))
    return rows


def _judged(line: Line, figures: Mapping[str, Figure]) -> dict[str, str]:
    ours, theirs = figures[OURS], figures.get(THEIRS)
    ratio = Figure(ours.value / theirs.value, 0.0) if theirs is not None and theirs.value else None
    target = line.target if ratio is not None or line.judges == "ours" else None
    row = Row(line.what, ours, line.unit, theirs, ratio, target, line.judges)
    return {RATIO: f"{ratio.value:.2f}" if ratio is not None else "", VERDICT: row.verdict if row.target is not None else ""}


def target_text(line: Line) -> str:
    if line.target is None:
        return ""
    return f"{line.target.bound} {line.target.value:g} {'x' if line.judges == 'ratio' else line.unit}".strip()


def tables(experiments: Sequence[Experiment], rows: Rows) -> str:
    parts = []
    for section in dict.fromkeys(experiment.section for experiment in experiments):
        lines = [line for experiment in experiments if experiment.section == section for line in experiment.lines]
        body = [_cells(line, rows.get(line.what, {})) for line in lines]
        parts.append(f"**{section}**\n\n{markdown_table(HEADINGS, body)}")
    return "\n\n".join(parts)


def _cells(line: Line, cells: Mapping[str, str]) -> list[str]:
    fixed = {**cells, HEADINGS[0]: line.what, TARGET: target_text(line)}
    return [fixed.get(heading, NOT_MEASURED if heading == MEASURED else "") for heading in HEADINGS]


def parse_rows(text: str) -> Rows:
    rows: Rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == len(HEADINGS) and cells[0] != HEADINGS[0] and not cells[0].startswith("---"):
            rows[cells[0]] = {heading: cell for heading, cell in zip(HEADINGS[1:], cells[1:], strict=True) if cell}
    return rows


def write(experiments: Sequence[Experiment], lines: Sequence[Line], found: Found, page: Path = PAGE) -> None:
    _, _, rest = page.read_text().partition(f"<!-- {PART}: begin -->")
    rows = parse_rows(rest.partition(f"<!-- {PART}: end -->")[0])
    replace_part(PART, tables(experiments, updated(rows, lines, found)), page)
