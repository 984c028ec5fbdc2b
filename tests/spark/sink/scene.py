"""A query over a few files, one for each batch, into a topic; in a session that is there, or in a driver process of its own."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.sink.killing import KillingDataSource
from tests.spark.sink.reader import assert_exactly_once
from tests.toolkit_broker import create_topic
from tidelog.client.transactions.admin import TransactionAdmin
from tidelog.spark.spark_session import session

FILES = 2
ROWS_PER_FILE = 500
ALL = range(FILES * ROWS_PER_FILE)
DRIVER_SECONDS_MAX = 240.0
# Instead of a number of a process: the driver puts in its own, and that of its Java.
DRIVER = "driver"


class Scene:
    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = create_topic(bootstrap, f"kills-{secrets.token_hex(4)}", partitions=2)
        self.prefix = f"kills-{secrets.token_hex(4)}"
        self.directory = directory
        self.once = directory / "once"
        (directory / "source").mkdir(parents=True)
        for number in range(FILES):
            numbers = ALL[number * ROWS_PER_FILE : (number + 1) * ROWS_PER_FILE]
            (directory / "source" / f"{number}.txt").write_text("".join(f"{each}\n" for each in numbers))

    def options(self, at: str, **more: str) -> dict[str, str]:
        where = {"bootstrap": self.bootstrap, "topic": self.topic, "transactionalIdPrefix": self.prefix}
        return {**where, "killAt": at, "killOnce": str(self.once), **more}

    def run(self, spark: SparkSession, at: str, **more: str) -> None:
        run_query(spark, self.directory, self.options(at, **more))

    def run_driver(self, at: str, *, master: str = "local[2]", config: dict[str, str] | None = None, **more: str) -> int:
        """In a process of its own; its exit code."""
        given = {"directory": str(self.directory), "master": master, "config": config or {}, "options": self.options(at, **more)}
        root = str(Path(__file__).parents[3])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        with (self.directory / "driver.out").open("ab") as output:
            command = [sys.executable, "-m", "tests.spark.sink.scene", json.dumps(given)]
            return subprocess.run(
                command, cwd=root, env=environment, stdout=output, stderr=output, timeout=DRIVER_SECONDS_MAX, check=False
            ).returncode

    def check(self) -> None:
        """No gap, no duplicate, and nothing left open."""
        assert_exactly_once(self.bootstrap, self.topic, ALL)
        with TransactionAdmin(self.bootstrap) as admin:
            listed = [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]
            assert [name for name in listed if name.startswith(self.prefix)] == []


def run_query(spark: SparkSession, directory: Path, options: dict[str, str]) -> None:
    """To the end of what is there; raises what stopped the query."""
    spark.dataSource.register(KillingDataSource)
    rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", "1").text(str(directory / "source"))
    writer = rows.repartition(2).writeStream.format("tidelog-killing").options(**options)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def main(text: str) -> None:
    given = json.loads(text)
    directory, options = Path(given["directory"]), given["options"]
    config = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR", **given["config"]}
    config |= {"spark.sql.warehouse.dir": str(directory / "warehouse"), "spark.local.dir": str(directory / "local")}
    spark = session(app_name="kills", master=given["master"], config=config)
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # started by this process
    options = {
        name: value.replace(DRIVER, f"{java},{os.getpid()}") if name == "killPids" else value for name, value in options.items()
    }
    run_query(spark, directory, options)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
