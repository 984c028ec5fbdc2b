"""``make demo``, smaller: all of it, from a broker to the proof; and Ctrl-C in the middle leaves nothing behind."""

import logging
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo.__main__ import EXIT_DIFFERENT, EXIT_ERROR, main
from tests.compatibility.apache_kafka import wait_until
from tests.spark.class_archive import java_options
from tidelog.spark.runtimes import JavaMissing, java_home

# On a quiet machine it takes half a minute.
SECONDS_MAX = 800
# Spark's Python workers end when they notice that their Java has.
END_SECONDS_MAX = 60
MARK = "TIDELOG_DEMO_MARK"


@pytest.fixture
def environment() -> dict[str, str]:
    """Each process of one demo can be told by it."""
    try:
        java_home(os.environ)
    except JavaMissing as error:
        pytest.skip(str(error))
    return {**os.environ, MARK: secrets.token_hex(8), "PYTHONUNBUFFERED": "1", "SPARK_SUBMIT_OPTS": java_options()}


def command(directory: Path) -> list[str]:
    return [sys.executable, "-m", "demo", "--orders", "500", "--directory", str(directory)]


def left_behind(environment: dict[str, str]) -> list[str]:
    wanted = f"{MARK}={environment[MARK]}".encode()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.timeout(SECONDS_MAX)
def test_everything_agrees(tmp_path: Path, environment: dict[str, str]) -> None:
    directory = tmp_path / "demo"
    done = subprocess.run(command(directory), env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    assert done.stdout.count("agree  ") == 9
    assert "DIFFER" not in done.stdout
    assert "500 messages of orders archived, 2 of them bad" in done.stdout
    assert (directory / "deadletters.html").is_file()
    wait_until(lambda: left_behind(environment) == [], "every process has ended", END_SECONDS_MAX)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("at", ["3  A worker", "5  archive", "8  audit"])
def test_ctrl_c_leaves_nothing_behind(at: str, tmp_path: Path, environment: dict[str, str]) -> None:
    with (tmp_path / "out").open("wb") as out:
        child = subprocess.Popen(command(tmp_path / "demo"), env=environment, stdout=out, stderr=out, start_new_session=True)
    wait_until(lambda: child.poll() is not None or at in (tmp_path / "out").read_text(), at, SECONDS_MAX)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(SECONDS_MAX) == 130
    assert (tmp_path / "out").read_text().endswith("demo: stopped; nothing is left running\n")
    wait_until(lambda: left_behind(environment) == [], "every process has ended", END_SECONDS_MAX)


def test_other_peoples_directories_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["--directory", str(tmp_path)]) == EXIT_ERROR
    assert "is not empty and not of an earlier demo" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_proof_that_fails_is_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from demo.proof import Lake

    monkeypatch.setattr("demo.__main__.analyse", lambda *_: Lake(499, 2, 0, 499, 3, 0))
    assert main(["--directory", str(tmp_path / "demo"), "--orders", "500"]) == EXIT_DIFFERENT
    assert logging.getLogger("tidelog").level == logging.NOTSET
