"""Sources that do an archive's work in the tasks that read the topic, so that rows need not travel through Spark.

**``format("tidelog_archive_files")``** is for an archive: a task that reads a span of the topic writes the table's files itself.
When nothing is done to the rows in Spark, moving them from Python to Java and back costs more than reading and writing them. It
plans batches as ``format("tidelog")`` does, with the same offsets (a checkpoint of one works with the other), but a task returns
one row that lists the files it wrote. With a schema, it also returns the messages whose JSON it leaves to Spark
(``json_columns``): Spark judges them, and the sink writes them in the same task. ``table_sink`` commits all files together, as if
its own tasks had written them. The plan asks the table for its positions, once for all tasks. The row with the files says how
many messages the task read, because Spark counts its rows, which are few (``progress_listener``).

**``format("tidelog_json")``** is for pipelines whose rows pass through Spark: messages, and their fields if they are certain.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, StructField, StructType

from tidelog.client.fetch.types import SCHEMA_WITH_HEADERS
from tidelog.spark.data_source import schema_text
from tidelog.spark.options import SourceOptions
from tidelog.spark.pipelines.archive.json_columns import JsonColumns, as_nullable, can_parse
from tidelog.spark.pipelines.archive.rows import CERTAIN, FIELDS, FIRST_DAY, LAST_DAY, PARTITION_BY, RAW_COLUMNS
from tidelog.spark.planning import OffsetSpan
from tidelog.spark.source import SpansPartition, TidelogStreamReader, read_spans
from tidelog.spark.tables.data_files import DataFileWriter, PartitionValues, partition_text, writing
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.table_sink import MESSAGE_COLUMN, TableMessage, TaskPositions, as_in_table, position_name
from tidelog.spark.tables.upkeep import STATS_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE_OPTION, SCHEMA_OPTION = "table", "schema"


# -- messages with their fields -----------------------------------------------------------------------------------------------


JSON_FORMAT = "tidelog_json"


def messages_with_fields(spark: "SparkSession", options: Mapping[str, str], schema: StructType | None) -> "DataFrame":
    """What ``archive_rows`` takes: messages of a topic, parsed where that is possible without Spark."""
    if schema is None or not can_parse(schema):
        return spark.readStream.format("tidelog").options(**options).load()
    spark.dataSource.register(JsonSource)
    return spark.readStream.format(JSON_FORMAT).options(**options, **{SCHEMA_OPTION: schema.json()}).load()


class JsonSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return JSON_FORMAT

    def schema(self) -> StructType:
        fields = as_nullable(_schema_of(self.options))
        raw = from_arrow_schema(SCHEMA_WITH_HEADERS)
        return StructType([*raw.fields, StructField(FIELDS, fields), StructField(CERTAIN, BooleanType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 - Spark calls it so
        return JsonReader(SourceOptions.parse(_without_ours(self.options), is_stream=True), _schema_of(self.options))


class JsonReader(TidelogStreamReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options)
        self._schema = schema

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        columns = JsonColumns(self._schema)
        for batch in super().read(partition):
            parsed = columns.parse(batch.column("value"))
            schema = batch.schema.append(pa.field(FIELDS, parsed.fields.type)).append(pa.field(CERTAIN, pa.bool_()))
            yield pa.record_batch([*batch.columns, parsed.fields, parsed.is_certain], schema=schema)


def _schema_of(options: Mapping[str, str]) -> StructType:
    return StructType.fromJson(json.loads(options[SCHEMA_OPTION]))


def _without_ours(options: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower(): value for name, value in dict(options).items()}
    return {name: value for name, value in given.items() if name not in (TABLE_OPTION, SCHEMA_OPTION)}


# -- files of the table -------------------------------------------------------------------------------------------------------


FILES_FORMAT = "tidelog_archive_files"
ROWS_COLUMN = "_rows_of_task"


class ArchiveFilesSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FILES_FORMAT

    def schema(self) -> str:
        messages = f",{schema_text(True)}" if SCHEMA_OPTION in self.options else ""
        return f"struct<{MESSAGE_COLUMN}:binary,{ROWS_COLUMN}:bigint{messages}>"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 - Spark calls it so
        fields = _schema_of(self.options) if SCHEMA_OPTION in self.options else None
        place = Path(self.options[TABLE_OPTION])
        return ArchiveFilesReader(SourceOptions.parse(_without_ours(self.options), is_stream=True), place, fields)


class ArchivePartition(SpansPartition):
    """A task's part of the work, with the table's positions and columns at the time of the plan, so that no task has to open the
    table."""

    def __init__(self, spans: Sequence[OffsetSpan], positions: Mapping[str, int], columns: pa.Schema) -> None:
        super().__init__(spans)
        self.positions = positions
        self.columns = columns


class ArchiveFilesReader(TidelogStreamReader):
    def __init__(self, options: SourceOptions, place: Path, schema: StructType | None = None) -> None:
        super().__init__(options)
        self._place = place
        self._schema = schema

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._place, self._schema)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        tasks = [task for task in super().partitions(start, end) if isinstance(task, SpansPartition)]
        table = LakeTable.open(self._place)
        return [ArchivePartition(task.spans, _positions(table, task.spans), table.columns) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ArchivePartition):
            return
        batches = read_spans(self._options, partition.spans)
        if self._schema is None:
            counted = CountedBatches(batches)
            message = write_raw(self._place, partition.positions, counted)
            yield pa.record_batch([pa.array([message.encode()]), pa.array([counted.rows])], schema=_MESSAGE)
        else:
            yield from write_parsed(self._place, partition, batches, JsonColumns(self._schema))


class CountedBatches:
    """Passes batches on, and counts their rows."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


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


