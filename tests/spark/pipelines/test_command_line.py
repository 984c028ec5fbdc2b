"""A run from the command line: Ctrl-C in the middle, and again from there; exit codes, JSON, one line for what is wrong.

Flags from a dataclass, through typer as the command line has it. The same command under ``spark-submit``, and as a module.
Pipelines by name.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
import pytest
import typer
from pyspark.sql import SparkSession

from tests.compatibility.apache_kafka import wait_until
from tests.spark.reading import producer, send
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.cli.main import main
from tidelog.spark.pipelines import __main__ as program
from tidelog.spark.pipelines import command_line
from tidelog.spark.pipelines import pipeline as pipelines
from tidelog.spark.pipelines.command_line import build, function_with, parameters_of
from tidelog.spark.pipelines.pipeline import MODULES, UnknownPipeline, hint_for, load
from tidelog.spark.runtimes import JavaMissing, java_home
from tidelog.spark.tables.lake_table import LakeTable

ROWS = 400
BATCH_ROWS = 20
SECONDS_MAX = 240.0


@pytest.fixture
def words(kafka: ToolkitBroker, tmp_path: Path) -> list[str]:
    topic = create_topic(kafka.bootstrap, f"t-{secrets.token_hex(4)}", partitions=2)
    send(producer(kafka.bootstrap), topic, ROWS, partitions=2)
    return ["pipeline", "run", "sample", "--topic", topic, "--table", str(tmp_path / "table"), "--bootstrap", kafka.bootstrap]


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process are on the session that all tests share, and leave it alone."""
    monkeypatch.setitem(pipelines.MODULES, "sample", "tests.spark.pipelines.sample_pipeline")
    monkeypatch.setattr(command_line, "_session", lambda *_: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr(command_line, "_end_java", lambda: None)


def committed(table: Path) -> int:
    commits = table / "_checkpoint" / "commits"
    return len([name for name in os.listdir(commits) if not name.startswith(".")]) if commits.is_dir() else 0


def group_of(pid: int) -> list[int]:
    """Who is in this process group."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.getpgid(int(process.name)) == pid:
                found.append(int(process.name))
        except OSError:
            continue
    return found


# It starts Spark for itself, which takes long where others do so as well.
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("here")
def test_ctrl_c_is_clean_and_the_next_run_goes_on(
    spark: SparkSession, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, log = tmp_path / "table", tmp_path / "spark.log"
    settings = ["--master", "local[2]", "--spark-config", f"spark.local.dir={tmp_path / 'local'}", "--spark-log", str(log)]
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.pipelines.sample_command", *words, "--rows-per-batch", str(BATCH_ROWS), *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: child.poll() is not None or committed(table) >= 3, "batches are done", SECONDS_MAX)
    # Ctrl-C of a terminal reaches every process of the command's group: Java and the workers are not among them.
    assert group_of(child.pid) == [child.pid]
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=SECONDS_MAX)
    assert child.returncode == 0, err
    assert "rows read, stopped early" in out
    assert all(line.startswith(("starting Spark", "reading t-")) or " rows (" in line for line in err.splitlines()), err
    assert "WARN" in log.read_text()
    first = int(out.split()[0])
    assert 0 < first < ROWS

    assert main([*words, "--json", "--exit-code", "3", "--rows-per-batch", "1000"]) == 3
    outcome = json.loads(capsys.readouterr().out)
    # A batch that was interrupted is read again, if its files were not seen; if they were, nobody has counted its rows.
    assert ROWS - first - BATCH_ROWS <= outcome["figures"]["rows"] < ROWS
    # Spark reads its sink's log; the interrupted batch may have left a file that is not in it, or half of one.
    assert sorted(int(row.value) for row in spark.read.parquet(str(table)).select("value").collect()) == list(range(ROWS))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--bootstrap", "127.0.0.1:1"], "no broker answers at 127.0.0.1:1: connection refused"),
        (["--fail"], "it was told to fail"),
    ],
)
def test_failure_is_one_line(words: list[str], more: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, *more]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = [line for line in said.err.splitlines() if line.startswith("tidelog: ")]
    assert line.startswith(f"tidelog: {expected}")
    assert "Spark's log" not in line


# -- flags --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    topic: str = field(metadata={"help": "What is read.", "metavar": "TOPIC"})
    group_id: str | None = None
    kafka: tuple[str, ...] = ()
    share: float = 0.5
    continuous: bool = False
    headers: bool = True


@dataclass(frozen=True)
class OfSeveral:
    topic: tuple[str, ...]


def parse(*words: str, options: type[Any] = Options) -> Any:
    found: list[Any] = []

    def called(given: Mapping[str, Any]) -> int:
        found.append(build(options, given))
        return 0

    app = typer.Typer(add_completion=False)
    app.command("sample")(function_with(parameters_of(options), called, "A sample."))
    app(list(words), standalone_mode=False)
    return found[0] if found else None


def test_defaults_are_the_dataclass_s() -> None:
    assert parse("--topic", "t") == Options("t")


def test_every_kind_of_field() -> None:
    words = [
        "--topic",
        "t",
        "--group-id",
        "g",
        "--kafka",
        "a=1",
        "--kafka",
        "b=2",
        "--share",
        "0.25",
        "--continuous",
        "--no-headers",
    ]
    assert parse(*words) == Options("t", "g", ("a=1", "b=2"), 0.25, True, False)


def test_a_field_without_a_default_is_required() -> None:
    with pytest.raises(typer.TyperException) as caught:
        parse()
    assert caught.value.format_message() == "Missing option '--topic'."


def test_at_least_one_of_several() -> None:
    assert parse("--topic", "a", "--topic", "b", options=OfSeveral) == OfSeveral(("a", "b"))
    with pytest.raises(typer.TyperException) as caught:
        parse(options=OfSeveral)
    assert caught.value.format_message() == "Missing option '--topic'."


@pytest.mark.parametrize("words", [("--share", "x"), ("--nothing", "x"), ("stray",)])
def test_nonsense_is_a_usage_error(words: tuple[str, ...]) -> None:
    with pytest.raises(typer.TyperException) as caught:
        parse("--topic", "t", *words)
    assert caught.value.exit_code == 2


def test_help_has_the_words_of_the_metadata(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    parse("--help")
    shown = capsys.readouterr().out
    assert "What is read." in shown
    assert "TOPIC" in shown
    assert "--no-headers" in shown


# -- spark-submit -------------------------------------------------------------------------------------------------------------


SUBMIT_ROWS = 300
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


# Soak: it starts Spark for itself, as spark-submit does, and that takes longer than all it shows.
@pytest.mark.soak
def test_archive_under_spark_submit(kafka: ToolkitBroker, tmp_path: Path) -> None:
    try:
        environment = {**os.environ, "JAVA_HOME": java_home(os.environ), "PYSPARK_PYTHON": sys.executable}
    except JavaMissing as error:
        pytest.skip(str(error))
    topic = create_topic(kafka.bootstrap, f"t-{secrets.token_hex(4)}", partitions=2)
    send(producer(kafka.bootstrap), topic, SUBMIT_ROWS, partitions=2)
    table = tmp_path / "table"
    submitted = [str(SPARK_SUBMIT), "--master", "local[2]", "--conf", f"spark.local.dir={tmp_path}", str(program.__file__)]
    words = ["archive", "--topic", topic, "--table", str(table), "--bootstrap", kafka.bootstrap]
    done = subprocess.run([*submitted, *words], env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{SUBMIT_ROWS} messages of {topic} archived" in done.stdout
    assert LakeTable.open(table, kind="archive").delta.to_pyarrow_table(columns=["offset"]).num_rows == SUBMIT_ROWS


def test_nonsense_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["archiv"]) == 2
    assert program.main(["archive", "--topicc", "x"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tidelog: there is no pipeline archiv: did you mean archive?"
    assert lines[1].startswith("tidelog: No such option: --topicc")
    assert len(lines) == 2


def test_no_name_shows_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 2
    assert "archive, materialize, replay" in capsys.readouterr().out


def test_nearest_is_named() -> None:
    with pytest.raises(UnknownPipeline, match=r"^there is no pipeline archiv: did you mean archive\?$"):
        load("archiv")


def test_all_are_named_when_none_is_near() -> None:
    assert hint_for("zzz", MODULES) == f": there are {', '.join(MODULES)}"
