"""docs/PIPELINES.md as written: the two minutes are run, and every other command has options that the pipeline takes."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.cli.command import Command
from tests.cli.command import fresh_command as fresh_command
from tidelog.cli.main import main
from tidelog.spark.pipelines import command_line
from tidelog.spark.pipelines import pipeline as pipelines
from tidelog.spark.pipelines.command_line import build
from tidelog.spark.pipelines.pipeline import Pipeline

PAGE = (Path(__file__).parents[3] / "docs" / "PIPELINES.md").read_text()
TWO_MINUTES = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0]
LINES = [line.strip() for line in PAGE.replace("\\\n", " ").splitlines()]
RUNS = [line for line in LINES if line.startswith(("tidelog pipeline run", "spark-submit"))]


def test_every_pipeline_has_its_section_and_a_command() -> None:
    assert [name for name in pipelines.MODULES if f"\n## {name}\n" not in PAGE] == []
    assert [name for name in pipelines.MODULES if not any(f"run {name} " in line for line in RUNS)] == []


@pytest.mark.parametrize("line", RUNS)
def test_options_are_those_of_the_pipeline(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[Any] = []

    def build_only(_name: str, pipeline: Pipeline, given: Mapping[str, Any], _around: object) -> int:
        options.append(build(pipeline.OPTIONS, given))
        return 0

    monkeypatch.setattr(command_line, "_run", build_only)
    words = shlex.split(line.replace("$(tidelog pipeline submit-file)", "SUBMITTED").partition(" | ")[0])
    start = words.index("SUBMITTED") if "SUBMITTED" in words else words.index("run")
    assert main(["pipeline", "run", *words[start + 1 :]]) == 0
    assert len(options) == 1


def test_two_minutes(fresh_command: Command, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_line, "_session", lambda *_: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr(command_line, "_end_java", lambda: None)
    said = []
    for line in TWO_MINUTES.splitlines():
        typed, is_piped, command = line.rpartition(" | ")
        stdin = f"{shlex.split(typed)[1]}\n".encode() if is_piped else b""
        done = fresh_command(*shlex.split(command)[1:], stdin=stdin)
        assert done.code == 0, done.err
        said.append(done.out)
    assert "2 messages of orders archived, 1 of them bad and kept aside" in said[-2]
