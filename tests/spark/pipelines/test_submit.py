"""The same command under ``spark-submit``, and as a module."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.spark.reading import producer, send
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.spark.java import JavaMissing, java_home
from tidelog.spark.pipelines import __main__ as program
from tidelog.spark.tables.lake_table import LakeTable

ROWS = 300
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


# Soak: it starts Spark for itself, as spark-submit does, and that takes longer than all it shows.
@pytest.mark.soak
def test_archive_under_spark_submit(kafka: ToolkitBroker, tmp_path: Path) -> None:
    try:
        environment = {**os.environ, "JAVA_HOME": java_home(os.environ), "PYSPARK_PYTHON": sys.executable}
    except JavaMissing as error:
        pytest.skip(str(error))
    topic = create_topic(kafka.bootstrap, f"t-{secrets.token_hex(4)}", partitions=2)
    send(producer(kafka.bootstrap), topic, ROWS, partitions=2)
    table = tmp_path / "table"
    submitted = [str(SPARK_SUBMIT), "--master", "local[2]", "--conf", f"spark.local.dir={tmp_path}", str(program.__file__)]
    words = ["archive", "--topic", topic, "--table", str(table), "--bootstrap", kafka.bootstrap]
    done = subprocess.run([*submitted, *words], env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{ROWS} messages of {topic} archived" in done.stdout
    assert LakeTable.open(table, kind="archive").delta.to_pyarrow_table(columns=["offset"]).num_rows == ROWS


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
