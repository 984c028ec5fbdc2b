"""The rows as a table for people, or as JSON for programs."""

import json
from collections.abc import Iterable

from bench.measure import Figure, Row

HEADINGS = ("what", "ours", "", "raw", "", "ratio", "", "target", "")


def format_rows(rows: Iterable[Row]) -> list[str]:
    cells = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = []
    for line in cells:
        first, *others = (
            text.ljust(width) if number == 0 else text.rjust(width)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join((first, *others)).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    target = ""
    if row.target is not None:
        unit = "" if row.judges == "ratio" else f" {row.unit}"
        target = f"{row.target.bound} {row.target.value:g}{unit}"
    return (
        row.what,
        f"{_number(row.ours.value)} {row.unit}",
        _spread(row.ours),
        f"{_number(row.raw.value)} {row.unit}" if row.raw is not None else "",
        _spread(row.raw),
        f"{row.ratio.value:.2f}" if row.ratio is not None else "",
        _spread(row.ratio),
        target,
        row.verdict,
    )


def _spread(figure: Figure | None) -> str:
    return f"±{figure.spread * 100:.0f}%" if figure is not None and figure.spread else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def to_json(rows: Iterable[Row]) -> str:
    return json.dumps([_fields(row) for row in rows], indent=2)


def _fields(row: Row) -> dict[str, object]:
    def value(figure: Figure | None) -> dict[str, float] | None:
        return None if figure is None else {"median": figure.value, "spread": figure.spread}

    return {
        "what": row.what.strip(),
        "unit": row.unit,
        "ours": value(row.ours),
        "raw": value(row.raw),
        "ratio": value(row.ratio),
        "target": None if row.target is None else f"{row.target.bound} {row.target.value:g}",
        "judges": row.judges,
        "verdict": row.verdict,
    }
