"""The measured side: archives a topic in a Spark session of its own, several times; a line of JSON for each.

    python -m bench.pipelines.archive_job '{"bootstrap": ..., "topic": ..., "rounds": 3, "directory": ..., "config": {...}}'

The first round is not counted: Java compiles what it needs.
"""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bench.spark.jobs import tree_cpu_seconds
from tidelog.spark.pipelines import archive
from tidelog.spark.pipelines.archive.pipeline import ArchiveOptions
from tidelog.spark.pipelines.pipeline import Silent
from tidelog.spark.spark_session import session


def main() -> None:
    wanted = json.loads(sys.argv[1])
    spark = session(app_name="bench", master=wanted["master"], config=wanted["config"])
    for number in range(wanted["rounds"] + 1):
        place = Path(wanted["directory"]) / "table"
        shutil.rmtree(place, ignore_errors=True)
        options = ArchiveOptions(
            topic=(wanted["warm_up"] if number == 0 else wanted["topic"],),
            table=str(place),
            bootstrap=wanted["bootstrap"],
            schema=wanted.get("schema"),
        )
        found = _measured(spark, options)
        if number:
            print(json.dumps({"job": "archive", "spark": spark.version, **found}), flush=True)
        shutil.rmtree(place)
    spark.stop()


def _measured(spark: Any, options: ArchiveOptions) -> dict[str, float]:
    began, cpu_before = time.perf_counter(), tree_cpu_seconds()
    outcome = archive.run(spark, options, Silent())
    seconds, cpu_seconds = time.perf_counter() - began, tree_cpu_seconds() - cpu_before
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "rows": float(outcome.figures["rows"])}


if __name__ == "__main__":
    main()
