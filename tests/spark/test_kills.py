"""A driver is killed in the middle of a batch, with all that belongs to it; the next one goes on: every message is there once.

The source on a standalone cluster of two workers, one process each: ``make soak``. An executor is killed in the middle of a
task's rows; a task stands still in the middle of them while speculation runs it a second time elsewhere. In the files that the
query writes, every message is there once.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.client.producing import new_topic
from tests.compatibility.apache_kafka import wait_until
from tests.spark.deadly_source import run_driver
from tests.spark.reading import Source, every, places, producer, send
from tests.spark.sink.killing import EXECUTOR
from tests.spark.sink.standalone import CLUSTER_CONFIG, SPECULATION, StandaloneCluster
from tests.toolkit_broker import ToolkitBroker

START_SECONDS_MAX = 200.0


def is_in_batch(checkpoint: Path, first: int) -> bool:
    """A batch is planned and not done: this one or a later one, for whoever looks now and then may miss one."""
    planned = [int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")]
    return max(planned, default=-1) >= first and not (checkpoint / "commits" / str(max(planned))).exists()


def test_a_driver_is_killed_in_the_middle_of_a_batch(spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path) -> None:
    source = Source(spark, kafka.bootstrap, new_topic(kafka, partitions=2))
    output, checkpoint = tmp_path / "output", tmp_path / "checkpoint"
    sender = producer(kafka.bootstrap)
    send(sender, source.topic, 2000, partitions=2)
    command = [sys.executable, "-m", "tests.spark.driver", kafka.bootstrap, source.topic]
    places_given = [str(output), str(checkpoint), str(tmp_path / "local")]
    with open(tmp_path / "driver.log", "wb") as log:
        driver = subprocess.Popen([*command, *places_given], stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(
            lambda: is_in_batch(checkpoint, 2), "the driver is in its third batch, or beyond", seconds_max=START_SECONDS_MAX
        )
    finally:
        # Spark's Java, which is the driver in truth, is in the group of the process that started it.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert not (checkpoint / "commits" / "19").exists()
    source.available(str(output), str(checkpoint))
    assert places(spark.read.parquet(str(output))) == every(2, 1000)
    send(sender, source.topic, 100, first=2000, partitions=2)
    source.available(str(output), str(checkpoint))
    assert places(spark.read.parquet(str(output))) == every(2, 1050)


ROUNDS = 3
MESSAGES = 4_000


@pytest.mark.soak
@pytest.mark.parametrize(
    ("config", "how"),
    [({}, {"killPids": EXECUTOR}), (SPECULATION, {"waitFor": "never"})],
    ids=["an executor is killed", "a task is run twice"],
)
def test_every_message_once(
    spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path, config: Mapping[str, str], how: Mapping[str, str]
) -> None:
    with StandaloneCluster(tmp_path) as cluster:
        for number in range(ROUNDS):
            topic = new_topic(kafka, partitions=2)
            send(producer(kafka.bootstrap), topic, MESSAGES, partitions=2)
            directory = tmp_path / str(number)
            directory.mkdir()
            once = directory / "once"
            options = {"bootstrap": kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest", "killOnce": str(once)}
            options |= {"maxOffsetsPerTrigger": str(MESSAGES // 2), **how}
            assert run_driver(directory, cluster.master, {**CLUSTER_CONFIG, **config}, options) == 0
            assert once.exists(), "nothing was struck"
            assert places(spark.read.parquet(str(directory / "output"))) == every(2, MESSAGES // 2)
