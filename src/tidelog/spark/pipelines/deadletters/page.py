"""HTML that is safe by construction: text becomes part of a page only through ``element``, which escapes it.

What a page shows (keys, values, messages of exceptions) was written by anybody. ``Html`` is markup that was made here; everything
else is text: what HTML reads as markup is escaped, and what would not be seen, or would turn the line around (control characters,
direction marks, halves of surrogate pairs), is replaced by a sign that is seen.
"""

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from tidelog.spark.pipelines.deadletters.report import (
    DAY_MS,
    FIX,
    FOREIGN,
    REPLAY,
    WAIT,
    Example,
    JudgedError,
    Named,
    Report,
    Span,
    age,
    span_of,
)

# -- elements -----------------------------------------------------------------------------------------------------------------


Attribute = str | int | float | bool | None

_CUT = "…"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Unicode has pictures of the first 32 control characters, in their order.
_CONTROL_PICTURES = 0x2400
_DELETE, _DELETE_PICTURE = 0x7F, "\N{SYMBOL FOR DELETE}"
_KEPT = frozenset("\n\t")
# Control, format (among them those that turn the direction), surrogate, private, line and paragraph separators.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
_VOID = frozenset(("meta", "br", "rect", "line"))


class Html(str):
    """Markup; made by ``element`` and ``join``, or from a constant of our own."""

    __slots__ = ()


