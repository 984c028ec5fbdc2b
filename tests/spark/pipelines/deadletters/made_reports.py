"""Reports made by hand, and a reader of pages that is strict about what is open and what is closed."""

from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from tidelog.spark.pipelines.deadletters.report import (
    HOUR_MS,
    ApplicationVersion,
    DeadLetterReport,
    ErrorCount,
    ErrorFacts,
    ExampleLetter,
    HourCount,
    LetterCounts,
    LetterTotals,
    NamedCount,
    OldestLetter,
    make_report,
)

# 2026-11-16 09:30 UTC.
NOW_MS = 1_794_821_400_000
TOPIC = "orders.email.dlq"
QUIET_MS = 15 * 60_000

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "</style></svg></pre><b>",
    "a\x00b\x1b[31mc\x7fd\x85e\u202ef\u2028g\udc80h",
    "x" * 1_000_000,
)


def facts(**given: Any) -> ErrorFacts:
    defaults: dict[str, Any] = {
        "topic": TOPIC,
        "exception_class": "app.errors.OutOfStock",
        "waiting": 10,
        "replayable": 10,
        "came_back": 0,
        "first_failure_ms": NOW_MS - 30 * HOUR_MS,
        "last_failure_ms": NOW_MS - 2 * HOUR_MS,
        "versions": ("2.0.3",),
    }
    return ErrorFacts(**{**defaults, **given})


def example(**given: Any) -> ExampleLetter:
    defaults: dict[str, Any] = {
        "partition": 1,
        "offset": 17,
        "timestamp_ms": NOW_MS - 2 * HOUR_MS,
        "key": b"customer-42",
        "value": b'{"order": 7}',
        "value_bytes": 12,
        "headers": (("content-type", b"application/json"),),
        "message": "no more of item 5512",
        "traceback": "Traceback (most recent call last):\n  ...",
        "origin": "orders[1]@4711",
        "attempts": 6,
    }
    return ExampleLetter(**{**defaults, **given})


def error(
    *,
    of: Mapping[str, Any] | None = None,
    like: Mapping[str, Any] | None = None,
    message: str = "no more of item #",
    **given: Any,
) -> ErrorCount:
    """``of`` are facts, ``like`` is of the example."""
    known = facts(**(of or {}))
    hour = known.last_failure_ms - known.last_failure_ms % HOUR_MS
    defaults: dict[str, Any] = {
        "group": "email",
        "settled": 0,
        "taken": known.replayable,
        "by_hour": {hour: known.waiting},
    }
    return ErrorCount(facts=known, message=message, example=example(**(like or {})), **{**defaults, **given})


def report(
    *errors: ErrorCount, totals: LetterTotals | None = None, newest: ApplicationVersion | None = None, **given: Any
) -> DeadLetterReport:
    waiting = sum(each.facts.waiting for each in errors)
    hours = sorted({hour for each in errors for hour in each.by_hour})
    counted = LetterCounts(
        totals=totals or LetterTotals(waiting=waiting, replayed=3, discarded=1, gone=2, errors=len(errors)),
        oldest=OldestLetter(NOW_MS - 30 * HOUR_MS, TOPIC, 0, 4) if errors else None,
        errors=errors,
        hours=[HourCount(hour, sum(each.by_hour.get(hour, 0) for each in errors), 1) for hour in hours],
        groups=[NamedCount("email", waiting)] if errors else [],
        origins=[NamedCount("orders", waiting)] if errors else [],
        newest_versions={TOPIC: newest} if newest else {},
    )
    defaults: dict[str, Any] = {
        "topics": (TOPIC,),
        "bootstrap": "127.0.0.1:9092",
        "now_ms": NOW_MS,
        "quiet_ms": QUIET_MS,
    }
    return make_report(counted, **{**defaults, **given})


class StrictReader(HTMLParser):
    """Collects what a page has; fails on what is not closed in its order."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        # Line ends between elements belong to the template.
        if data.strip():
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def read_page(page: str) -> StrictReader:
    reader = StrictReader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader
