"""The report on dead letters as plain data: what was counted, and what should be done about it. Pure: the clock is passed in.

Spark counts (``counts``), this module decides, ``page`` shows. Whether an error is worth a replay follows from one rule, which
uses nothing but the letters' stories. An error (one dead-letter topic, one class, one message with its numbers folded) is judged
as a whole, in this order:

1. **foreign**: no story, or one of another topic. The tools never replay those.
2. **fix**: at least half of its letters were replayed before and came back, so doing the same again would change nothing.
3. **replay**: the class says that it passes by itself (time-outs, lost connections, ...), and it has been quiet for a while.
   **wait**: it has not been quiet, so the cause may still be there.
4. **replay**: a newer version of the application has written letters since, none of them with this error: it may be fixed.
5. **fix**: anything else fails the same way again. Fix the application, or the data, then replay.

No story can tell whether a key succeeded later.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from tidelog.spark.pipelines.options import BOOTSTRAP

# -- the verdict --------------------------------------------------------------------------------------------------------------


REPLAY, WAIT, FIX, FOREIGN = "replay", "wait", "fix", "foreign"

# Parts of class names of errors that pass by themselves, in Python, its drivers and Java.
_TRANSIENT = re.compile(
    r"timeout|timedout|connection(?!string)|unavailable|toomanyrequests|throttl|ratelimit|temporar|transient|retr(?:y|ies|iable)"
    r"|deadlock|locktimeout|serializationfailure|brokenpipe|interrupted|unreachable|gateway|eagain|resourceexhausted|overload"
)
_SCALE = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


class ApplicationVersion(NamedTuple):
    """A version of the application, as named by the letters of one dead-letter topic."""

    name: str
    first_ms: int
    last_ms: int


class ErrorFacts(NamedTuple):
    """Facts about an error, counted over its letters that wait; ``versions`` over all of them."""

    topic: str
    exception_class: str | None
    waiting: int
    replayable: int
    """The number of waiting letters whose story belongs to their topic."""
    came_back: int
    """The number of waiting letters that were replayed before."""
    first_failure_ms: int
    last_failure_ms: int
    versions: tuple[str, ...]


class ReplayVerdict(NamedTuple):
    kind: str
    reason: str


def judge(facts: ErrorFacts, newest: ApplicationVersion | None, now_ms: int, quiet_ms: int) -> ReplayVerdict:
    """``newest`` is the version that appeared last in the letters of this topic."""
    if facts.exception_class is None or not facts.replayable:
        return ReplayVerdict(
            FOREIGN, "without a story that belongs to this topic: the tools do not replay what others wrote there"
        )
    if facts.came_back * 2 >= facts.waiting:
        count = f"{facts.came_back:,} of {facts.waiting:,}" if facts.waiting > 1 else "this letter"
        return ReplayVerdict(FIX, f"{count} came back after a replay: mend the cause first")
    last = f"the last failure was {age(now_ms - facts.last_failure_ms)} ago"
    if is_transient(facts.exception_class):
        if now_ms - facts.last_failure_ms >= quiet_ms:
            return ReplayVerdict(REPLAY, f"this kind of error passes by itself, and it is quiet: {last}")
        return ReplayVerdict(WAIT, f"this kind of error passes by itself, but {last}: wait until it is quiet")
    if newest and facts.versions and newest.name not in facts.versions and newest.last_ms > facts.last_failure_ms:
        return ReplayVerdict(REPLAY, f"not seen since version {newest.name} runs: it may be mended there ({last})")
    return ReplayVerdict(FIX, f"fails the same way each time: mend the application or the data, then replay ({last})")


def is_transient(exception_class: str) -> bool:
    """Judge by the last part of the name: ``requests.exceptions.ReadTimeout``."""
    return bool(_TRANSIENT.search(exception_class.rpartition(".")[2].replace("_", "").lower()))


def replay_command(facts: ErrorFacts, bootstrap: str | None) -> str | None:
    """Return the command for a shell; None if the class cannot be typed. It does not take letters that arrive later."""
    first_ms, end_ms = replay_bounds(facts.first_failure_ms, facts.last_failure_ms)
    name = facts.exception_class
    if name is None or not name or not name.isprintable():
        return None
    words = ["tidelog", "dlq", "replay", facts.topic, f"--error={name}"]
    words += ["--since", _moment(first_ms), "--until", _moment(end_ms)]
    return shlex.join(words + (["--bootstrap", bootstrap] if bootstrap else []))


def replay_bounds(first_failure_ms: int, last_failure_ms: int) -> tuple[int, int]:
    """The bounds for ``--from`` and ``--before`` in whole seconds, because a typed time has no fractions."""
    return first_failure_ms - first_failure_ms % 1000, last_failure_ms - last_failure_ms % 1000 + 1000


def show_command(topic: str, partition: int, offset: int, bootstrap: str | None) -> str:
    words = ["tidelog", "dlq", "show", topic, f"{partition}:{offset}"]
    return shlex.join(words + (["--bootstrap", bootstrap] if bootstrap else []))


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(milliseconds: int) -> str:
    """Format a duration in its two largest units."""
    left = max(milliseconds, 0)
    parts: list[str] = []
    for size, unit in _SCALE:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 ")) or "0 s"


# -- the report ---------------------------------------------------------------------------------------------------------------


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# The chart shows hours up to this number, and days beyond.
HOURS_SHOWN_MAX = 72
DAYS_SHOWN_MAX = 90
# Not all applications' clocks are right; what lies further in the future is left out of the chart.
AHEAD_MS_MAX = HOUR_MS


class ExampleLetter(NamedTuple):
    """The newest letter of an error, cut to what a page can show."""

    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    value_bytes: int
    """Size of the whole value."""
    headers: tuple[tuple[str, bytes | None], ...]
    """The headers without those of the story."""
    message: str
    """The exception's message, unchanged."""
    traceback: str
    origin: str | None
    """``orders[3]@17``."""
    attempts: int | None


