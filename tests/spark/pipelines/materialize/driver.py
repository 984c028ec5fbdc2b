"""A driver of ``materialize`` in a process group of its own, which kills itself at its second merge.

Arguments: bootstrap servers, topic, table, temporary directory, and whether it dies ``before`` or ``after`` the merge.
"""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.spark.conftest import config_in
from tests.spark.pipelines.materialize.customers import SCHEMA
from tidelog.spark.pipelines.materialize import batches as batches_module
from tidelog.spark.pipelines.materialize.batches import MergeCounts, merge
from tidelog.spark.pipelines.materialize.pipeline import MaterializeOptions, run
from tidelog.spark.pipelines.pipeline import Silent
from tidelog.spark.spark_session import session
from tidelog.spark.tables.lake_table import LakeTable

merges = 0


def main() -> None:
    bootstrap, topic, place, local, point = sys.argv[1:]

    def deadly_merge(table: LakeTable, newest: Path, positions: Mapping[str, int]) -> MergeCounts:
        global merges
        merges += 1
        if merges == 2 and point == "before":
            die()
        merged = merge(table, newest, positions)
        if merges == 2 and point == "after":
            die()
        return merged

    setattr(batches_module, "merge", deadly_merge)  # noqa: B010 - it is not exported, and an assignment would be a mistake
    spark = session(app_name="driver", master="local[2]", config=config_in(local))
    options = MaterializeOptions(topic=topic, table=place, bootstrap=bootstrap, schema=SCHEMA, buckets=4, batch_rows=100)
    run(spark, options, Silent())


def die() -> None:
    """With Spark's Java, which is in the same group."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
