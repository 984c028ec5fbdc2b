"""The measured side: archives a topic in a Spark session of its own, several times; a line of JSON for each.

    python -m bench.pipelines.archive_job '{"bootstrap": ..., "topic": ..., "rounds": 3, "directory": ..., "config": {...}}'

``options`` are the pipeline's. With ``warm_up``, the name of a topic, a round of that one comes first and is not counted: Java
compiles what it needs. Without it everything counts, the start of the session too.
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
    warm_up = [wanted["warm_up"]] if wanted["warm_up"] else []
    for number, topic in enumerate([*warm_up, *[wanted["topic"]] * wanted["rounds"]]):
        place = Path(wanted["directory"]) / "table"
        shutil.rmtree(place, ignore_errors=True)
        options = ArchiveOptions(topic=(topic,), table=str(place), bootstrap=wanted["bootstrap"], **wanted["options"])
        found = _measured(spark, options)
        if number >= len(warm_up):
            whole = {} if warm_up else {"cpu_seconds": tree_cpu_seconds()}
            print(json.dumps({"spark": spark.version, **found, **whole}), flush=True)
        shutil.rmtree(place)
    spark.stop()


def _measured(spark: Any, options: ArchiveOptions) -> dict[str, float]:
    began, cpu_before = time.perf_counter(), tree_cpu_seconds()
    outcome = archive.run(spark, options, Silent())
    seconds, cpu_seconds = time.perf_counter() - began, tree_cpu_seconds() - cpu_before
    rows, files = (float(outcome.figures[name]) for name in ("rows", "files"))
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "rows": rows, "files": files}


if __name__ == "__main__":
    main()
