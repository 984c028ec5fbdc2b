"""The measured side: one Spark session, one connector, the jobs that are asked for; a line of JSON for each round.

Run by the Python of whichever Spark is measured, by its path, so that it imports nothing but pyspark and the standard library:

    python jobs.py '{"format": "tidelog", "bootstrap": ..., "topic": ..., "jobs": [...], "rounds": 3, ...}'
"""

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

# So many triggers without anything new, and how long to wait for them at most.
EMPTY_TRIGGERS = 50
EMPTY_SECONDS_MAX = 60.0
# Tasks of a write, and what the name of its topic ends with.
WRITERS = 4
WRITTEN = "-written"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> None:
    wanted = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("bench").master(wanted["master"])
    for name, value in wanted["config"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    jobs = Jobs(spark, wanted)
    for name in wanted["jobs"]:
        job: Callable[[], dict[str, float]] = getattr(jobs, name)
        job()  # Until Java has compiled what it needs.
        for _ in range(wanted["rounds"]):
            cpu_before = tree_cpu_seconds()
            found = job()
            found["cpu_seconds"] = tree_cpu_seconds() - cpu_before
            print(json.dumps({"job": name, "spark": spark.version, **found}), flush=True)
    spark.stop()


class Jobs:
    def __init__(self, spark: SparkSession, wanted: dict[str, Any]) -> None:
        self._spark = spark
        self._wanted = wanted
        self._options = {"kafka.bootstrap.servers": wanted["bootstrap"], "subscribe": wanted["topic"]}

    def batch_sum(self) -> dict[str, float]:
        began = time.perf_counter()
        row = self._batch().selectExpr("count(1) AS rows", "sum(length(value)) AS bytes").collect()[0]
        return {"seconds": time.perf_counter() - began, "rows": row["rows"], "bytes": row["bytes"]}

    def available_now_to_parquet(self) -> dict[str, float]:
        """The whole query, and its batches alone: a Python source has a process to start before the first one."""
        place = Path(self._wanted["directory"]) / "parquet"
        shutil.rmtree(place, ignore_errors=True)
        writer = self._stream().writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
        began = time.perf_counter()
        query = writer.trigger(availableNow=True).start(str(place / "rows"))
        query.awaitTermination()
        seconds = time.perf_counter() - began
        batch_seconds = sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress) / 1000
        rows = self._spark.read.parquet(str(place / "rows")).count()
        shutil.rmtree(place)
        return {"seconds": seconds, "rows": rows, "batch_seconds": batch_seconds}

    def empty_trigger(self) -> dict[str, float]:
        """The median time of a trigger that finds nothing new, as Spark reports it."""
        place = Path(self._wanted["directory"]) / "empty"
        shutil.rmtree(place, ignore_errors=True)
        writer = self._stream(startingOffsets="latest").writeStream.format("noop").option("checkpointLocation", str(place))
        query = writer.start()
        deadline = time.monotonic() + EMPTY_SECONDS_MAX
        milliseconds: dict[str, float] = {}
        while len(milliseconds) < EMPTY_TRIGGERS and time.monotonic() < deadline:
            for progress in query.recentProgress:
                if progress["numInputRows"] == 0 and "addBatch" not in progress["durationMs"]:
                    milliseconds[progress["timestamp"]] = progress["durationMs"]["triggerExecution"]
            time.sleep(0.1)
        query.stop()
        shutil.rmtree(place, ignore_errors=True)
        return {"seconds": statistics.median(milliseconds.values()) / 1000, "rows": len(milliseconds)}

    def write(self) -> dict[str, float]:
        """Exactly once by us, at least once by the stock connector: each by its defaults."""
        rows, size = self._wanted["rows"], self._wanted["value_bytes"]
        values = self._spark.range(0, rows, 1, WRITERS).selectExpr(f"rpad(cast(id AS string), {size}, 'x') AS value")
        writer = values.write.format(self._wanted["format"]).mode("append")
        options = {"kafka.bootstrap.servers": self._wanted["bootstrap"], "topic": self._wanted["topic"] + WRITTEN}
        began = time.perf_counter()
        writer.options(**options).save()
        return {"seconds": time.perf_counter() - began, "rows": rows}

    def worker_memory(self) -> dict[str, float]:
        """The largest Python worker's greatest resident size, after a batch."""
        found = self.batch_sum()
        return {**found, "worker_bytes": max(map(peak_bytes, python_workers()), default=0)}

    def _batch(self) -> DataFrame:
        return self._spark.read.format(self._wanted["format"]).options(**self._options).load()

    def _stream(self, **more: str) -> DataFrame:
        options = {**self._options, "startingOffsets": "earliest", **more}
        return self._spark.readStream.format(self._wanted["format"]).options(**options).load()


def tree() -> list[int]:
    """This process and all that come from it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int(_stat(path)[1])
        except OSError:
            continue
    found = [os.getpid()]
    for process_id in found:
        found += [child for child, parent in parents.items() if parent == process_id]
    return found


def tree_cpu_seconds() -> float:
    """Of all of them, with their children that have ended."""
    ticks = 0
    for process_id in tree():
        try:
            ticks += sum(int(field) for field in _stat(Path(f"/proc/{process_id}"))[11:15])
        except OSError:
            continue
    return ticks / _TICKS_PER_SECOND


def python_workers() -> list[int]:
    found = []
    for process_id in tree():
        try:
            command = Path(f"/proc/{process_id}/cmdline").read_bytes()
        except OSError:
            continue
        if b"pyspark.daemon" in command:
            found.append(process_id)
    return found


def peak_bytes(process_id: int) -> int:
    try:
        lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def _stat(path: Path) -> list[str]:
    """From the state on: what is before it may have blanks in it."""
    return (path / "stat").read_text().rpartition(")")[2].split()


if __name__ == "__main__":
    main()