# The columns of rows for Spark; the message to the sink comes last.
_MESSAGE = pa.schema([pa.field(MESSAGE_COLUMN, pa.binary()), pa.field(ROWS_COLUMN, pa.int64())])
_RESULT = pa.schema([*_MESSAGE, *SCHEMA_WITH_HEADERS])


def write_parsed(
    place: Path, partition: ArchivePartition, batches: Iterable[pa.RecordBatch], columns: JsonColumns
) -> Iterator[pa.RecordBatch]:
    """Write the messages that the table lacks and whose fields are certain; return the others, and then what was written."""
    task = TaskPositions(partition.positions.__getitem__)
    writer = DataFileWriter(place, PARTITION_BY, STATS_COLUMNS)
    counted = CountedBatches(batches)
    with writing(writer, place):
        for batch in counted:
            missing = task.missing(batch)
            parsed = columns.parse(missing.column("value"))
            for values, part in raw_rows(missing.filter(parsed.is_certain), parsed.fields.filter(parsed.is_certain)):
                writer.write_part(values, as_in_table(part, partition.columns))
            uncertain = missing.filter(pc.invert(parsed.is_certain))
            if uncertain.num_rows:
                nothing = [pa.nulls(len(uncertain), kind) for kind in _MESSAGE.types]
                yield pa.record_batch([*nothing, *uncertain.columns], schema=_RESULT)
        message = TableMessage(writer.finish(), task.seen, task.next).encode()
        told = [pa.array([message]), pa.array([counted.rows])]
        yield pa.record_batch([*told, *[pa.nulls(1, kind) for kind in SCHEMA_WITH_HEADERS.types]], schema=_RESULT)


def raw_rows(messages: pa.RecordBatch, fields: pa.StructArray | None = None) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """The same rows as ``archive_rows``, by the values of PARTITION_BY. No message is bad."""
    if not messages.num_rows:
        return
    columns: Mapping[str, pa.Array] = dict(zip(messages.schema.names, messages.columns, strict=True))
    arrays = [columns[field.name] if field.name in columns else pa.nulls(len(messages), field.type) for field in RAW_COLUMNS]
    rows = pa.record_batch(arrays, schema=RAW_COLUMNS)
    if fields is not None:
        # Not ``flatten()``: for a message without a value it would return what is behind its null.
        parsed = [pc.struct_field(fields, [number]) for number in range(fields.type.num_fields)]
        rows = pa.record_batch([*arrays, *parsed], schema=pa.schema([*RAW_COLUMNS, *fields.type]))
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
