"""One message of a dead-letter topic with its story, filters of letters, and counts of letters. Pure.

A message without a story (somebody else wrote it there), or whose story belongs to another dead-letter topic, is shown and
counted like any other, but never replayed: its headers would choose where it goes, and the permission to write to a dead-letter
topic must not become the permission to write anywhere.

Counts are kept in bounded memory, at most ``ROWS_MAX`` per (topic, group, error): error classes come from applications, and one
that invents names must not fill the memory of the reader. Letters beyond the limit are counted under ``OTHER``, so the sum stays
right.

Depths are also rendered as Prometheus' text, for the textfile collector of the node exporter: one gauge for the depth and one for
the age of the oldest letter, which retention deletes after 30 days. The topic is the only label.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.deadletters.broker_letter import read_broker_letter, without_broker_story
from tidelog.deadletters.letter import Headers, Letter, origin_headers
from tidelog.deadletters.topics import DEAD_LETTER_SUFFIX

NO_STORY = "(no story)"

ROWS_MAX = 1000
OTHER = "(others)"
UNKNOWN_GROUP = "(unknown)"

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
AGES: tuple[tuple[str, int | None], ...] = (("1 h", HOUR_MS), ("1 d", DAY_MS), ("7 d", 7 * DAY_MS), ("older", None))
"""Each letter is counted under the first age that it is younger than, by the time of its last failure."""

DEPTH_METRIC = "tidelog_dead_letters"
OLDEST_METRIC = "tidelog_dead_letters_oldest_seconds"


class DeadLetter(NamedTuple):
    """Immutable. ``letter`` is None when the message has no story."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    """All headers, including the story; ``original_headers`` has those that the message came with."""
    letter: Letter | None

    @classmethod
    def of(cls, message: Message) -> "DeadLetter":
        headers = message.headers_list
        return cls(
            message.topic,
            message.partition,
            message.offset,
            message.timestamp,
            message.key,
            message.value,
            headers,
            _letter_of(message.topic, headers, message.timestamp),
        )

    @property
    def original_headers(self) -> Headers:
        is_from_broker = self.letter is not None and self.letter.is_from_broker
        return without_broker_story(self.headers) if is_from_broker else origin_headers(self.headers)

    @property
    def error(self) -> str:
        """The class of the exception, with its module."""
        return self.letter.exception_class if self.letter else NO_STORY

    @property
    def failed_ms(self) -> int | None:
        """The time of its last failure."""
        return self.letter.last_failure_ms if self.letter else self.timestamp_ms

    @property
    def is_replayable(self) -> bool:
        """Whether its story belongs to the topic that it is in, and it has what would be sent."""
        letter = self.letter
        if letter is None or not _belongs(letter, self.topic):
            return False
        # A letter of a broker may only name its record.
        is_copy = self.key is not None or self.value is not None or bool(self.original_headers)
        return is_copy or not letter.is_from_broker

    @property
    def size_bytes(self) -> int:
        """Its approximate size in a batch."""
        return len(self.key or b"") + len(self.value or b"") + sum(len(name) + len(value or b"") for name, value in self.headers)


def _letter_of(topic: str, headers: Headers, timestamp_ms: int | None) -> Letter | None:
    """A message may have two stories: a worker has read what a share group had rejected before, or the other way round. The one
    that belongs to the topic counts."""
    stories = [each for each in (Letter.from_headers(headers), read_broker_letter(headers, timestamp_ms)) if each is not None]
    return next((each for each in stories if _belongs(each, topic)), stories[0] if stories else None)


def _belongs(letter: Letter, topic: str) -> bool:
    return f"{letter.topic}.{letter.group}{DEAD_LETTER_SUFFIX}" == topic


class LetterFilter(NamedTuple):
    """Selects letters by error, key, time, partition and offset; a letter must match everything that is given.

    An error matches by the exception's class with its module (``app.errors.OutOfStock``) or by the last part alone
    (``OutOfStock``). The time is that of the last failure. Offsets are those in the dead-letter topic, as ``list`` and ``show``
    print them, both ends included.
    """

    errors: tuple[str, ...] = ()
    """The letter's error must be one of these."""
    key: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    """This time itself is excluded."""
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    def checked(self) -> "LetterFilter":
        """Return the filter itself. Raises InvalidArgument if no letter could ever match."""
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise InvalidArgument("no letter can match: the first time is not before the last one")
        first, last = self.first_offset, self.last_offset
        if (first is not None and first < 0) or (last is not None and last < 0):
            raise InvalidArgument("offsets begin at 0")
        if first is not None and last is not None and first > last:
            raise InvalidArgument(f"no letter can match: the first offset, {first}, is above the last one, {last}")
        if self.partition is not None and self.partition < 0:
            raise InvalidArgument("partitions begin at 0")
        return self

    def matches(self, dead: DeadLetter) -> bool:
        if self.partition is not None and dead.partition != self.partition:
            return False
        if self.first_offset is not None and dead.offset < self.first_offset:
            return False
        if self.last_offset is not None and dead.offset > self.last_offset:
            return False
        if self.key is not None and dead.key != self.key:
            return False
        if self.errors and not any(matches_error(dead.error, wanted) for wanted in self.errors):
            return False
        if self.since_ms is None and self.until_ms is None:
            return True
        failed_ms = dead.failed_ms
        if failed_ms is None:
            return False
        return (self.since_ms is None or failed_ms >= self.since_ms) and (self.until_ms is None or failed_ms < self.until_ms)

    def narrow(self, partition: int, start: int, end: int) -> tuple[int, int] | None:
        """Return the part of a partition's offsets (``end`` excluded) in which letters may match; None if no letter can."""
        if self.partition is not None and partition != self.partition:
            return None
        if self.first_offset is not None:
            start = max(start, self.first_offset)
        if self.last_offset is not None:
            end = min(end, self.last_offset + 1)
        return (start, end) if start < end else None