def element(name: str, *children: str | None, **attributes: Attribute) -> Html:
    """``class_`` and the like lose their last underscore, others become dashes; True is an attribute without a value; None and
    False leave it out. Children that are no ``Html`` are text."""
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    if name in _VOID:
        return Html(f"<{name}{written}>" if name in ("meta", "br") else f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    return Html("".join(child if isinstance(child, Html) else text(child) for child in children if child is not None))


def text(content: str) -> Html:
    return Html(escape(visible(content), quote=True))


def visible(content: str) -> str:
    """With a sign in the place of each character that would not be seen. Lines and tabs stay."""
    if content.isprintable():
        return content
    return "".join(
        character if character in _KEPT or unicodedata.category(character) not in _UNSEEN else _sign_of(character)
        for character in content.replace("\r\n", "\n")
    )


def cut(content: str, characters_max: int) -> str:
    return content if len(content) <= characters_max else content[: characters_max - 1] + _CUT


def _attribute(key: str, value: Attribute) -> str:
    name = key.removesuffix("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'


def _sign_of(character: str) -> str:
    code = ord(character)
    if code < ord(" "):
        return chr(_CONTROL_PICTURES + code)
    return _DELETE_PICTURE if code == _DELETE else _REPLACEMENT


# -- the page's frame ---------------------------------------------------------------------------------------------------------


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f8; --card: #ffffff; --ink: #14181d; --soft: #5c6670; --line: #e2e6ea; --sunken: #f1f3f5;
  --main: #0d6e78; --other: #b4c3c9; --good: #0b6b3a; --good-back: #e2f4ea; --warm: #8a5300; --warm-back: #fdf1dc;
  --bad: #a3261b; --bad-back: #fdeae8; --dull: #4a545e; --dull-back: #eceff2; }
@media (prefers-color-scheme: dark) { :root {
  --page: #0e1215; --card: #161b1f; --ink: #e8ecef; --soft: #98a4ae; --line: #283037; --sunken: #1d2429;
  --main: #35b3bf; --other: #46545d; --good: #6fd69c; --good-back: #12301f; --warm: #f0b95b; --warm-back: #33260e;
  --bad: #f2958c; --bad-back: #371a17; --dull: #aab5be; --dull-back: #262e34; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2.25rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0; }
h2 { font-size: 1.1rem; letter-spacing: -0.005em; margin: 2.5rem 0 0.75rem; }
.card > h2 { margin-top: 0; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
p { margin: 0.35rem 0; }
small, .soft { color: var(--soft); font-size: 0.87rem; }
code, pre { font: 0.84rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
pre { margin: 0.25rem 0 0.9rem; padding: 0.7rem 0.85rem; background: var(--sunken); border-radius: 6px; overflow: auto;
  max-height: 22rem; white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4; }
pre.command { user-select: all; border-left: 3px solid var(--main); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.15rem; min-width: 0; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 0.85rem; margin: 1.6rem 0 0.9rem; }
.numbers dt { color: var(--soft); font-size: 0.87rem; }
.numbers dd { margin: 0.1rem 0 0; font-size: 2rem; line-height: 1.15; font-weight: 650; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; }
.numbers dd small { display: block; font-size: 0.87rem; font-weight: 400; letter-spacing: 0; line-height: 1.4; margin-top: 0.2rem;
  overflow-wrap: anywhere; }
.numbers .good dd { color: var(--good); } .numbers .good dd small { color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); gap: 0.85rem; }
.chart { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.15rem;
  min-width: 0; }
.chart.wide { grid-column: 1 / -1; }
figcaption { font-weight: 600; margin-bottom: 0.5rem; }
.empty { color: var(--soft); }
.lower { fill: var(--main); } .upper { fill: var(--other); } .track { fill: var(--sunken); }
.grid { stroke: var(--line); stroke-width: 1; vector-effect: non-scaling-stroke; }
.bars { list-style: none; margin: 0; padding: 0; }
.bars li { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 0.1rem 0.75rem; margin: 0 0 0.6rem; }
.bars .name { overflow-wrap: anywhere; } .bars small { display: block; line-height: 1.35; margin-bottom: 0.15rem; }
.number { font-variant-numeric: tabular-nums; font-weight: 600; }
.bar { grid-column: 1 / -1; width: 100%; height: 7px; border-radius: 4px; display: block; }
.legend { display: flex; gap: 1.1rem; color: var(--soft); font-size: 0.87rem; margin: 0 0 0.6rem; }
.key::before { content: ""; display: inline-block; width: 0.7em; height: 0.7em; border-radius: 2px; margin-right: 0.45em; }
.key.lower::before { background: var(--main); } .key.upper::before { background: var(--other); }
.plot { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 0 0.6rem; }
.columns { width: 100%; height: 10.5rem; display: block; overflow: visible; }
.scale, .axis { color: var(--soft); font-size: 0.78rem; font-variant-numeric: tabular-nums; }
.scale { display: flex; flex-direction: column; justify-content: space-between; text-align: right; margin: -0.6em 0; }
.axis { display: flex; justify-content: space-between; gap: 0.6rem; margin-top: 0.45rem; padding-left: 2rem; }
.error { margin: 0 0 0.85rem; }
.error header { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 0.25rem 1rem; align-items: start; }
.error .count { font-size: 1.35rem; font-weight: 650; font-variant-numeric: tabular-nums; text-align: right; line-height: 1.2; }
.error .count small { display: block; font-weight: 400; }
.error .message { overflow-wrap: anywhere; margin: 0.1rem 0 0.5rem; }
.error .facts { color: var(--soft); font-size: 0.87rem; display: flex; flex-wrap: wrap; gap: 0.1rem 1.1rem; }
.error .facts span { overflow-wrap: anywhere; }
.sparkline { width: 9rem; height: 1.9rem; display: block; margin: 0.35rem 0 0 auto; }
.verdict { margin: 0.7rem 0 0.5rem; }
.pill { display: inline-block; border-radius: 99px; padding: 0.05rem 0.65rem; margin-right: 0.55rem; font-size: 0.84rem;
  font-weight: 600; }
.pill.replay { color: var(--good); background: var(--good-back); }
.pill.wait { color: var(--warm); background: var(--warm-back); }
.pill.fix { color: var(--bad); background: var(--bad-back); } .pill.foreign { color: var(--dull); background: var(--dull-back); }
details { margin-top: 0.6rem; } summary { cursor: pointer; color: var(--main); width: fit-content; }
summary:focus-visible { outline: 2px solid var(--main); outline-offset: 3px; border-radius: 3px; }
details h4 { font-size: 0.84rem; color: var(--soft); font-weight: 600; margin: 0.9rem 0 0; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
footer li { margin: 0.2rem 0; }
@media (max-width: 34rem) {
  main { padding: 1.4rem 0.9rem 3rem; } .numbers { grid-template-columns: 1fr 1fr; } .numbers dd { font-size: 1.5rem; }
  .card, .chart { padding: 0.85rem 0.9rem; } .columns { height: 8rem; } .sparkline { width: 5.5rem; }
  .axis span:nth-child(even):not(:last-child) { display: none; } }
@media print { body { background: none; } .card, .chart { break-inside: avoid; } }
"""


def page(title: str, *content: str | None) -> Html:
    """A whole document."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(_STYLE)),
    )
    body = element("body", element("main", *content))
    return join(Html("<!doctype html>\n"), element("html", head, body, lang="en"), Html("\n"))


def number_card(label: str, value: str, note: str = "", *, is_good: bool = False) -> Html:
    return element(
        "div",
        element("dt", label),
        element("dd", value, element("small", note) if note else None),
        class_="card good" if is_good else "card",
    )


# -- charts -------------------------------------------------------------------------------------------------------------------


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
            _bar_shape(bar.value, greatest),
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
    shapes = [_column_shape(at, 0, count, top, "lower") for at, count in enumerate(counts)]
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


def _bar_shape(value: int, greatest: int) -> Html:
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
            _column_shape(at, 0, column.lower, top, "lower"),
            _column_shape(at, column.lower, column.upper, top, "upper"),
        )
        for at, column in enumerate(columns)
        if column.lower or column.upper
    ]
    return _svg([*lines, *shapes], width, "columns", description)


def _column_shape(at: int, start: int, count: int, top: int, kind: str) -> Html | None:
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


# -- the report ---------------------------------------------------------------------------------------------------------------


NAMES_SHOWN_MAX = 8
_LABEL_CHARACTERS_MAX = 80
_NAME_CHARACTERS_MAX = 300
_TEXT_CHARACTERS_MAX = 6000
_HEX_BYTES_MAX = 256
_PILLS = {REPLAY: "Worth a replay", WAIT: "Wait", FIX: "Mend first", FOREIGN: "Not ours"}


def dead_letters_page(report: Report, *, hides_values: bool = False) -> str:
    """``hides_values`` leaves keys, values and headers of messages out: for those who may not see them."""
    span = span_of(report.hours, report.made_ms)
    topics = f"{len(report.topics):,} dead-letter topic{'' if len(report.topics) == 1 else 's'}"
    heading = join(
        element("h1", "Dead letters"),
        element("p", f"{topics} at {report.source} · {moment(report.made_ms)}", class_="soft"),
    )
    if not report.totals.waiting:
        return page("Dead letters", heading, _nothing_waits(report), _charts(report, span) if span.starts else None)
    return page(
        f"Dead letters: {report.totals.waiting:,} wait",
        heading,
        _numbers(report),
        _charts(report, span),
        _errors(report, span, hides_values),
        _footer(),
    )


def moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def shown_bytes(content: bytes | None, whole_bytes: int | None = None) -> str:
    """As text where it is text, else in hexadecimal; what was cut is said."""
    if content is None:
        return "(null)"
    if not content:
        return "(empty)"
    whole = len(content) if whole_bytes is None else whole_bytes
    try:
        # A character that the cut went through is no sign of something binary.
        shown = content.decode("utf-8") if whole == len(content) else content[: _last_boundary(content)].decode("utf-8")
        is_cut = whole > len(content) or len(shown) > _TEXT_CHARACTERS_MAX
        return cut(shown, _TEXT_CHARACTERS_MAX) + (f"\n({whole:,} bytes in all)" if is_cut else "")
    except UnicodeDecodeError:
        shown = content[:_HEX_BYTES_MAX].hex(" ")
        return f"{shown}{' …' if whole > _HEX_BYTES_MAX else ''}\n({whole:,} bytes, not UTF-8)"


def _last_boundary(content: bytes) -> int:
    """Before the last character, where that may be cut in the middle."""
    end = len(content)
    while end > max(0, len(content) - 4):
        end -= 1
        if content[end] & 0xC0 != 0x80:
            return end
    return len(content)


def _nothing_waits(report: Report) -> Html:
    totals = report.totals
    done = f"{totals.replayed:,} replayed, {totals.discarded:,} discarded"
    if not report.topics:
        what = "There are no dead-letter topics here. A worker makes one (TOPIC.GROUP.dlq) when a message fails for good."
    elif totals.gone:
        what = f"{totals.gone:,} letters left their topic before anybody dealt with them (retention, or a deletion); {done}."
    elif totals.replayed or totals.discarded:
        what = f"Every letter was dealt with: {done}."
    else:
        what = "The dead-letter topics are empty: no message has failed for good."
    return element(
        "section",
        element("h2", "Nothing waits"),
        element("p", what),
        element("p", "To be told when that changes, run this from your scheduler; it ends with 3 when a letter waits:"),
        element("pre", "tidelog dlq depth --fail-above 0", class_="command"),
        class_="card",
        style="margin-top:1.6rem",
    )


def _numbers(report: Report) -> Html:
    totals, oldest = report.totals, report.oldest
    worth = report.worth_a_replay
    of_which = "commands are below" if worth else "see why below"
    if report.unjudged:
        of_which = f"of the {len(report.errors):,} most frequent errors"
    return join(
        element(
            "dl",
            number_card("Waiting", f"{totals.waiting:,}", f"in {len(report.topics):,} topics" if len(report.topics) > 1 else ""),
            number_card("Different errors", f"{totals.errors:,}", "by class and message"),
            number_card(
                "Oldest",
                age(report.made_ms - oldest.failed_ms) if oldest else "unknown",
                f"{oldest.topic} {oldest.partition}:{oldest.offset}" if oldest else "",
            ),
            number_card("Worth a replay", f"{worth:,}", of_which, is_good=worth > 0),
            class_="numbers",
        ),
        element(
            "p",
            f"Not counted as waiting: {totals.replayed:,} replayed, {totals.discarded:,} discarded, {totals.gone:,} no longer in "
            "their topic."
            + (f" Of those that wait, {totals.foreign:,} have no story: others wrote them there." if totals.foreign else ""),
            class_="soft",
        ),
    )


def _charts(report: Report, span: Span) -> Html:
    waiting = span.fold({hour.start_ms: hour.waiting for hour in report.hours})
    settled = span.fold({hour.start_ms: hour.settled for hour in report.hours})
    columns = [
        Column(_label(start, span), f"{_whole(start, span)}: {now:,} waiting, {done:,} no longer", now, done)
        for start, now, done in zip(span.starts, waiting, settled, strict=True)
    ]
    step = "day" if span.step_ms == DAY_MS else "hour"
    errors = [
        Bar(cut(_class_name(judged), _LABEL_CHARACTERS_MAX), judged.error.facts.waiting, cut(judged.error.message, 60))
        for judged in report.errors[:NAMES_SHOWN_MAX]
    ]
    return element(
        "section",
        element("h2", "When and where"),
        element(
            "div",
            column_chart(f"Failures by {step} (UTC)", columns, ("waiting", "no longer waiting"), empty="no times are known"),
            bar_chart("Top errors", errors, empty="nothing waits"),
            bar_chart("By group", _bars(report.groups), empty="nothing waits"),
            bar_chart("By topic of origin", _bars(report.origins), empty="nothing waits"),
            class_="charts",
        ),
    )


def _bars(named: Sequence[Named]) -> list[Bar]:
    shown = [Bar(cut(each.name, _LABEL_CHARACTERS_MAX), each.waiting) for each in named[:NAMES_SHOWN_MAX]]
    rest = named[NAMES_SHOWN_MAX:]
    return [*shown, Bar(f"{len(rest):,} more", sum(each.waiting for each in rest))] if rest else shown


def _label(start_ms: int, span: Span) -> str:
    when = datetime.fromtimestamp(start_ms // 1000, UTC)
    return when.strftime("%b %d" if span.step_ms == DAY_MS else "%b %d %H:00")


def _whole(start_ms: int, span: Span) -> str:
    when = datetime.fromtimestamp(start_ms // 1000, UTC)
    return when.strftime("%Y-%m-%d" if span.step_ms == DAY_MS else "%Y-%m-%d %H:00")


def _errors(report: Report, span: Span, hides_values: bool) -> Html:
    left = report.totals.errors - len(report.errors)
    more = f"These are the {len(report.errors):,} most frequent; {left:,} more with --top." if left > 0 else None
    return element(
        "section",
        element("h2", "Errors, the most frequent first"),
        element("p", more, class_="soft") if more else None,
        *(_error(judged, report.made_ms, span, hides_values) for judged in report.errors),
    )


def _error(judged: JudgedError, now_ms: int, span: Span, hides_values: bool) -> Html:
    error, facts = judged.error, judged.error.facts
    versions = ", ".join(facts.versions)
    return element(
        "article",
        element(
            "header",
            element(
                "div",
                element("h3", cut(_class_name(judged), _NAME_CHARACTERS_MAX)),
                element("p", cut(error.message, 400) or "(no message)", class_="message"),
            ),
            element(
                "div",
                element("div", f"{facts.waiting:,}", element("small", "waiting"), class_="count"),
                sparkline(span.fold(error.by_hour), "when they failed") if span.starts else None,
            ),
        ),
        element(
            "div",
            element("span", facts.topic),
            element("span", f"group {cut(error.group, _LABEL_CHARACTERS_MAX)}") if error.group else None,
            element("span", f"first {age(now_ms - facts.first_failure_ms)} ago, last {age(now_ms - facts.last_failure_ms)} ago"),
            element("span", f"version {cut(versions, 120)}") if versions else None,
            element("span", f"{error.settled:,} no longer waiting") if error.settled else None,
            class_="facts",
        ),
        _verdict(judged),
        _example(judged.error.example, judged.show, hides_values),
        class_="card error",
    )


def _verdict(judged: JudgedError) -> Html:
    others = judged.error.taken - judged.error.facts.replayable
    also = f"It takes {others:,} letters of other messages of this class too. " if others > 0 else ""
    return join(
        element(
            "p",
            element("span", _PILLS[judged.verdict.kind], class_=f"pill {judged.verdict.kind}"),
            judged.verdict.reason + ".",
            class_="verdict",
        ),
        element("pre", judged.command, class_="command") if judged.command else None,
        element("p", f"{also}Add --dry-run to see first what it would do.", class_="soft") if judged.command else None,
    )


def _example(example: Example, show: str, hides_values: bool) -> Html:
    facts = [
        f"at {example.partition}:{example.offset}",
        f"from {cut(example.origin, _NAME_CHARACTERS_MAX)}" if example.origin else None,
        f"{example.attempts:,} attempts" if example.attempts is not None else None,
        moment(example.timestamp_ms) if example.timestamp_ms is not None else None,
    ]
    headers = "\n".join(f"{name}: {shown_bytes(value)}" for name, value in example.headers)
    parts = [
        ("Exception", example.message),
        ("Traceback", example.traceback),
        ("Key", "" if hides_values else shown_bytes(example.key)),
        ("Value", "" if hides_values else shown_bytes(example.value, example.value_bytes)),
        ("Headers", "" if hides_values else headers),
        ("The whole letter", show),
    ]
    shown = [
        join(
            element("h4", title),
            element("pre", cut(content, _TEXT_CHARACTERS_MAX), class_="command" if content is show else None),
        )
        for title, content in parts
        if content
    ]
    return element(
        "details",
        element("summary", "One of its letters"),
        element("p", " · ".join(fact for fact in facts if fact), class_="soft"),
        *shown,
    )


def _class_name(judged: JudgedError) -> str:
    return judged.error.facts.exception_class or "(no story)"


def _footer() -> Html:
    rules = (
        (
            REPLAY,
            "the class is one that passes by itself and it is quiet, or a newer version of the application runs without it.",
        ),
        (WAIT, "the class is one that passes by itself, but the last failure is recent."),
        (FIX, "it fails the same way each time, or came back after a replay: change the application or the data first."),
        (FOREIGN, "no story that belongs to the topic: tidelog dlq discard takes such letters out of the count."),
    )
    return element(
        "footer",
        element("h2", "How it is decided"),
        element(
            "ul",
            *(element("li", element("span", _PILLS[kind], class_=f"pill {kind}"), why) for kind, why in rules),
            style="list-style:none;padding:0",
        ),
        element(
            "p",
            "Numbers and ids in messages are folded (#, <id>), so that the same error counts together. Only what the letters' "
            "headers say is used. Times are UTC.",
            class_="soft",
        ),
    )
