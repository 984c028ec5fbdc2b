"""The report on dead letters as a page that is one file: ``templates/page.html``, its charts and its style, filled by Jinja2.

What a page shows (keys, values, messages of exceptions) may come from anyone. The templates escape everything, and ``visible``
replaces characters that a reader would not see, or that would reverse the line (control characters, direction marks, halves of
surrogate pairs), with a visible sign. Long texts are cut to what a reader reads. The same report gives the same bytes.
"""

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tidelog.spark.pipelines.deadletters.report import (
    DAY_MS,
    FIX,
    FOREIGN,
    REPLAY,
    WAIT,
    ChartSpan,
    DeadLetterReport,
    ExampleLetter,
    JudgedError,
    NamedCount,
    age,
    span_of,
)

NAMES_SHOWN_MAX = 8
LABEL_CHARACTERS_MAX = 80
NOTE_CHARACTERS_MAX = 60
NAME_CHARACTERS_MAX = 300
MESSAGE_CHARACTERS_MAX = 400
VERSIONS_CHARACTERS_MAX = 120
TEXT_CHARACTERS_MAX = 6000
HEX_BYTES_MAX = 256
PILLS = {REPLAY: "Worth a replay", WAIT: "Wait", FIX: "Mend first", FOREIGN: "Not ours"}

_CUT = "…"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Unicode has pictures of the first 32 control characters, in their order.
_CONTROL_PICTURES = 0x2400
_DELETE, _DELETE_PICTURE = 0x7F, "\N{SYMBOL FOR DELETE}"
_KEPT = frozenset("\n\t")
# Control, format (among them those that turn the direction), surrogate, private, line and paragraph separators.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))


def dead_letters_page(report: DeadLetterReport, *, hides_values: bool = False) -> str:
    """``hides_values`` leaves keys, values and headers of messages out, for readers who may not see them."""
    span = span_of(report.hours, report.made_ms)
    template = environment().get_template("page.html")
    return template.render(
        report=report, totals=report.totals, span=span, columns=_columns(report, span), hides_values=hides_values
    )


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("tidelog.spark.pipelines.deadletters"),
        autoescape=True,
        finalize=_finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"age": age, "count": lambda value: f"{value:,}", "cut": cut, "moment": moment, "number": _number}
    functions = (axis, bar_width, class_name, column_shape, error_bars, example_facts, example_parts, in_words, name_bars)
    limits = {name: value for name, value in globals().items() if name.endswith("_CHARACTERS_MAX")}
    made.globals |= {function.__name__: function for function in functions}
    made.globals |= {"DAY_MS": DAY_MS, "HEIGHT": HEIGHT, "PILLS": PILLS, "scale": scale, "scale_top": scale_top, **limits}
    return made