class ErrorCount(NamedTuple):
    """One error, as Spark counted it: a topic, a class, a message with its numbers folded."""

    facts: ErrorFacts
    group: str | None
    message: str
    settled: int
    """Letters of it that were replayed or discarded, or that retention deleted."""
    example: ExampleLetter
    taken: int
    """The number of letters that the replay command takes, including other messages with the same class and time."""
    by_hour: Mapping[int, int]


class LetterTotals(NamedTuple):
    """Counts over all letters in the table."""

    waiting: int = 0
    replayed: int = 0
    discarded: int = 0
    gone: int = 0
    """Deleted by retention, or with their topic; it is not known any more what became of those."""
    foreign: int = 0
    """The number of waiting letters without a story."""
    errors: int = 0
    """The number of different errors that wait."""


class HourCount(NamedTuple):
    start_ms: int
    waiting: int
    settled: int


class NamedCount(NamedTuple):
    name: str
    waiting: int


class OldestLetter(NamedTuple):
    failed_ms: int
    topic: str
    partition: int
    offset: int


class JudgedError(NamedTuple):
    error: ErrorCount
    verdict: ReplayVerdict
    command: str | None
    """The command to type when the error is worth a replay."""
    show: str
    """The whole story of the example."""


class DeadLetterReport(NamedTuple):
    made_ms: int
    source: str
    """The brokers, as the user named them."""
    topics: tuple[str, ...]
    totals: LetterTotals
    oldest: OldestLetter | None
    errors: tuple[JudgedError, ...]
    """The most frequent first."""
    hours: tuple[HourCount, ...]
    groups: tuple[NamedCount, ...]
    origins: tuple[NamedCount, ...]

    @property
    def worth_a_replay(self) -> int:
        """Counts only the errors that are shown one by one: the others are not judged."""
        return sum(judged.error.facts.replayable for judged in self.errors if judged.verdict.kind == REPLAY)

    @property
    def unjudged(self) -> int:
        """The number of waiting errors that are not reported one by one."""
        return max(0, self.totals.errors - len(self.errors))


class LetterCounts(NamedTuple):
    """The counts that Spark made."""

    totals: LetterTotals
    oldest: OldestLetter | None
    errors: Sequence[ErrorCount]
    hours: Sequence[HourCount]
    groups: Sequence[NamedCount]
    origins: Sequence[NamedCount]
    newest_versions: Mapping[str, ApplicationVersion]
    """Keyed by dead-letter topic."""


def make_report(counted: LetterCounts, topics: Sequence[str], bootstrap: str, *, now_ms: int, quiet_ms: int) -> DeadLetterReport:
    named = None if bootstrap == BOOTSTRAP else bootstrap
    judged = [_judged(error, counted.newest_versions, named, now_ms, quiet_ms) for error in counted.errors]
    return DeadLetterReport(
        now_ms, bootstrap, tuple(topics), counted.totals, counted.oldest, tuple(judged), tuple(counted.hours),
        tuple(counted.groups), tuple(counted.origins),
    )  # fmt: skip


def _judged(
    error: ErrorCount, newest: Mapping[str, ApplicationVersion], bootstrap: str | None, now_ms: int, quiet_ms: int
) -> JudgedError:
    facts = error.facts
    verdict = judge(facts, newest.get(facts.topic), now_ms, quiet_ms)
    command = replay_command(facts, bootstrap) if verdict.kind == REPLAY else None
    show = show_command(facts.topic, error.example.partition, error.example.offset, bootstrap)
    return JudgedError(error, verdict, command, show)


class ChartSpan(NamedTuple):
    """The steps of a chart over time."""

    step_ms: int
    starts: tuple[int, ...]

    def fold(self, by_hour: Mapping[int, int]) -> list[int]:
        """Sum hours into these steps; what lies outside is left out."""
        sums = dict.fromkeys(self.starts, 0)
        for hour_ms, count in by_hour.items():
            start = hour_ms - hour_ms % self.step_ms
            if start in sums:
                sums[start] += count
        return list(sums.values())


def span_of(hours: Sequence[HourCount], now_ms: int) -> ChartSpan:
    """The span from the first hour up to now: by hour, or by day where that would be too many. At least a day's hours."""
    shown = [hour.start_ms for hour in hours if now_ms - DAYS_SHOWN_MAX * DAY_MS < hour.start_ms <= now_ms + AHEAD_MS_MAX]
    if not shown:
        return ChartSpan(HOUR_MS, ())
    first, last = min(shown), max(*shown, now_ms - now_ms % HOUR_MS)
    if (last - first) // HOUR_MS < HOURS_SHOWN_MAX:
        first = min(first, last - 23 * HOUR_MS)
        return ChartSpan(HOUR_MS, tuple(range(first, last + 1, HOUR_MS)))
    return ChartSpan(DAY_MS, tuple(range(first - first % DAY_MS, last - last % DAY_MS + 1, DAY_MS)))
