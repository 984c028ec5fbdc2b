"""A source that dies, or stands still, in the middle of a task's rows, once; and a driver of its own that reads it into files.

``format("tidelog-deadly")`` with the options of ``tests.spark.sink.killing``. As a program it takes one argument, JSON: master,
config, options, output, checkpoint.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tests.spark.conftest import config_in
from tests.spark.reading import start
from tests.spark.sink.killing import Plan
from tidelog.spark.data_source import TidelogDataSource, schema_text
from tidelog.spark.options import SourceOptions
from tidelog.spark.source import TidelogStreamReader
from tidelog.spark.spark_session import session

ROOT = str(Path(__file__).parents[2])
# A soak is not about time.
DRIVER_SECONDS_MAX = 900.0


class DeadlyDataSource(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog-deadly"

    def schema(self) -> str:
        return f"struct<{schema_text(include_headers=False)}>"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the name that Spark calls
        given = {name.lower(): value for name, value in dict(self.options).items()}
        pids = tuple(each for each in given.pop("killpids", "").split(",") if each)
        plan = Plan("rows", given.pop("killonce"), pids, given.pop("waitfor", ""))
        return DeadlyReader(SourceOptions.parse(given, is_stream=True), plan)


class DeadlyReader(TidelogStreamReader):
    def __init__(self, options: SourceOptions, death: Plan) -> None:
        super().__init__(options)
        self._death = death

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._death)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            self._death.strike()
            yield batch.slice(half)


def run_driver(directory: Path, master: str, config: Mapping[str, str], options: Mapping[str, str]) -> int:
    """Everything that is there into files under ``directory``; the exit code."""
    given = {"master": master, "config": dict(config), "options": dict(options)}
    given |= {name: str(directory / name) for name in ("output", "checkpoint", "local")}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])}
    with (directory / "driver.out").open("ab") as log:
        command = [sys.executable, "-m", "tests.spark.deadly_source", json.dumps(given)]
        return subprocess.run(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=DRIVER_SECONDS_MAX, check=False
        ).returncode


def main(text: str) -> None:
    given = json.loads(text)
    config = {**config_in(given["local"]), "spark.log.level": "ERROR", **given["config"]}
    spark = session(app_name="deadly", master=given["master"], config=config)
    spark.dataSource.register(DeadlyDataSource)
    rows = spark.readStream.format("tidelog-deadly").options(**given["options"]).load()
    start(rows, given["output"], given["checkpoint"], available_now=True).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
