"""``format("tidelog_table")``: rows of topics into a Delta table, each exactly once, from a stream or a batch.

Option ``path`` is the table, which is there already (``LakeTable.ensure``). Rows have the columns ``topic``, ``partition`` and
``offset``, and any others of the table. Option ``run``, a number, is noted in the commits: so a run finds its own among others'.

Tasks ask the table how far it has come, leave out what it has, and write the rest to Parquet files that belong to nobody yet. The
driver commits all files of a batch and the new positions at once. So whatever is done again after a crash, or under a new
checkpoint, finds its rows in the table; and of two runs at a time one is refused. Files of a batch that was not committed are
orphans: nobody sees them, and a vacuum removes them (not ``abort``: a commit that failed may have come through). Small files are
merged after a commit (``upkeep``).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.tables.data_files import DataFile, DataFileWriter, writing
from tidelog.spark.tables.errors import WrongSchema
from tidelog.spark.tables.lake_table import LakeTable, local_path
from tidelog.spark.tables.positions import PLACE_COLUMNS, Positions
from tidelog.spark.tables.upkeep import STATS_COLUMNS, merge_after_commit

FORMAT = "tidelog_table"
MESSAGE_COLUMN = "message"
"""Rows with this column alone are messages of tasks that wrote the files themselves."""
RUN = "run"
BAD = "bad"
"""Where a table is partitioned by such a column, rows with it are counted by themselves."""


class TableMessage(WriterCommitMessage):
    """From a task to the driver."""

    def __init__(self, files: Sequence[DataFile], seen: Mapping[str, int], following: Mapping[str, int]) -> None:
        self.files = files
        self.seen = seen
        self.next = following

    def encode(self) -> bytes:
        return json.dumps([self.files, self.seen, self.next]).encode()

    @classmethod
    def decode(cls, data: bytes) -> "TableMessage":
        files, seen, following = json.loads(data)
        return cls([DataFile(*file) for file in files], seen, following)


class TidelogTableSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchTableWriter(_checked_path(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        return StreamTableWriter(_checked_path(self.options, schema, overwrite), int(dict(self.options).get(RUN, 0)))


class StreamTableWriter(DataSourceStreamArrowWriter):
    def __init__(self, place: Path, run: int = 0) -> None:
        self._place = place
        self._run = run

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TableMessage:
        return write_task(self._place, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark calls it so; positions say what is new
        commit_tasks(self._place, messages, self._run)


class BatchTableWriter(DataSourceArrowWriter):
    def __init__(self, place: Path) -> None:
        self._place = place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TableMessage:
        return write_task(self._place, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit_tasks(self._place, messages)


def _checked_path(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Path:
    given = {name.lower(): value for name, value in dict(options).items()}
    if "path" not in given:
        raise InvalidArgument("option path is missing: the directory of the table")
    if overwrite:
        raise InvalidArgument('a table of topics only grows: use mode("append"), or outputMode("append")')
    place = local_path(given["path"])
    if schema.names == [MESSAGE_COLUMN]:
        return place
    if missing := [name for name in PLACE_COLUMNS if name not in schema.names]:
        raise WrongSchema(f"the rows have no column {missing[0]}: without it nobody can tell which of them the table has already")
    columns = LakeTable.open(place).columns
    if strange := [name for name in schema.names if name not in columns.names]:
        raise WrongSchema(f"the table {place} has no column {strange[0]}: leave it out, or add it to the table first")
    return place


def write_task(place: Path, batches: Iterator[pa.RecordBatch]) -> TableMessage:
    """On an executor: the rows that the table lacks, as files."""
    first = next(batches, None)
    if first is None or first.schema.names == [MESSAGE_COLUMN]:
        return gathered(chain(() if first is None else (first,), batches))
    batches = chain((first,), batches)
    table = LakeTable.open(place)
    positions = Positions(table.position)
    writer = DataFileWriter(place, table.partition_by, STATS_COLUMNS)
    columns = table.columns
    with writing(writer, place):
        for batch in batches:
            for rows in positions.missing(batch):
                writer.write(as_in_table(rows, columns))
        return TableMessage(writer.finish(), positions.seen, positions.next)


def gathered(batches: Iterable[pa.RecordBatch]) -> TableMessage:
    """What other tasks told, as one."""
    told = [TableMessage.decode(data) for batch in batches for data in batch.column(MESSAGE_COLUMN).to_pylist()]
    # Where they do not agree the table has moved on from the least of them: the driver refuses it.
    seen = {name: min(positions) for name, positions in seen_by_tasks(told).items()}
    return TableMessage([file for message in told for file in message.files], seen, furthest(told))


def seen_by_tasks(messages: Iterable[TableMessage]) -> dict[str, set[int]]:
    """Where the table stood for those that add to it. A partition is several tasks, and each of them asked at its own time."""
    seen: dict[str, set[int]] = {}
    for message in messages:
        for name in message.next:
            seen.setdefault(name, set()).add(message.seen[name])
    return seen


def furthest(messages: Iterable[TableMessage]) -> dict[str, int]:
    positions: dict[str, int] = {}
    for message in messages:
        for name, position in message.next.items():
            positions[name] = max(positions.get(name, 0), position)
    return positions


def as_in_table(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """By the table's types and in its order: Spark gives times the zone of the session, and lists names of its own."""
    schema = pa.schema([field for field in columns if field.name in rows.schema.names])
    return pa.record_batch([rows.column(field.name).cast(field.type) for field in schema], schema=schema)


def commit_tasks(place: Path, messages: Sequence[WriterCommitMessage | None], run: int = 0) -> None:
    """On the driver: what all tasks wrote, at once."""
    told = [message for message in messages if isinstance(message, TableMessage)]
    files = [file for message in told for file in message.files]
    if not files:
        return
    bad_rows = sum(file.rows for file in files if file.partition_values.get(BAD) == "true")
    table = LakeTable.open(place)
    seen = seen_by_tasks(told)
    for name, positions in seen.items():
        if len(positions) > 1:
            raise table.conflict(f"{name} went from {min(positions)} to {max(positions)} while tasks of the batch ran")
    table.append(
        files,
        furthest(told),
        expected={name: min(positions) for name, positions in seen.items()},
        notes={"rows": sum(file.rows for file in files), "badRows": bad_rows, RUN: run},
    )
    merge_after_commit(place)