def matches_error(error: str, wanted: str) -> bool:
    return error == wanted or error.endswith(f".{wanted}")


# -- counts ------------------------------------------------------------------------------------------------------------------


class LetterCount(NamedTuple):
    """The waiting letters of one topic and group that failed with one class of error."""

    topic: str
    group: str
    error: str
    letters: int
    oldest_ms: int | None
    newest_ms: int | None
    by_age: tuple[int, ...]
    """Counts by AGES: younger than an hour, a day, a week, older."""


@dataclass(slots=True)
class _Row:
    letters: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    by_age: list[int] = field(default_factory=lambda: [0] * len(AGES))


class LetterCounter:
    """Counts letters as they are read. Ages are counted from ``now_ms``."""

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

    def counts(self) -> list[LetterCount]:
        """Sorted by topic and group, the most frequent error first."""
        found = [
            LetterCount(topic, group, error, row.letters, row.oldest_ms, row.newest_ms, tuple(row.by_age))
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


class Depth(NamedTuple):
    """The number of letters of one dead-letter topic that wait: they were neither replayed nor discarded."""

    topic: str
    letters: int
    oldest_ms: int | None = None
    """When the oldest of them last failed; None if no letter waits, or if they were only estimated."""
    is_estimate: bool = False
    """Whether the count is by offsets alone, which counts transaction markers as letters and so is an upper bound."""


def prometheus_text(depths: Iterable[Depth], now_ms: int) -> str:
    """The depths in Prometheus' text format, in the given order."""
    known = list(depths)
    lines = [
        f"# HELP {DEPTH_METRIC} Letters of a dead-letter topic that were neither replayed nor discarded.",
        f"# TYPE {DEPTH_METRIC} gauge",
        *(f'{DEPTH_METRIC}{{topic="{depth.topic}"}} {depth.letters}' for depth in known),
    ]
    aged = [depth for depth in known if not depth.is_estimate]
    if aged:
        lines += [
            f"# HELP {OLDEST_METRIC} Seconds since the last failure of the oldest letter; 0 if there is none.",
            f"# TYPE {OLDEST_METRIC} gauge",
            *(f'{OLDEST_METRIC}{{topic="{depth.topic}"}} {_age_seconds(depth, now_ms):.0f}' for depth in aged),
        ]
    return "\n".join(lines) + "\n"


def _age_seconds(depth: Depth, now_ms: int) -> float:
    return 0.0 if depth.oldest_ms is None else max(0.0, (now_ms - depth.oldest_ms) / 1000)
