"""Processes die in the middle of a batch; an independent reader finds no gap and no duplicate. More of it is in ``test_soak``."""

import threading
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.compatibility.apache_kafka import wait_until
from tests.spark.sink.scene import DRIVER, Scene
from tests.toolkit_broker import ToolkitBroker
from tidelog.testing import Broker

STRIKE_SECONDS_MAX = 120.0


@pytest.fixture
def scene(kafka: ToolkitBroker, tmp_path: Path) -> Scene:
    return Scene(tmp_path, kafka.bootstrap)


@pytest.mark.parametrize("at", ["rows", "between_ends"])
def test_the_python_process_dies(spark: SparkSession, scene: Scene, at: str) -> None:
    """That of a task, or that of the driver's part of the sink: Spark lives, stops the query, and it is started again."""
    with pytest.raises(PySparkException):
        scene.run(spark, at)
    assert scene.once.exists()
    scene.run(spark, at)
    scene.check()


def test_the_driver_dies_between_ledger_and_end(spark: SparkSession, scene: Scene) -> None:
    assert scene.run_driver("after_record", killPids=DRIVER) != 0
    assert scene.once.exists()
    scene.run(spark, "after_record")
    scene.check()


@pytest.mark.tidelog_only
def test_the_broker_dies_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    """While a task is in the middle of its rows: nobody else notices."""
    with Broker() as broker:
        scene = Scene(tmp_path, broker.bootstrap_servers)
        back = tmp_path / "back"

        def kill() -> None:
            wait_until(scene.once.exists, "a task is in the middle of its rows", STRIKE_SECONDS_MAX)
            broker.kill()
            broker.start()
            back.touch()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            scene.run(spark, "rows", waitFor=str(back))
        finally:
            killer.join()
        scene.check()
