"""Many small batches into one table, as a query with short triggers leaves them: files, and what a commit costs.

The sink's own tasks and commits, without Spark around them: it would take an hour, and adds no file.
"""

import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from bench.measure import Figure
from tidelog.client.fetch.types import SCHEMA_WITH_HEADERS
from tidelog.spark.pipelines.archive.rows import PARTITION_BY, archive_columns
from tidelog.spark.pipelines.archive.source import write_raw
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.table_sink import commit_tasks
from tidelog.spark.tables.upkeep import merge_small_files

TASKS = 4
ROWS_PER_TASK = 25


class SmallBatches(NamedTuple):
    batches: int
    files_written: int
    files_left: int
    files_most: int
    first_ms: float
    """Median of a batch, tasks and commit, in the first tenth."""
    last_ms: float
    rows: int
    """That the table has in the end."""


def run(place: Path, batches: int) -> SmallBatches:
    LakeTable.ensure(place, archive_columns(None), partition_by=PARTITION_BY, identity={"kind": "archive"})
    milliseconds, most = [], 0
    for number in range(batches):
        began = time.perf_counter()
        offset = number * ROWS_PER_TASK
        told = [write_raw(place, {f"orders/{task}": offset}, [_messages(task, offset)]) for task in range(TASKS)]
        commit_tasks(place, told)
        merge_small_files(place)
        milliseconds.append((time.perf_counter() - began) * 1000)
        most = max(most, len(LakeTable.open(place).files()))
    files = LakeTable.open(place).files()
    tenth = max(batches // 10, 1)
    first, last = Figure.of(milliseconds[:tenth]).value, Figure.of(milliseconds[-tenth:]).value
    return SmallBatches(batches, batches * TASKS, len(files), most, first, last, sum(file.rows for file in files))


def _messages(partition: int, first: int) -> pa.RecordBatch:
    count = ROWS_PER_TASK
    columns = [
        pa.nulls(count, pa.binary()),
        pa.array([b"x" * 100] * count, pa.binary()),
        pa.array(["orders"] * count),
        pa.array([partition] * count, pa.int32()),
        pa.array(range(first, first + count), pa.int64()),
        pa.array([0] * count, pa.timestamp("us", "UTC")),
        pa.array([0] * count, pa.int32()),
        pa.nulls(count, SCHEMA_WITH_HEADERS.field("headers").type),
    ]
    return pa.record_batch(columns, schema=SCHEMA_WITH_HEADERS)
