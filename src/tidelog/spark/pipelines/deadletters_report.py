"""The report on dead letters as plain data: what was counted, what is to be done about it. Pure: the clock is handed in.

Spark counts (``deadletters_counts``), this decides, ``deadletters_page`` shows.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.spark.pipelines.deadletters_verdict import REPLAY, Facts, Verdict, Version, judge, replay_command, show_command

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# By hour up to here, by day beyond.
HOURS_SHOWN_MAX = 72
DAYS_SHOWN_MAX = 90
# Clocks of applications are not all right; what lies further in the future is left out of the chart.
AHEAD_MS_MAX = HOUR_MS


class Example(NamedTuple):
    """The newest letter of an error, cut to what a page can show."""

    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    value_bytes: int
    """Of the whole value."""
    headers: tuple[tuple[str, bytes | None], ...]
    """Without the story."""
    message: str
    """Of the exception, as it was."""
    traceback: str
    origin: str | None
    """``orders[3]@17``."""
    attempts: int | None


class ErrorCount(NamedTuple):
    """One error, as Spark counted it: a topic, a class, a message with its numbers folded."""

    facts: Facts
    group: str | None
    message: str
    settled: int
    """Letters of it that were replayed or discarded, or that retention deleted."""
    example: Example
    taken: int
    """How many letters the replay command takes: those of other messages with the same class and time, too."""
    by_hour: Mapping[int, int]


class Totals(NamedTuple):
    """Of all letters in the table."""

    waiting: int = 0
    replayed: int = 0
    discarded: int = 0
    gone: int = 0
    """Deleted by retention, or with their topic; what became of those is not known any more."""
    foreign: int = 0
    """Of those that wait: without a story."""
    errors: int = 0
    """How many different ones wait."""


class Hour(NamedTuple):
    start_ms: int
    waiting: int
    settled: int


class Named(NamedTuple):
    name: str
    waiting: int


class Oldest(NamedTuple):
    failed_ms: int
    topic: str
    partition: int
    offset: int


class JudgedError(NamedTuple):
    error: ErrorCount
    verdict: Verdict
    command: str | None
    """To be typed when it is worth a replay."""
    show: str
    """The whole story of the example."""


class Report(NamedTuple):
    made_ms: int
    source: str
    """The brokers, as they were named."""
    topics: tuple[str, ...]
    totals: Totals
    oldest: Oldest | None
    errors: tuple[JudgedError, ...]
    """The most frequent first."""
    hours: tuple[Hour, ...]
    groups: tuple[Named, ...]
    origins: tuple[Named, ...]

    @property
    def worth_a_replay(self) -> int:
        """Of the errors that are told one by one: nobody has judged the others."""
        return sum(judged.error.facts.replayable for judged in self.errors if judged.verdict.kind == REPLAY)

    @property
    def unjudged(self) -> int:
        """Errors that wait and are not told one by one."""
        return max(0, self.totals.errors - len(self.errors))


class Counted(NamedTuple):
    """What Spark handed over."""

    totals: Totals
    oldest: Oldest | None
    errors: Sequence[ErrorCount]
    hours: Sequence[Hour]
    groups: Sequence[Named]
    origins: Sequence[Named]
    newest_versions: Mapping[str, Version]
    """By dead-letter topic."""


def make_report(
    counted: Counted, topics: Sequence[str], bootstrap: str, *, is_default_bootstrap: bool, now_ms: int, quiet_ms: int
) -> Report:
    named = None if is_default_bootstrap else bootstrap
    judged = [_judged(error, counted.newest_versions, named, now_ms, quiet_ms) for error in counted.errors]
    return Report(
        now_ms, bootstrap, tuple(topics), counted.totals, counted.oldest, tuple(judged), tuple(counted.hours),
        tuple(counted.groups), tuple(counted.origins),
    )  # fmt: skip


def _judged(error: ErrorCount, newest: Mapping[str, Version], bootstrap: str | None, now_ms: int, quiet_ms: int) -> JudgedError:
    facts = error.facts
    verdict = judge(facts, newest.get(facts.topic), now_ms, quiet_ms)
    command = replay_command(facts, bootstrap) if verdict.kind == REPLAY else None
    show = show_command(facts.topic, error.example.partition, error.example.offset, bootstrap)
    return JudgedError(error, verdict, command, show)


class Span(NamedTuple):
    """The steps of a chart over time."""

    step_ms: int
    starts: tuple[int, ...]

    def fold(self, by_hour: Mapping[int, int]) -> list[int]:
        """Hours summed up into these steps; what lies outside is left out."""
        sums = dict.fromkeys(self.starts, 0)
        for hour_ms, count in by_hour.items():
            start = hour_ms - hour_ms % self.step_ms
            if start in sums:
                sums[start] += count
        return list(sums.values())


def span_of(hours: Sequence[Hour], now_ms: int) -> Span:
    """From the first hour up to now: by hour, or by day where that would be too many. At least a day's hours."""
    shown = [hour.start_ms for hour in hours if now_ms - DAYS_SHOWN_MAX * DAY_MS < hour.start_ms <= now_ms + AHEAD_MS_MAX]
    if not shown:
        return Span(HOUR_MS, ())
    first, last = min(shown), max(*shown, now_ms - now_ms % HOUR_MS)
    if (last - first) // HOUR_MS < HOURS_SHOWN_MAX:
        first = min(first, last - 23 * HOUR_MS)
        return Span(HOUR_MS, tuple(range(first, last + 1, HOUR_MS)))
    return Span(DAY_MS, tuple(range(first - first % DAY_MS, last - last % DAY_MS + 1, DAY_MS)))
