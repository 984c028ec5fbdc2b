"""One Spark session for all tests that want one, and all of those in one process: it is large, and slow to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.class_archive import ensure_archive
from tidelog.spark.runtimes import JavaMissing
from tidelog.spark.spark_session import session

CONFIG = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.log.level": "OFF",
}


# A test that starts a Java of its own beside others takes minutes; what hangs is ended all the same. A soak has no limit.
TEST_SECONDS_MAX = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        has_its_own = item.get_closest_marker("timeout") or item.get_closest_marker("soak")
        if item.path.is_relative_to(Path(__file__).parent) and not has_its_own:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS_MAX))


def config_in(directory: str) -> dict[str, str]:
    """Whatever Spark writes for itself goes there, and not to where the tests were started."""
    return {**CONFIG, "spark.local.dir": directory, "spark.sql.warehouse.dir": f"{directory}/warehouse"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        ensure_archive()
        opened = session(app_name="tests", master="local[2]", config=config_in(str(tmp_path_factory.mktemp("spark"))))
    except JavaMissing as error:
        pytest.skip(str(error))
    yield opened
    opened.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
