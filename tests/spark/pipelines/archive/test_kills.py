"""A driver of archive is killed with all that belongs to it; the next run goes on, and every message is in the table once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

import pytest
from pyspark.sql import SparkSession

from tests.spark.pipelines.archive.killing import POINTS
from tests.spark.reading import every, places, producer, send
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.spark.pipelines import archive
from tidelog.spark.pipelines.archive.pipeline import ArchiveOptions
from tidelog.spark.pipelines.pipeline import Silent
from tidelog.spark.tables.lake_table import LakeTable

ROWS = 400
DRIVER_SECONDS_MAX = 240.0
SCHEMA = "id BIGINT"


def kill(bootstrap: str, topic: str, table: Path, at: str, schema: str | None) -> None:
    given = {"bootstrap": bootstrap, "topic": topic, "table": str(table), "at": at, "schema": schema}
    root = str(Path(__file__).parents[4])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    with (table.parent / "driver.log").open("ab") as log:
        command = [sys.executable, "-m", "tests.spark.pipelines.archive.killing", json.dumps(given)]
        ended = subprocess.run(
            command, cwd=root, env=environment, stdout=log, stderr=log, timeout=DRIVER_SECONDS_MAX, check=False
        )
    assert ended.returncode == -9, (table.parent / "driver.log").read_text()[-3000:]


def killed_and_run_again(spark: SparkSession, bootstrap: str, directory: Path, at: str, schema: str | None) -> None:
    topic = create_topic(bootstrap, f"archive-{token_hex(4)}", partitions=2)
    # Good and bad in turns, so that with a schema both ways into the table have rows of every task.
    for first in range(0, ROWS, 50):
        send(producer(bootstrap), topic, 50, first=first, partitions=2, value=b'{"id": %d}' if first % 100 else b"%d")
    table = directory / "table"
    kill(bootstrap, topic, table, at, schema)
    written = sum(file.rows for file in LakeTable.open(table).files())
    assert written == (200 if at == "after_commit" else 0)
    options = ArchiveOptions(topic=(topic,), table=str(table), bootstrap=bootstrap, schema=schema, batch_rows=200)
    outcome = archive.run(spark, options, Silent())
    assert outcome.figures["rows"] == ROWS - written
    rows = LakeTable.open(table).frame(spark)
    assert places(rows) == every(2, ROWS // 2)
    assert rows.where("NOT bad").count() == (ROWS // 2 if schema else ROWS)


def test_after_the_commit_before_spark_knows_of_it(spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path) -> None:
    """The batch runs again, and the table says that it has all of it."""
    killed_and_run_again(spark, kafka.bootstrap, tmp_path, "after_commit", SCHEMA)


@pytest.mark.soak
@pytest.mark.parametrize("schema", [None, SCHEMA])
@pytest.mark.parametrize("at", POINTS)
def test_at_each_point(spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path, at: str, schema: str | None) -> None:
    killed_and_run_again(spark, kafka.bootstrap, tmp_path, at, schema)
