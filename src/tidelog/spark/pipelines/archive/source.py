"""The short path for an archive without a schema: a task that reads a span of the topic writes the table's files itself.

When nothing is done to the rows in Spark, they need not travel through it: moving them from Python to Java and back costs more
than reading and writing them. ``format("tidelog_archive_files")`` plans batches as ``format("tidelog")`` does, with the same
offsets (a checkpoint of one works with the other), but a task returns one row that lists the files it wrote. ``table_sink``
commits them as if its own tasks had written them.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.spark.options import SourceOptions
from tidelog.spark.pipelines.archive.rows import FIRST_DAY, LAST_DAY, PARTITION_BY, RAW_COLUMNS
from tidelog.spark.source import SpanPartition, TidelogStreamReader, read_span
from tidelog.spark.tables.data_files import DataFileWriter, PartitionValues, partition_text, writing
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.table_sink import MESSAGE_COLUMN, TableMessage, TaskPositions
from tidelog.spark.tables.upkeep import STATS_COLUMNS

FORMAT = "tidelog_archive_files"
TABLE_OPTION = "table"


class ArchiveFilesSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return f"struct<{MESSAGE_COLUMN}:binary>"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 - Spark calls it so
        given = {name.lower(): value for name, value in dict(self.options).items()}
        place = Path(given.pop(TABLE_OPTION))
        return ArchiveFilesReader(SourceOptions.parse(given, is_stream=True), place)


class ArchiveFilesReader(TidelogStreamReader):
    def __init__(self, options: SourceOptions, place: Path) -> None:
        super().__init__(options)
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._place)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SpanPartition):
            message = write_raw(self._place, read_span(self._options, partition.span))
            yield pa.record_batch({MESSAGE_COLUMN: pa.array([message.encode()], pa.binary())})


def write_raw(place: Path, batches: Iterable[pa.RecordBatch]) -> TableMessage:
    """Write the messages that the table lacks to files."""
    table = LakeTable.open(place)
    positions = TaskPositions(table.position)
    writer = DataFileWriter(place, table.partition_by, STATS_COLUMNS)
    with writing(writer, place):
        for batch in batches:
            for rows in positions.missing(batch):
                for values, part in raw_rows(rows):
                    writer.write_part(values, part)
        return TableMessage(writer.finish(), positions.seen, positions.next)


def raw_rows(messages: pa.RecordBatch) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """The same rows as ``archive_rows`` without a schema, by the values of PARTITION_BY. No message is bad."""
    columns: Mapping[str, pa.Array] = dict(zip(messages.schema.names, messages.columns, strict=True))
    arrays = [columns[field.name] if field.name in columns else pa.nulls(len(messages), field.type) for field in RAW_COLUMNS]
    rows = pa.record_batch(arrays, schema=RAW_COLUMNS)
    for day, part in _by_day(rows):
        yield tuple({"day": partition_text(day), "bad": "false"}[name] for name in PARTITION_BY), part


def _by_day(rows: pa.RecordBatch) -> Iterator[tuple[Any, pa.RecordBatch]]:
    days = rows.column("timestamp").cast(pa.date32()).cast(pa.int32())
    extent = pc.min_max(days).as_py()
    # Nearly always all of them belong to one day.
    if extent["min"] == extent["max"] and not days.null_count:
        yield _date(extent["min"]), rows
        return
    for day in pc.unique(days).to_pylist():
        yield _date(day), rows.filter(pc.is_null(days) if day is None else pc.equal(days, day))


def _date(days: int | None) -> Any:
    """The date; None for times that have no calendar date."""
    return pa.scalar(days, pa.date32()).as_py() if days is not None and FIRST_DAY <= days <= LAST_DAY else None
