"""An archive of Java's classes for the tests: with it, a Java that starts Spark needs half of the processor time.

The tests start a dozen of them, each to be killed. The archive is made once for a PySpark, by ``python -m
tests.spark.class_archive``, and lies in the user's cache. Java itself checks that an archive fits, and goes without one that
does not.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.spark.runtimes import JavaMissing, cache_directory, java_home
from tidelog.spark.spark_session import end_java, session

# Compiling for a long life, and collecting garbage beside the work, would be nearly half of a short life's processor time.
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SECONDS_MAX = 300.0


def java_options() -> str:
    """For SPARK_SUBMIT_OPTS."""
    archive = _place()
    return f"{SHORT_LIFE} -Xlog:disable -XX:SharedArchiveFile={archive}" if archive.is_file() else SHORT_LIFE


def ensure_archive() -> None:
    """Makes the archive unless it is there, and has the next Java use it. Tests run without one as well, only slower."""
    archive = _place()
    if not archive.is_file():
        archive.parent.mkdir(parents=True, exist_ok=True)
        draft = archive.with_name(f"{archive.name}.{os.getpid()}")
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": f"{SHORT_LIFE} -Xlog:disable -XX:ArchiveClassesAtExit={draft}"}
        command = [sys.executable, "-m", "tests.spark.class_archive"]
        root = Path(__file__).parents[2]
        # On a machine that is too busy to make one in time, the tests run without.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=_SECONDS_MAX, check=False)
        if draft.is_file():
            # Each has some 150 MB. Java goes on with one that was removed while it is in use.
            for old in archive.parent.glob("spark-*.jsa"):
                old.unlink(missing_ok=True)
            draft.replace(archive)
    os.environ["SPARK_SUBMIT_OPTS"] = java_options()


def _place() -> Path:
    """Java refuses an archive of other jars, or of another Java: each has its own."""
    home = Path(pyspark.__file__).resolve().parent
    try:
        java = java_home(os.environ)
    except JavaMissing:
        java = ""
    made_of = hashlib.sha256(f"{home} {home.stat().st_mtime_ns} {pyspark.__version__} {java}".encode()).hexdigest()[:12]
    return cache_directory(os.environ) / "tests" / f"spark-{made_of}.jsa"


class _NumbersSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "class_archive_numbers"

    def schema(self) -> str:
        return "key string, value bigint"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _NumbersReader()


class _NumbersReader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[str, int]]:
        return iter([("a", 1), ("b", 2)])


def main() -> None:
    """Some of what the tests do, so that its classes are loaded when Java ends."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        config = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": directory}
        spark = session(app_name="class archive", master="local[2]", config=config)
        spark.dataSource.register(_NumbersSource)
        rows = spark.read.format("class_archive_numbers").load()
        rows.groupBy("key").count().write.parquet(f"{directory}/batch")
        stream = spark.readStream.schema(spark.read.parquet(f"{directory}/batch").schema).parquet(f"{directory}/batch")
        writer = stream.writeStream.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
        writer.foreachBatch(lambda frame, _: frame.orderBy("key").foreach(lambda _: None)).start().awaitTermination()
        spark.stop()
        end_java()


if __name__ == "__main__":
    main()
