"""What is expected of each test of a foreign suite: two text files beside this one, which together name every test of the suite.

``<suite>.passes.txt`` is the allow-list: one test a line, which must pass on Tidelog, and does on Apache Kafka. It may only grow
while the suite's version, its first line, stays (``test_lists.py`` reads the history).

``<suite>.left_out.txt`` has all others, ``category | test | reason``:

- ``missing``: passes on Apache Kafka with one broker, not on Tidelog. Counts against us.
- ``aside``: SASL and ACLs, which Tidelog does not have yet, and share groups, which are not tried by the suite yet. Not counted.
- ``not-on-kafka``: does not pass on one Apache Kafka broker either: it wants more brokers, older ones, or what the suite's
  package does not hold. Not counted.

The share is what passes of what passes on Apache Kafka: ``passes / (passes + missing)``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent

MISSING = "missing"
ASIDE = "aside"
NOT_ON_KAFKA = "not-on-kafka"
CATEGORIES = (MISSING, ASIDE, NOT_ON_KAFKA)

# A reason is a sentence about the cause; that a test fails now and then is no cause.
REASON_CHARACTERS_MIN = 15
NO_REASONS = ("flaky", "flakey", "unstable", "sometimes", "intermittent")


class InvalidList(Exception):
    """A list breaks its format; the message names file and line."""


class LeftOut(NamedTuple):
    category: str
    test: str
    reason: str


class Lists(NamedTuple):
    suite: str
    """Name and version, as the first line of the allow-list says."""
    passes: tuple[str, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def names(self) -> set[str]:
        return {*self.passes, *(entry.test for entry in self.left_out)}

    def of_category(self, category: str) -> list[LeftOut]:
        return [entry for entry in self.left_out if entry.category == category]

    @property
    def share(self) -> float:
        missing = len(self.of_category(MISSING))
        return len(self.passes) / max(1, len(self.passes) + missing)


def passes_path(suite: str) -> Path:
    return FOLDER / f"{suite}.passes.txt"


def left_out_path(suite: str) -> Path:
    return FOLDER / f"{suite}.left_out.txt"


def read_lists(suite: str) -> Lists:
    passes, left_out = passes_path(suite), left_out_path(suite)
    return parse_lists(passes.read_text(), left_out.read_text(), suite)


def parse_lists(passes_text: str, left_out_text: str, suite: str) -> Lists:
    title, *_ = passes_text.splitlines() or [""]
    if not title.startswith("# "):
        raise InvalidList(f"{suite}.passes.txt: the first line is '# <suite> <version>'")
    passes = [line for _, line in _lines(passes_text)]
    left_out = [_left_out(line, f"{suite}.left_out.txt:{number}") for number, line in _lines(left_out_text)]
    names = [*passes, *(entry.test for entry in left_out)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidList(f"{suite}: listed twice: {twice}")
    if passes != sorted(passes) or left_out != sorted(left_out):
        raise InvalidList(f"{suite}: the lists are sorted, so that changes can be read")
    return Lists(title.removeprefix("# "), tuple(passes), tuple(left_out))


def passes_text(title: str, tests: set[str]) -> str:
    """The text of an allow-list: what ``parse_lists`` reads."""
    return "".join(f"{line}\n" for line in (f"# {title}", *sorted(tests)))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def _left_out(line: str, place: str) -> LeftOut:
    parts = tuple(part.strip() for part in line.split(" | "))
    if len(parts) != 3:
        raise InvalidList(f"{place}: 'category | test | reason' was expected")
    entry = LeftOut(*parts)
    if entry.category not in CATEGORIES:
        raise InvalidList(f"{place}: the category is one of {', '.join(CATEGORIES)}")
    if len(entry.reason) < REASON_CHARACTERS_MIN or any(word in entry.reason.lower() for word in NO_REASONS):
        raise InvalidList(f"{place}: that is no reason: {entry.reason!r}")
    return entry
