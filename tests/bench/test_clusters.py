"""The comparison of clusters: what its figures mean, how a page takes them, and that every experiment runs."""

from pathlib import Path

import pytest

from bench.clusters import page
from bench.clusters.__main__ import EXPERIMENTS, KINDS, measure
from bench.clusters.experiment import Experiment, Line, Run, Scale
from bench.clusters.page import COMPILED, NOT_MEASURED, OURS, THEIRS, Found
from bench.clusters.quorum import longest_of
from bench.clusters.traffic import PacedWriter
from bench.measure import Target
from bench.workspace import workspace
from tests.compatibility.apache_kafka import KafkaUnavailable, kafka_classpath


def nothing(_: Run) -> None:
    """An experiment that is never run."""


GAP = Line("gap", "s", Target("<=", 2.0))
RATE = Line("rate", "msg/s", Target(">=", 0.7), "ratio")
FIRST = Experiment("first", "Faults", "", (GAP,), nothing)
SECOND = Experiment("second", "Load", "", (RATE,), nothing)
BOTH = (FIRST, SECOND)


def test_the_longest_gap_is_that_of_one_partition() -> None:
    writer = PacedWriter("127.0.0.1:1", "orders", 3)
    # The first partition pauses for three seconds, and the others go on.
    writer.acknowledged = [(0, at - 0.01, at) for at in (10.5, 13.5, 14.0)]
    writer.acknowledged += [(index, at / 2, at / 2) for index in (1, 2) for at in range(20, 29)]
    assert writer.longest_gap(10.0, 14.0) == 3.0
    assert writer.longest_gap(13.75, 20.0) == 6.0, "what has not come yet is a gap as well"


def found(load: float, values: dict[str, dict[str, list[float]]]) -> Found:
    return Found(load, [], values)


def test_a_row_takes_its_place_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- clusters: begin -->\n<!-- clusters: end -->\nafter\n")
    page.write(BOTH, FIRST.lines, found(1.5, {OURS: {"gap": [1.0, 3.0, 2.5]}, THEIRS: {"gap": [10.0]}}), path)
    first = next(line for line in path.read_text().splitlines() if line.startswith("| gap "))
    assert "| 2.5 s ±20 % |  | 10 s | 0.25 | <= 2 s | short |" in first
    assert "load 1.5 before" in first
    assert f"| rate |  |  |  |  | >= 0.7 x |  | {NOT_MEASURED} |" in path.read_text()

    page.write(BOTH, SECOND.lines, found(9.0, {OURS: {"rate": [70.0]}, THEIRS: {"rate": [100.0]}}), path)
    lines = path.read_text().splitlines()
    assert first in lines
    (second,) = (line for line in lines if line.startswith("| rate "))
    assert "| 70 msg/s |  | 100 msg/s | 0.70 | >= 0.7 x | ok |" in second
    assert (lines[0], lines[-1]) == ("before", "after")


def test_a_run_of_the_compiled_build_leaves_the_other_columns() -> None:
    rows = page.updated({}, SECOND.lines, found(1.0, {OURS: {"rate": [50.0]}, THEIRS: {"rate": [100.0]}}))
    rows = page.updated(rows, SECOND.lines, found(2.0, {COMPILED: {"rate": [90.0]}}))
    cells = rows["rate"]
    assert [cells[column] for column in (OURS, COMPILED, THEIRS)] == ["50 msg/s", "90 msg/s", "100 msg/s"]
    assert (cells[page.RATIO], cells[page.VERDICT]) == ("0.50", "short")


def test_the_longest_slice_is_the_highest_bucket_with_something_in_it() -> None:
    text = "".join(
        f'held_bucket{{le="{bound}"}} {count}\n' for bound, count in (("0.001", 5), ("0.01", 7), ("0.1", 7), ("+Inf", 7))
    )
    assert longest_of(text, "held") == 0.01


def test_names_and_lines_are_unique() -> None:
    assert len({experiment.name for experiment in EXPERIMENTS}) == len(EXPERIMENTS)
    lines = [line.what for experiment in EXPERIMENTS for line in experiment.lines]
    assert len(set(lines)) == len(lines)


QUICK = Scale(rounds=1, minutes=0.05, mebibytes=16, partitions=300, is_quick=True)
# One of them runs in every test run; the soak runs them all.
RUN_ALWAYS = ("create-topics",)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "experiment",
    [each if each.name in RUN_ALWAYS else pytest.param(each, marks=pytest.mark.soak) for each in EXPERIMENTS],
    ids=lambda experiment: experiment.name,
)
def test_an_experiment_fills_its_lines(tmp_path: Path, experiment: Experiment) -> None:
    with workspace(tmp_path, is_quick=True) as place:
        result, is_whole = measure(experiment, ["tidelog"], QUICK, place)
    assert is_whole
    assert set(result.values[OURS]) == {line.what for line in experiment.lines}
    assert not list(tmp_path.iterdir())


@pytest.mark.apache_kafka
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("experiment", [each for each in EXPERIMENTS if each.is_beside_kafka], ids=lambda each: each.name)
def test_kafka_fills_them_too(tmp_path: Path, experiment: Experiment) -> None:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    with workspace(tmp_path, is_quick=True) as place:
        result, is_whole = measure(experiment, ["kafka"], QUICK, place)
    assert is_whole
    assert set(result.values[KINDS["kafka"][0]]) == {line.what for line in experiment.lines if not line.is_ours_only}
