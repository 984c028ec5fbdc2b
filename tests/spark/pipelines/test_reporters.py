"""What a run shows while it runs, and at its end."""

import io
import json

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from tidelog.spark.pipelines.pipeline import PipelineOutcome
from tidelog.spark.pipelines.reporters import BarReporter, PlainReporter, reporter, show_outcome


def test_plain_lines_come_at_steps_now_and_then_and_at_the_end() -> None:
    out, now = io.StringIO(), [0.0]
    shown = PlainReporter(out, lambda: now[0])
    shown.step("reading orders")
    for second in range(25):
        now[0] = float(second)
        shown.progress(second * 1000, 30_000)
    shown.progress(30_000, 30_000)
    shown.progress(30_000, 30_000)
    assert out.getvalue().splitlines() == [
        "reading orders",
        "10,000 of 30,000 rows (33 %)",
        "20,000 of 30,000 rows (66 %)",
        "30,000 of 30,000 rows (100 %)",
    ]


def test_a_bar_leaves_a_line_for_each_step_that_is_done() -> None:
    out = io.StringIO()
    with Progress(TextColumn("{task.description}"), console=Console(file=out, width=100), disable=True) as bar:
        shown = BarReporter(bar)
        shown.step("reading [orders]")
        shown.progress(5, 10, "letters")
        shown.step("compacting")
    assert out.getvalue().splitlines() == ["✓ reading [orders] 5 of 10 letters (50 %)"]


def test_no_path_is_cut_however_narrow_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    place = "lake/a-directory-with-a-long-name/and-another-one/orders"
    show_outcome("archive", PipelineOutcome("3 rows", {"rows": 3, "files written": 20_000, "table": place}), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "3 rows",
        "",
        "  rows                3",
        "  files written  20,000",
        f"  table          {place}",
    ]


def test_a_script_sees_nothing_but_the_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    with reporter(is_silent=True) as shown:
        shown.step("starting Spark")
        shown.progress(1, 1)
    assert capsys.readouterr() == ("", "")


def test_outcome_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = PipelineOutcome("12,000 rows [of orders] archived", {"rows": 12_000, "seconds": 1.5, "table": "lake/[orders]"}, 3)
    show_outcome("archive", outcome, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[1:] == [["rows", "12,000"], ["seconds", "1.50"], ["table", "lake/[orders]"]]
    show_outcome("archive", outcome, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "pipeline": "archive",
        "summary": "12,000 rows [of orders] archived",
        "figures": {"rows": 12_000, "seconds": 1.5, "table": "lake/[orders]"},
        "exit_code": 3,
    }
