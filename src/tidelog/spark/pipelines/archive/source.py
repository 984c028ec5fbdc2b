"""The short path for an archive without a schema: a task that reads a span of the topic writes the table's files itself.

When nothing is done to the rows in Spark, they need not travel through it: moving them from Python to Java and back costs more
than reading and writing them. ``format("tidelog_archive_files")`` plans batches as ``format("tidelog")`` does, with the same
offsets (a checkpoint of one works with the other), but a task returns one row that lists the files it wrote. ``table_sink``
commits them as if its own tasks had written them. The plan asks the table for its positions, once for all tasks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.spark.options import SourceOptions
from tidelog.spark.pipelines.archive.rows import FIRST_DAY, LAST_DAY, PARTITION_BY, RAW_COLUMNS
from tidelog.spark.planning import OffsetSpan
from tidelog.spark.source import SpansPartition, TidelogStreamReader, read_spans
from tidelog.spark.tables.data_files import DataFileWriter, PartitionValues, partition_text, writing
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.table_sink import MESSAGE_COLUMN, TableMessage, TaskPositions, position_name
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


class ArchivePartition(SpansPartition):
    """A task's part of the work, with the table's positions at the time of the plan, so that no task has to open the table."""

    def __init__(self, spans: Sequence[OffsetSpan], positions: Mapping[str, int]) -> None:
        super().__init__(spans)
        self.positions = positions


class ArchiveFilesReader(TidelogStreamReader):
    def __init__(self, options: SourceOptions, place: Path) -> None:
        super().__init__(options)
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._place)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        tasks = [task for task in super().partitions(start, end) if isinstance(task, SpansPartition)]
        table = LakeTable.open(self._place)
        return [ArchivePartition(task.spans, _positions(table, task.spans)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ArchivePartition):
            message = write_raw(self._place, partition.positions, read_spans(self._options, partition.spans))
            yield pa.record_batch({MESSAGE_COLUMN: pa.array([message.encode()], pa.binary())})


def _positions(table: LakeTable, spans: Sequence[OffsetSpan]) -> dict[str, int]:
    names = {position_name(span.topic, span.partition) for span in spans}
    return {name: table.position(name) for name in sorted(names)}


def write_raw(place: Path, positions: Mapping[str, int], batches: Iterable[pa.RecordBatch]) -> TableMessage:
    """Write the messages that the table lacks to files. ``positions`` are the table's."""
    task = TaskPositions(positions.__getitem__)
    writer = DataFileWriter(place, PARTITION_BY, STATS_COLUMNS)
    with writing(writer, place):
        for batch in batches:
            for values, part in raw_rows(task.missing(batch)):
                writer.write_part(values, part)
        return TableMessage(writer.finish(), task.seen, task.next)


def raw_rows(messages: pa.RecordBatch) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """The same rows as ``archive_rows`` without a schema, by the values of PARTITION_BY. No message is bad."""
    if not messages.num_rows:
        return
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
