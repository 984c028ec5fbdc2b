"""A materialized table that is read anew in every micro-batch, at its newest version: ``format("tidelog_materialized")``.

Spark plans the still side of a join once for the life of a query: files that are listed then are the table of that day, and gone
when a vacuum has removed them. What it does in every batch is run the tasks. So the plan here is the buckets, which a table has
for life, and a task opens the table and reads what its buckets hold now. Two tasks may see two versions, a row is in one of them.

Options: ``path``, ``columns`` (with commas) and ``tasks``, at most so many.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidelog.spark.pipelines.materialize_rows import BUCKET
from tidelog.spark.tables.lake_table import LakeTable

FORMAT = "tidelog_materialized"
KIND = "materialize"


class BucketsPartition(InputPartition):
    """Plain data: Spark carries it to the task."""

    def __init__(self, buckets: Sequence[int]) -> None:
        self.buckets = list(buckets)


class MaterializedTable(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(columns_of(LakeTable.open(self.options["path"], kind=KIND), self._names()))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - it is our own
        return BucketsReader(self.options["path"], self._names(), int(self.options["tasks"]))

    def _names(self) -> list[str]:
        return str(self.options["columns"]).split(",")


class BucketsReader(DataSourceReader):
    def __init__(self, path: str, names: Sequence[str], tasks: int) -> None:
        self._path = path
        self._names = list(names)
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        buckets = int(LakeTable.open(self._path, kind=KIND).identity["buckets"])
        return [BucketsPartition(range(first, buckets, self._tasks)) for first in range(min(self._tasks, buckets))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BucketsPartition)
        yield from newest_rows(self._path, self._names, partition.buckets)


def newest_rows(path: str, names: Sequence[str], buckets: Sequence[int]) -> Iterator[pa.RecordBatch]:
    table = LakeTable.open(path, kind=KIND)
    schema = columns_of(table, names)
    wanted = {str(bucket) for bucket in buckets}
    files = [str(table.place / file.path) for file in table.files() if file.partition_values[BUCKET] in wanted]
    if files:
        # A column that was added later is null in older files.
        yield from ds.dataset(files, schema=schema, format="parquet").to_batches()


def columns_of(table: LakeTable, names: Sequence[str]) -> pa.Schema:
    return pa.schema([table.columns.field(name) for name in names])
