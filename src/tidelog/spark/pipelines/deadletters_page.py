"""The report on dead letters as a page: the numbers first, then the charts, then each error with one letter as an example.

The same report is the same bytes. Everything that came from a letter is text (``html_elements``), and cut to what a reader reads.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from tidelog.spark.pipelines.deadletters_report import DAY_MS, Example, JudgedError, Named, Report, Span, span_of
from tidelog.spark.pipelines.deadletters_verdict import FIX, FOREIGN, REPLAY, WAIT, age
from tidelog.spark.pipelines.html_elements import Html, cut, element, join
from tidelog.spark.pipelines.html_page import number_card, page
from tidelog.spark.pipelines.svg_charts import Bar, Column, bar_chart, column_chart, sparkline

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
