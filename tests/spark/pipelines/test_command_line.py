"""A run from the command line: Ctrl-C in the middle, and again from there; exit codes, JSON, one line for what is wrong."""

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.compatibility.apache_kafka import wait_until
from tests.spark.reading import producer, send
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.cli.main import main
from tidelog.spark.pipelines import command_line, registry

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
    monkeypatch.setitem(registry.MODULES, "sample", "tests.spark.pipelines.sample_pipeline")
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
        (["--bootstrap", "127.0.0.1:1"], "topics: no broker answers at 127.0.0.1:1"),
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
