"""Charts as SVG without a script: bars by name, columns over time, and the small one beside a row of a table.

Only shapes are SVG, stretched to the width that there is; words and numbers are HTML beside them, so that they have the same
size on a phone and on a wall. Colours are the page's (``var(--...)``), light and dark alike. Each chart says in words what it
shows, for those who do not see it, and each shape has its number as a tooltip.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.spark.pipelines.html_elements import Html, element

# Of a column's place, what stays empty beside it.
_GAP = 0.18
_HEIGHT = 100
# An odd number: where there is room for every second one only, the last one is among them.
_LABELS_MAX = 5


class Bar(NamedTuple):
    label: str
    value: int
    note: str = ""
    """In small letters after the label."""


class Column(NamedTuple):
    """One step in time: ``lower`` stands on the axis, ``upper`` on top of it."""

    label: str
    """Of the axis: short."""
    title: str
    """Of the tooltip: whole."""
    lower: int
    upper: int = 0


def bar_chart(title: str, bars: Sequence[Bar], *, empty: str = "nothing") -> Html:
    """Bars by name, the greatest first as they were given; the length is the share of the greatest."""
    greatest = max((bar.value for bar in bars), default=0)
    rows = [
        element(
            "li",
            element("span", bar.label, element("small", bar.note) if bar.note else None, class_="name"),
            element("span", f"{bar.value:,}", class_="number"),
            _bar(bar.value, greatest),
        )
        for bar in bars
    ]
    content = element("ol", *rows, class_="bars") if rows else element("p", empty, class_="empty")
    return element("figure", element("figcaption", title), content, class_="chart")


def column_chart(title: str, columns: Sequence[Column], names: tuple[str, str], *, empty: str = "nothing") -> Html:
    """Columns over time, in two parts by ``names``: of the lower and of the upper one."""
    caption = element("figcaption", title)
    if not columns:
        return element("figure", caption, element("p", empty, class_="empty"), class_="chart wide")
    top = rounded_up(max(column.lower + column.upper for column in columns))
    legend = element(
        "p",
        element("span", names[0], class_="key lower"),
        element("span", names[1], class_="key upper") if any(column.upper for column in columns) else None,
        class_="legend",
    )
    plot = element(
        "div",
        element("div", *(element("span", label) for label in scale(top)), class_="scale", aria_hidden="true"),
        _columns(columns, top, _in_words(title, columns, names)),
        class_="plot",
    )
    axis = element("div", *(element("span", label) for label in _axis(columns)), class_="axis", aria_hidden="true")
    return element("figure", caption, legend, plot, axis, class_="chart wide")


def sparkline(counts: Sequence[int], description: str) -> Html:
    """Beside a row: the shape of it over time."""
    top = max(counts, default=0)
    shapes = [_column(at, 0, count, top, "lower") for at, count in enumerate(counts)]
    return _svg(shapes, max(len(counts), 1), "sparkline", description)


def rounded_up(greatest: int) -> int:
    """The end of a scale: 1, 2 or 5 and zeros, or twice that, so that its half is a whole number too."""
    if greatest <= 2:
        return 2
    power = 10 ** (len(str(greatest)) - 1)
    return next(int(step * power) for step in (1, 2, 4, 5, 6, 8, 10) if step * power >= greatest)


def scale(top: int) -> tuple[str, str, str]:
    """From above."""
    return f"{top:,}", f"{top / 2:,.0f}" if top % 2 == 0 else f"{top / 2:,.1f}", "0"


def _bar(value: int, greatest: int) -> Html:
    # What is there is seen, however small.
    width = 0.0 if not value else max(value * 100 / greatest, 0.6)
    track = element("rect", class_="track", width=100, height=8)
    shape = element("rect", class_="lower", width=_number(width), height=8)
    return element(
        "svg", track, shape, class_="bar", viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true", focusable="false"
    )


def _columns(columns: Sequence[Column], top: int, description: str) -> Html:
    width = len(columns)
    lines = [element("line", class_="grid", x1=0, x2=width, y1=_number(y), y2=_number(y)) for y in (0, _HEIGHT / 2, _HEIGHT)]
    shapes = [
        element(
            "g",
            element("title", column.title),
            _column(at, 0, column.lower, top, "lower"),
            _column(at, column.lower, column.upper, top, "upper"),
        )
        for at, column in enumerate(columns)
        if column.lower or column.upper
    ]
    return _svg([*lines, *shapes], width, "columns", description)


def _column(at: int, start: int, count: int, top: int, kind: str) -> Html | None:
    if not count:
        return None
    height = max(count * _HEIGHT / top, 1.0)
    bottom = start * _HEIGHT / top
    return element(
        "rect",
        class_=kind,
        x=_number(at + _GAP / 2),
        y=_number(max(_HEIGHT - bottom - height, 0)),
        width=_number(1 - _GAP),
        height=_number(height),
    )


def _svg(shapes: Sequence[str | None], width: int, kind: str, description: str) -> Html:
    return element(
        "svg",
        element("title", description),
        *shapes,
        class_=kind,
        viewBox=f"0 0 {width} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
    )


def _axis(columns: Sequence[Column]) -> Sequence[str]:
    """Evenly spread, the first and the last among them."""
    if len(columns) <= _LABELS_MAX:
        return [column.label for column in columns]
    places = [round(step * (len(columns) - 1) / (_LABELS_MAX - 1)) for step in range(_LABELS_MAX)]
    return [columns[place].label for place in places]


def _in_words(title: str, columns: Sequence[Column], names: tuple[str, str]) -> str:
    lower, upper = sum(column.lower for column in columns), sum(column.upper for column in columns)
    peak = max(columns, key=lambda column: column.lower + column.upper)
    both = f"{lower:,} {names[0]}" + (f", {upper:,} {names[1]}" if upper else "")
    return f"{title}: {both}, from {columns[0].label} to {columns[-1].label}. Most: {peak.title}"


def _number(value: float) -> str:
    """Short, and the same on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
