"""The measured side: one Spark session, one connector, the lines that are asked for; JSON for each round, one to a line.

Run by the Python of whichever Spark is measured, by its path, so that it imports nothing but pyspark and the standard library:

    python jobs.py '{"format": "tidelog", "bootstrap": ..., "rounds": 3, "lines": [{"name": "sum-4", "job": "batch_sum", ...}]}'

Each line names a job, its topic with the number of rows and partitions, and what else the job needs. The first round of a line is
not counted, because Java compiles then, unless ``is_cold`` says that just this is measured.
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
# The first batches of a query start Python workers and open connections.
WARM_UP_BATCHES = 3
# Tasks of a write, and what the name of a topic that is written to ends with.
WRITERS = 4
WRITTEN = "-written"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> None:
    wanted = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("bench").master(wanted["master"])
    for name, value in wanted["config"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for line in wanted["lines"]:
        jobs = Jobs(spark, wanted, line)
        job: Callable[[], dict[str, float]] = getattr(jobs, line["job"])
        if not line.get("is_cold"):
            job()
        for _ in range(wanted["rounds"]):
            cpu_before = tree_cpu_seconds()
            found = job()
            # A job that has a part of its own to measure has done so.
            found.setdefault("cpu_seconds", tree_cpu_seconds() - cpu_before)
            print(json.dumps({"name": line["name"], "spark": spark.version, **found}), flush=True)
    spark.stop()


class Jobs:
    def __init__(self, spark: SparkSession, wanted: dict[str, Any], line: dict[str, Any]) -> None:
        self._spark = spark
        self._wanted = wanted
        self._line = line
        self._options = {"kafka.bootstrap.servers": wanted["bootstrap"], "subscribe": line["topic"]}
        self._sink = {"kafka.bootstrap.servers": wanted["bootstrap"], "topic": line["topic"] + WRITTEN, **line.get("sink", {})}

    # -- batches --------------------------------------------------------------------------------------------------------------

    def batch_sum(self) -> dict[str, float]:
        """All of the topic, or its last rows by time (``since_ms``), or its first (``first_rows``)."""
        rows = self._batch()
        if "since_ms" in self._line:
            rows = rows.where(f"timestamp >= timestamp_millis({self._line['since_ms']})")
        began = time.perf_counter()
        row = rows.selectExpr("count(1) AS rows", "sum(length(value)) AS bytes").collect()[0]
        return {"seconds": time.perf_counter() - began, "rows": row["rows"], "bytes": row["bytes"]}

    def write(self) -> dict[str, float]:
        """Exactly once by us, at least once by the stock connector: each by its defaults."""
        rows, size = self._line["rows"], self._line["value_bytes"]
        values = self._spark.range(0, rows, 1, WRITERS).selectExpr(f"rpad(cast(id AS string), {size}, 'x') AS value")
        writer = values.write.format(self._wanted["format"]).mode("append")
        began = time.perf_counter()
        writer.options(**self._sink).save()
        return {"seconds": time.perf_counter() - began, "rows": rows}

    def worker_memory(self) -> dict[str, float]:
        """The largest Python worker's greatest resident size, after a batch."""
        found = self.batch_sum()
        return {**found, "worker_bytes": max(map(peak_bytes, python_workers()), default=0)}

    # -- streams --------------------------------------------------------------------------------------------------------------

    def available_now_to_parquet(self) -> dict[str, float]:
        """The whole query, and its batches alone: a Python source has a process to start before the first one. With ``parse``,
        the values become the fields of its schema."""
        place = Path(self._wanted["directory"]) / "parquet"
        shutil.rmtree(place, ignore_errors=True)
        rows = self._stream(**self._limit())
        if "parse" in self._line:
            rows = rows.selectExpr("*", f"from_json(CAST(value AS STRING), '{self._line['parse']}') AS parsed")
            rows = rows.select("*", "parsed.*").drop("parsed")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
        began = time.perf_counter()
        query = writer.trigger(availableNow=True).start(str(place / "rows"))
        query.awaitTermination()
        seconds = time.perf_counter() - began
        batch_seconds = sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress) / 1000
        files = len(list((place / "rows").glob("**/*.parquet")))
        count = self._spark.read.parquet(str(place / "rows")).count()
        shutil.rmtree(place)
        return {"seconds": seconds, "rows": count, "batch_seconds": batch_seconds, "files": files}

    def micro_batches(self) -> dict[str, float]:
        """The median time of a batch of ``batch_rows``, into nothing."""
        return self._batches("noop", {})

    def topic_to_topic(self) -> dict[str, float]:
        return self._batches(self._wanted["format"], self._sink)

    def _batches(self, sink: str, options: dict[str, str]) -> dict[str, float]:
        """Reads the last ``batches`` times ``batch_rows`` of the topic, after batches that are not counted."""
        place = Path(self._wanted["directory"]) / "batches"
        shutil.rmtree(place, ignore_errors=True)
        per_partition = (self._line["batches"] + WARM_UP_BATCHES) * self._line["batch_rows"] // self._line["partitions"]
        begin = max(self._line["rows"] // self._line["partitions"] - per_partition, 0)
        starts = {self._line["topic"]: {str(number): begin for number in range(self._line["partitions"])}}
        rows = self._stream(startingOffsets=json.dumps(starts), **self._limit()).select("key", "value")
        writer = rows.writeStream.format(sink).options(**options).option("checkpointLocation", str(place))
        query = writer.trigger(availableNow=True).start()
        seen = 0
        # Processor time is that of the counted batches, so it begins when the others are done.
        while query.isActive and seen < WARM_UP_BATCHES:
            time.sleep(0.01)
            seen = sum(progress["numInputRows"] > 0 for progress in query.recentProgress)
        cpu_before = tree_cpu_seconds()
        query.awaitTermination()
        cpu_seconds = tree_cpu_seconds() - cpu_before
        full = [progress for progress in query.recentProgress if progress["numInputRows"] > 0]
        shutil.rmtree(place, ignore_errors=True)
        counted = full[seen:]
        seconds = statistics.median(progress["durationMs"]["triggerExecution"] for progress in counted) / 1000
        mean_rows = statistics.mean(progress["numInputRows"] for progress in counted)
        return {"seconds": seconds, "rows": mean_rows, "cpu_seconds": cpu_seconds / len(counted)}

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

    # -- sources --------------------------------------------------------------------------------------------------------------

    def _limit(self) -> dict[str, str]:
        return {"maxOffsetsPerTrigger": str(self._line["batch_rows"])} if "batch_rows" in self._line else {}

    def _batch(self) -> DataFrame:
        options = dict(self._options)
        if "first_rows" in self._line:
            end = self._line["first_rows"] // self._line["partitions"]
            ends = {self._line["topic"]: {str(number): end for number in range(self._line["partitions"])}}
            options["endingOffsets"] = json.dumps(ends)
        return self._spark.read.format(self._wanted["format"]).options(**options).load()

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
