"""Dead letters counted by topic, group, error class and age, in bounded memory.

A count per (topic, group, error), at most ``ROWS_MAX`` of them: error classes come from applications, and one that makes up names
must not fill the memory of whoever counts. What is over the limit is counted under ``OTHER``, so that the sum stays right.
"""

from typing import NamedTuple

from tidelog.deadletters.dead_letter import DeadLetter

ROWS_MAX = 1000
OTHER = "(others)"
UNKNOWN_GROUP = "(unknown)"

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
AGES: tuple[tuple[str, int | None], ...] = (("1 h", HOUR_MS), ("1 d", DAY_MS), ("7 d", 7 * DAY_MS), ("older", None))
"""Each letter is counted under the first of these that it is younger than, by the time of its last failure."""


class Count(NamedTuple):
    """So many letters of one topic and group failed with one class of error and wait for somebody."""

    topic: str
    group: str
    error: str
    letters: int
    oldest_ms: int | None
    newest_ms: int | None
    by_age: tuple[int, ...]
    """As AGES, letter by letter: within an hour, a day, a week, older."""


class _Row:
    __slots__ = ("by_age", "letters", "newest_ms", "oldest_ms")

    def __init__(self) -> None:
        self.letters = 0
        self.oldest_ms: int | None = None
        self.newest_ms: int | None = None
        self.by_age = [0] * len(AGES)


class Counter:
    """Counts letters as they are read. ``now_ms`` is what ages are counted from."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._rows: dict[tuple[str, str, str], _Row] = {}

    def add(self, dead: DeadLetter) -> None:
        row = self._row(dead)
        row.letters += 1
        failed_ms = dead.failed_ms
        if failed_ms is None:
            row.by_age[-1] += 1
            return
        row.oldest_ms = failed_ms if row.oldest_ms is None else min(row.oldest_ms, failed_ms)
        row.newest_ms = failed_ms if row.newest_ms is None else max(row.newest_ms, failed_ms)
        age_ms = self._now_ms - failed_ms
        row.by_age[next(index for index, (_, limit) in enumerate(AGES) if limit is None or age_ms < limit)] += 1

    def counts(self) -> list[Count]:
        """By topic and group, the most frequent error first."""
        found = [
            Count(topic, group, error, row.letters, row.oldest_ms, row.newest_ms, tuple(row.by_age))
            for (topic, group, error), row in self._rows.items()
        ]
        return sorted(found, key=lambda count: (count.topic, count.group, -count.letters, count.error))

    def _row(self, dead: DeadLetter) -> _Row:
        group = dead.letter.group if dead.letter else UNKNOWN_GROUP
        row = self._rows.get((dead.topic, group, dead.error))
        if row is not None:
            return row
        error = dead.error if len(self._rows) < ROWS_MAX else OTHER
        return self._rows.setdefault((dead.topic, group if error != OTHER else OTHER, error), _Row())
