"""The source on a standalone cluster of two workers, one process each: ``make soak``.

An executor is killed in the middle of a task's rows; a task stands still in the middle of them while speculation runs it a second
time elsewhere. In the files that the query writes, every message is there once.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.client.producing import new_topic
from tests.spark.deadly_source import run_driver
from tests.spark.reading import every, places, producer, send
from tests.spark.sink.killing import EXECUTOR
from tests.spark.sink.standalone import CLUSTER_CONFIG, SPECULATION, StandaloneCluster
from tests.toolkit_broker import ToolkitBroker

pytestmark = pytest.mark.soak

ROUNDS = 3
MESSAGES = 4_000


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
