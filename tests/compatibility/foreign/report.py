"""What a run of a foreign suite gave, compared with its lists.

A run is a ``Results``: the outcome of each test, and the words of those that failed. ``differences_on_tidelog`` and
``differences_on_kafka`` say where it is not what the lists say; no difference is what ``make compat`` asks for. ``write`` keeps a
run as text beside the suite's cache, for who wants to look; the path is in the message of a failed test.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.compatibility.apache_kafka import cache_root
from tests.compatibility.foreign.allow_list import MISSING, NOT_ON_KAFKA, Lists

WORDS_CHARACTERS_MAX = 4_000


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Result(NamedTuple):
    outcome: Outcome
    seconds: float
    words: str = ""
    """Why it failed or was skipped, in its own words."""


Results = Mapping[str, Result]


def passed(results: Results) -> set[str]:
    return {name for name, result in results.items() if result.outcome is Outcome.PASSED}


def differences_on_tidelog(lists: Lists, results: Results) -> list[str]:
    """One line per test of which the lists say something else; ``results`` is of a run of the whole suite."""
    found = _unlisted(lists, results)
    found += [f"must pass: {name}: {_told(results, name)}" for name in sorted(set(lists.passes) - passed(results))]
    found += [
        f"passes now, so it belongs into the allow-list: {entry.test}"
        for entry in lists.of_category(MISSING)
        if entry.test in passed(results)
    ]
    return found


def differences_on_kafka(lists: Lists, results: Results) -> list[str]:
    """One line per test of which the lists say something else; ``results`` is of a run of the whole suite."""
    found = _unlisted(lists, results)
    counted = {*lists.passes, *(entry.test for entry in lists.of_category(MISSING))}
    found += [f"does not pass on Apache Kafka: {name}: {_told(results, name)}" for name in sorted(counted - passed(results))]
    found += [
        f"passes on Apache Kafka, so it counts: {entry.test}"
        for entry in lists.of_category(NOT_ON_KAFKA)
        if entry.test in passed(results)
    ]
    return found


def summary(results: Results) -> str:
    counts = [(outcome, sum(result.outcome is outcome for result in results.values())) for outcome in Outcome]
    return ", ".join(f"{count} {outcome}" for outcome, count in counts)


def write(suite: str, broker: str, results: Results) -> Path:
    """Keep a run: ``<cache>/reports/<suite>-<broker>.txt``."""
    path = cache_root() / "reports" / f"{suite}-{broker}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{summary(results)}"]
    for name, result in sorted(results.items()):
        lines.append(f"{result.outcome:8} {result.seconds:7.1f} s  {name}")
        lines += [f"    {line}" for line in result.words[-WORDS_CHARACTERS_MAX:].splitlines()]
    path.write_text("\n".join(lines) + "\n")
    return path


def _unlisted(lists: Lists, results: Results) -> list[str]:
    unlisted = [f"in no list: {name}" for name in sorted(set(results) - lists.names)]
    return unlisted + [f"not in the suite: {name}" for name in sorted(lists.names - set(results))]


def _told(results: Results, name: str) -> str:
    if name not in results:
        return "it did not run"
    result = results[name]
    last_words = result.words.strip().splitlines()[-1:] or [""]
    return f"{result.outcome}: {last_words[0]}"
