"""Processes die in the middle of a batch; an independent reader finds no gap and no duplicate. Soaks have more of it.

Thirty rounds of kills, each with a query of its own: ``make soak``. Drivers of their own, killed -9 at each point in turn;
brokers killed at the same points; and on a standalone cluster of two workers an executor killed, and tasks that stand still while
speculation runs them a second time elsewhere.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.compatibility.apache_kafka import wait_until
from tests.spark.sink.killing import EXECUTOR, POINTS
from tests.spark.sink.scene import DRIVER, Scene
from tests.spark.sink.standalone import CLUSTER_CONFIG, SPECULATION, StandaloneCluster
from tests.toolkit_broker import ToolkitBroker
from tidelog.spark.runtimes import JavaMissing, java_home
from tidelog.testing import Broker

STRIKE_SECONDS_MAX = 200.0


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


ROUNDS_OF_DRIVERS = 14
ROUNDS_OF_BROKERS = 6
ROUNDS_OF_EXECUTORS = 5
ROUNDS_OF_SPECULATION = 5


@pytest.fixture(autouse=True)
def _java() -> None:
    try:
        java_home({})
    except JavaMissing as error:
        pytest.skip(str(error))


def rounds(directory: Path, count: int, one: Callable[[Scene, Broker, int], None]) -> None:
    with Broker() as broker:
        for number in range(count):
            scene = Scene(directory / str(number), broker.bootstrap_servers)
            one(scene, broker, number)
            assert scene.once.exists(), "nothing was struck"
            scene.check()


@pytest.mark.soak
def test_drivers(tmp_path: Path) -> None:
    def one(scene: Scene, _: Broker, number: int) -> None:
        at = POINTS[number % len(POINTS)]
        assert scene.run_driver(at, killPids=DRIVER) != 0
        assert scene.run_driver(at) == 0

    rounds(tmp_path, ROUNDS_OF_DRIVERS, one)


@pytest.mark.soak
def test_brokers(tmp_path: Path) -> None:
    def one(scene: Scene, broker: Broker, number: int) -> None:
        back = scene.directory / "back"

        def kill() -> None:
            wait_until(scene.once.exists, "it is the time to strike", STRIKE_SECONDS_MAX)
            broker.kill()
            broker.start()
            back.touch()

        killer = threading.Thread(target=kill)
        killer.start()
        assert scene.run_driver(POINTS[number % len(POINTS)], waitFor=str(back)) == 0
        killer.join()

    rounds(tmp_path, ROUNDS_OF_BROKERS, one)


@pytest.mark.soak
def test_executors(tmp_path: Path) -> None:
    with StandaloneCluster(tmp_path) as cluster:

        def one(scene: Scene, _: Broker, number: int) -> None:
            assert scene.run_driver("rows", master=cluster.master, config=CLUSTER_CONFIG, killPids=EXECUTOR) == 0

        rounds(tmp_path, ROUNDS_OF_EXECUTORS, one)


@pytest.mark.soak
def test_speculation(tmp_path: Path) -> None:
    """A task that stands still in the middle of its rows is run again elsewhere; the first of the two is ended."""
    with StandaloneCluster(tmp_path) as cluster:

        def one(scene: Scene, _: Broker, number: int) -> None:
            config = {**CLUSTER_CONFIG, **SPECULATION}
            assert scene.run_driver("rows", master=cluster.master, config=config, waitFor=str(scene.directory / "never")) == 0

        rounds(tmp_path, ROUNDS_OF_SPECULATION, one)
