from pathlib import Path

import pytest

from tests.compatibility.foreign.allow_list import ASIDE, MISSING, NOT_ON_KAFKA, LeftOut, Lists
from tests.compatibility.foreign.report import (
    Outcome,
    Result,
    Results,
    differences_on_kafka,
    differences_on_tidelog,
    summary,
    write,
)

LISTS = Lists(
    "suite 1",
    ("good",),
    (LeftOut(ASIDE, "sasl", ""), LeftOut(MISSING, "unbuilt", ""), LeftOut(NOT_ON_KAFKA, "old", "")),
)


def run(**outcomes: str) -> Results:
    return {name: Result(Outcome(outcome), 1.0, f"first\n{name} said") for name, outcome in outcomes.items()}


def test_a_run_as_the_lists_say_has_no_differences() -> None:
    assert differences_on_tidelog(LISTS, run(good="passed", sasl="skipped", unbuilt="failed", old="skipped")) == []
    assert differences_on_kafka(LISTS, run(good="passed", sasl="passed", unbuilt="passed", old="failed")) == []


def test_on_tidelog_what_is_listed_must_pass_and_what_passes_be_listed() -> None:
    assert differences_on_tidelog(LISTS, run(good="skipped", sasl="failed", unbuilt="passed", old="passed")) == [
        "must pass: good: skipped: good said",
        "passes now, so it belongs into the allow-list: unbuilt",
    ]


def test_on_kafka_what_counts_must_pass_and_what_passes_count() -> None:
    assert differences_on_kafka(LISTS, run(good="failed", sasl="failed", unbuilt="failed", old="passed")) == [
        "does not pass on Apache Kafka: good: failed: good said",
        "does not pass on Apache Kafka: unbuilt: failed: unbuilt said",
        "passes on Apache Kafka, so it counts: old",
    ]


def test_a_test_that_nobody_listed_and_one_that_did_not_run() -> None:
    results = run(new="passed", sasl="skipped", unbuilt="failed", old="skipped")
    unlisted = ["in no list: new", "not in the suite: good"]
    assert differences_on_tidelog(LISTS, results) == [*unlisted, "must pass: good: it did not run"]
    assert differences_on_kafka(LISTS, results)[:2] == unlisted


def test_a_run_is_kept_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_CACHE", str(tmp_path))
    results = run(good="passed", sasl="skipped")
    assert summary(results) == "1 passed, 0 failed, 1 skipped"
    lines = write("suite", "kafka", results).read_text().splitlines()
    assert lines[0] == summary(results)
    assert [line for line in lines if line.endswith("good")] == ["passed       1.0 s  good"]
    assert "    sasl said" in lines
