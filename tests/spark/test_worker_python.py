"""Workers load the PySpark that is installed, not the one in Spark's zip, and are this Python in all else."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tidelog.spark.worker_python import worker_python

LIBRARY = Path(pyspark.__file__).parent / "python" / "lib"
SHOW = "import os, sys, pyspark; print(pyspark.__file__); print(sys.executable); print(os.environ['PYTHONPATH']); print(sys.argv)"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "the cache"), "PATH": os.environ["PATH"]}


def test_zips_of_spark_are_left_out_and_the_rest_is_as_it_was(environment: dict[str, str]) -> None:
    zips = sorted(map(str, LIBRARY.glob("*.zip")))
    assert zips
    given = {**environment, "PYTHONPATH": ":".join([*zips, "/two words", "/*", "/other/pyspark.zip"])}
    command = [worker_python(environment), "-c", SHOW, "an argument", "$HOME *"]
    said = subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [pyspark.__file__, sys.executable, "/two words:/*:/other/pyspark.zip", str(["-c", "an argument", "$HOME *"])]


def test_a_script_is_written_once_and_each_python_has_its_own(environment: dict[str, str]) -> None:
    first = Path(worker_python(environment))
    written = first.stat().st_mtime_ns
    assert worker_python(environment) == str(first)
    assert first.stat().st_mtime_ns == written
    assert worker_python(environment, "/another/python") != str(first)
    assert len(list(first.parent.iterdir())) == 2


def test_another_spark_has_its_own_zips(environment: dict[str, str], tmp_path: Path) -> None:
    assert worker_python({**environment, "SPARK_HOME": str(tmp_path)}) == sys.executable
    assert worker_python({**environment, "SPARK_HOME": str(Path(pyspark.__file__).parent)}) != sys.executable


def test_without_a_place_for_the_script_python_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path / "file")}) == sys.executable