def _finalized(value: Any) -> Any:
    """Escape whatever a template shows that is not its own markup."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


# -- texts --------------------------------------------------------------------------------------------------------------------


def visible(content: str) -> str:
    """Each invisible character is replaced by a sign. Line ends and tabs stay."""
    if content.isprintable():
        return content
    return "".join(
        character if character in _KEPT or unicodedata.category(character) not in _UNSEEN else _sign_of(character)
        for character in content.replace("\r\n", "\n")
    )


def _sign_of(character: str) -> str:
    code = ord(character)
    if code < ord(" "):
        return chr(_CONTROL_PICTURES + code)
    return _DELETE_PICTURE if code == _DELETE else _REPLACEMENT


def cut(content: str, characters_max: int) -> str:
    return content if len(content) <= characters_max else content[: characters_max - 1] + _CUT


def moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def class_name(judged: JudgedError) -> str:
    return judged.error.facts.exception_class or "(no story)"


def example_facts(example: ExampleLetter) -> list[str]:
    facts = [
        f"at {example.partition}:{example.offset}",
        f"from {cut(example.origin, NAME_CHARACTERS_MAX)}" if example.origin else "",
        f"{example.attempts:,} attempts" if example.attempts is not None else "",
        moment(example.timestamp_ms) if example.timestamp_ms is not None else "",
    ]
    return [fact for fact in facts if fact]


def example_parts(example: ExampleLetter, hides_values: bool) -> list[tuple[str, str]]:
    parts = [("Exception", example.message), ("Traceback", example.traceback)]
    if hides_values:
        return parts
    headers = "\n".join(f"{name}: {shown_bytes(value)}" for name, value in example.headers)
    value = shown_bytes(example.value, example.value_bytes)
    return [*parts, ("Key", shown_bytes(example.key)), ("Value", value), ("Headers", headers)]


def shown_bytes(content: bytes | None, whole_bytes: int | None = None) -> str:
    """The bytes as text if they are UTF-8, else in hexadecimal. The size is added if something was cut."""
    if content is None:
        return "(null)"
    if not content:
        return "(empty)"
    whole = len(content) if whole_bytes is None else whole_bytes
    try:
        # A character that was cut in half does not make the content binary.
        shown = content.decode("utf-8") if whole == len(content) else content[: _last_boundary(content)].decode("utf-8")
        is_cut = whole > len(content) or len(shown) > TEXT_CHARACTERS_MAX
        return cut(shown, TEXT_CHARACTERS_MAX) + (f"\n({whole:,} bytes in all)" if is_cut else "")
    except UnicodeDecodeError:
        shown = content[:HEX_BYTES_MAX].hex(" ")
        return f"{shown}{' …' if whole > HEX_BYTES_MAX else ''}\n({whole:,} bytes, not UTF-8)"


def _last_boundary(content: bytes) -> int:
    """Where the last character begins, since the cut may have split it."""
    end = len(content)
    while end > max(0, len(content) - 4):
        end -= 1
        if content[end] & 0xC0 != 0x80:
            return end
    return len(content)


# -- charts -------------------------------------------------------------------------------------------------------------------

# The share of a column's place that stays empty next to it.
GAP = 0.18
HEIGHT = 100
# Everything that exists stays visible, however small: in percent of a bar's width, and of a column's height.
BAR_WIDTH_MIN = 0.6
COLUMN_HEIGHT_MIN = 1.0
# This is an odd number: if there is room only for every second label, the last one is still shown.
LABELS_MAX = 5


class ChartBar(NamedTuple):
    label: str
    value: int
    note: str = ""
    """Shown in small letters after the label."""


class ChartColumn(NamedTuple):
    """One step in time: ``lower`` stands on the axis, ``upper`` on top of it."""

    label: str
    """Short, for the axis."""
    title: str
    """Complete, for the tooltip."""
    lower: int
    upper: int = 0


class ColumnShape(NamedTuple):
    x: float
    y: float
    width: float
    height: float


def error_bars(errors: Sequence[JudgedError]) -> list[ChartBar]:
    return [
        ChartBar(
            cut(class_name(judged), LABEL_CHARACTERS_MAX),
            judged.error.facts.waiting,
            cut(judged.error.message, NOTE_CHARACTERS_MAX),
        )
        for judged in errors[:NAMES_SHOWN_MAX]
    ]


def name_bars(named: Sequence[NamedCount]) -> list[ChartBar]:
    shown = [ChartBar(cut(each.name, LABEL_CHARACTERS_MAX), each.waiting) for each in named[:NAMES_SHOWN_MAX]]
    rest = named[NAMES_SHOWN_MAX:]
    return [*shown, ChartBar(f"{len(rest):,} more", sum(each.waiting for each in rest))] if rest else shown


def _columns(report: DeadLetterReport, span: ChartSpan) -> list[ChartColumn]:
    waiting = span.fold({hour.start_ms: hour.waiting for hour in report.hours})
    settled = span.fold({hour.start_ms: hour.settled for hour in report.hours})
    label, title = ("%b %d", "%Y-%m-%d") if span.step_ms == DAY_MS else ("%b %d %H:00", "%Y-%m-%d %H:00")
    columns = []
    for start_ms, now, done in zip(span.starts, waiting, settled, strict=True):
        start = datetime.fromtimestamp(start_ms // 1000, UTC)
        text = f"{start.strftime(title)}: {now:,} waiting, {done:,} no longer"
        columns.append(ChartColumn(start.strftime(label), text, now, done))
    return columns


def bar_width(value: int, greatest: int) -> float:
    return max(value * 100 / greatest, BAR_WIDTH_MIN) if value else 0.0


def column_shape(at: int, start: int, count: int, top: int) -> ColumnShape:
    height = max(count * HEIGHT / top, COLUMN_HEIGHT_MIN)
    return ColumnShape(at + GAP / 2, max(HEIGHT - start * HEIGHT / top - height, 0), 1 - GAP, height)


def scale_top(columns: Sequence[ChartColumn]) -> int:
    return rounded_up(max(column.lower + column.upper for column in columns))


def rounded_up(greatest: int) -> int:
    """The end of a scale: 1, 2 or 5 and zeros, or twice that, so that its half is a whole number too."""
    if greatest <= 2:
        return 2
    power = 10 ** (len(str(greatest)) - 1)
    return next(int(step * power) for step in (1, 2, 4, 5, 6, 8, 10) if step * power >= greatest)


def scale(top: int) -> tuple[str, str, str]:
    """The labels of the scale, from the top down."""
    return f"{top:,}", f"{top / 2:,.0f}" if top % 2 == 0 else f"{top / 2:,.1f}", "0"


def axis(columns: Sequence[ChartColumn]) -> list[str]:
    """Evenly spaced labels, including the first and the last."""
    if len(columns) <= LABELS_MAX:
        return [column.label for column in columns]
    places = [round(step * (len(columns) - 1) / (LABELS_MAX - 1)) for step in range(LABELS_MAX)]
    return [columns[place].label for place in places]


def in_words(title: str, columns: Sequence[ChartColumn], names: tuple[str, str]) -> str:
    lower, upper = sum(column.lower for column in columns), sum(column.upper for column in columns)
    peak = max(columns, key=lambda column: column.lower + column.upper)
    both = f"{lower:,} {names[0]}" + (f", {upper:,} {names[1]}" if upper else "")
    return f"{title}: {both}, from {columns[0].label} to {columns[-1].label}. Most: {peak.title}"


def _number(value: float) -> str:
    """Format a number briefly, and the same on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
