"""docs/BENCHMARKS.md: each benchmark replaces the part between its two marks, and nothing else of the page."""

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from bench.beside.results import Results
from bench.measure import Figure, Row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "BENCHMARKS.md"
PICTURES = ROOT / "docs" / "benchmarks"


class MarksMissing(Exception):
    pass


def replace_part(name: str, text: str, page: Path = PAGE) -> None:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise MarksMissing(f"{page.name} has no part between {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")


def machine() -> str:
    """One line: what the figures were measured on."""
    processor = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine()
    )
    memory = next((int(line.split()[1]) / 2**20 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0.0)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({processor}), {memory:.0f} GiB, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}, load at the end {os.getloadavg()[0]:.1f}"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def markdown_table(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    heads = list(headings)
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *lines))


def comparison_tables(results: Results, build: str = "") -> str:
    """A table for each durability: medians, spread, ratio, target. Where durability is not the question it has no name. ``build``
    is which of ours it is about."""
    parts = []
    rows = list(results.rows())
    for durability in dict.fromkeys(name for name, _ in rows):
        headings = ["", *results.labels, "ratio", "target", ""]
        lines = [_cells(row, len(results.labels)) for name, row in rows if name == durability]
        table = markdown_table(headings, lines)
        parts.append(f"**{durability.capitalize()}{build}**\n\n{table}" if durability else table)
    return "\n\n".join(parts)


def _cells(row: Row, labels: int) -> list[str]:
    ratio = f"{row.ratio.value:.2f}" if row.ratio is not None else ""
    targets = []
    if row.target is not None:
        targets.append(f"{row.target.bound} {row.target.value:g}" + (f" {row.unit}" if row.judges == "ours" else ""))
    if row.limit is not None:
        targets.append(f"{row.limit.bound} {row.limit.value:g} {row.unit}")
    both = [figure_text(row.ours, row.unit), figure_text(row.raw, row.unit) if row.raw is not None else ""]
    return [row.what, *both[:labels], ratio, " and ".join(targets), row.verdict if targets else ""]


def figure_text(figure: Figure, unit: str) -> str:
    value = figure.value
    number = f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{number} {unit} ±{figure.spread * 100:.0f} %" if figure.spread else f"{number} {unit}"
