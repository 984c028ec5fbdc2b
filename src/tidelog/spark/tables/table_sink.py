"""The sinks that write Delta tables, each row exactly once.

**``format("tidelog_table")``** writes rows of topics, from a stream or a batch. The option ``path`` names the table, which must
exist (``LakeTable.ensure``). Rows have the columns ``topic``, ``partition`` and ``offset``, and any others of the table. The
option ``run``, a number, is noted in the commits, so that a run finds its own among others'.

The table has a position for each partition: the offset that comes next; everything before it is in the table. Tasks ask for the
positions, drop the rows that the table has, and write the rest to Parquet files that belong to no table yet. The driver commits
all files of a batch together with the new positions, and only if the positions are still those that the tasks saw. So a batch
that runs again after a crash, or under a new checkpoint, finds its rows in the table, and of two concurrent runs one is refused.
The driver opens the table once for a batch and hands its columns to the tasks: a task opens it only to ask for a position, since
a table of thousands of files takes longer to open than a small batch to write.
Files of a batch that was not committed are orphans: readers do not see them, and a vacuum removes them. ``abort`` does not, since
a commit that failed may have gone through. Small files are merged beside the batches (``upkeep``).

**``append_frame``** writes a frame whose rows are not rows of a topic, in one commit with positions that the caller chooses. It
commits only if the table still stands where the caller saw it, so a batch that runs again finds its position taken.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.tables.data_files import DataFile, DataFileWriter, write_files, writing
from tidelog.spark.tables.errors import WrongSchema
from tidelog.spark.tables.lake_table import LakeTable, local_path
from tidelog.spark.tables.upkeep import STATS_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# -- which rows the table lacks -----------------------------------------------------------------------------------------------


PLACE_COLUMNS = ("topic", "partition", "offset")


def position_name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


class TaskPositions:
    """The positions that one task uses. ``ask`` returns the table's position by name and is called once for each partition that
    the task finds, so partitions that are added to a topic while a query runs need no preparation."""

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self.seen: dict[str, int] = {}
        self.next: dict[str, int] = {}

    def missing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch that the table lacks."""
        if missing := [name for name in PLACE_COLUMNS if batch.column(name).null_count]:
            raise WrongSchema(f"column {missing[0]} is null in a row: the table cannot tell whether it has that row already")
        rows = pa.Table.from_batches([batch.select(PLACE_COLUMNS)])
        places = rows.group_by(["topic", "partition"], use_threads=False).aggregate([("offset", "min"), ("offset", "max")])
        has_some = False
        for place in places.to_pylist():
            name = position_name(place["topic"], place["partition"])
            if name not in self.seen:
                self.seen[name] = self._ask(name)
            if place["offset_max"] >= self.seen[name]:
                self.next[name] = max(self.next.get(name, 0), place["offset_max"] + 1)
            has_some |= place["offset_min"] < self.seen[name]
        return batch.filter(self._is_missing(rows)) if has_some else batch

    def _is_missing(self, rows: pa.Table) -> pa.Array:
        columns = [rows.column(name).to_pylist() for name in PLACE_COLUMNS]
        return pa.array(
            [offset >= self.seen[position_name(topic, partition)] for topic, partition, offset in zip(*columns, strict=True)],
            pa.bool_(),
        )


# -- rows of topics -----------------------------------------------------------------------------------------------------------


FORMAT = "tidelog_table"
MESSAGE_COLUMN = "_files_of_task"
"""A row with this column is the message of a task that wrote files itself. Others beside it are of the same task and the same
span, and the task found that the table lacks them."""
RUN = "run"
BAD = "bad"
"""If a table is partitioned by such a column, rows with it are counted separately."""


class TableMessage(WriterCommitMessage):
    """The message of a task to the driver."""

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
        return BatchTableWriter(*_checked(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        return StreamTableWriter(*_checked(self.options, schema, overwrite), int(dict(self.options).get(RUN, 0)))


class TableShape(NamedTuple):
    """What a task needs to know of the table to write files for it."""

    columns: pa.Schema
    partition_by: tuple[str, ...]

    @classmethod
    def of(cls, table: LakeTable) -> "TableShape":
        return cls(table.columns, table.partition_by)


class StreamTableWriter(DataSourceStreamArrowWriter):
    def __init__(self, place: Path, shape: TableShape | None, run: int = 0) -> None:
        """``shape`` is None if tasks wrote all files themselves."""
        self._place = place
        self._shape = shape
        self._run = run

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TableMessage:
        return write_task(self._place, self._shape, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark calls it so; positions say what is new
        commit_tasks(self._place, messages, self._run)


class BatchTableWriter(DataSourceArrowWriter):
    def __init__(self, place: Path, shape: TableShape | None) -> None:
        self._place = place
        self._shape = shape

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TableMessage:
        return write_task(self._place, self._shape, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit_tasks(self._place, messages)


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> tuple[Path, TableShape | None]:
    given = {name.lower(): value for name, value in dict(options).items()}
    if "path" not in given:
        raise InvalidArgument("option path is missing: the directory of the table")
    if overwrite:
        raise InvalidArgument('a table of topics only grows: use mode("append"), or outputMode("append")')
    place = local_path(given["path"])
    names = [name for name in schema.names if name != MESSAGE_COLUMN]
    if not names:
        return place, None
    if missing := [name for name in PLACE_COLUMNS if name not in names]:
        raise WrongSchema(f"the rows have no column {missing[0]}: without it the table cannot tell which rows it already has")
    shape = TableShape.of(LakeTable.open(place))
    if strange := [name for name in names if name not in shape.columns.names]:
        raise WrongSchema(f"the table {place} has no column {strange[0]}: leave it out, or add it to the table first")
    return place, shape


def write_task(place: Path, shape: TableShape | None, batches: Iterator[pa.RecordBatch]) -> TableMessage:
    """Write the rows that the table lacks to files. Runs on an executor."""
    if shape is None:
        return combined_message(_messages_in(batches))
    opened: list[LakeTable] = []

    def position(name: str) -> int:
        if not opened:
            opened.append(LakeTable.open(place))
        return opened[0].position(name)

    positions = TaskPositions(position)
    writer = DataFileWriter(place, shape.partition_by, STATS_COLUMNS)
    told: list[TableMessage] = []
    with writing(writer, place):
        for batch in batches:
            if MESSAGE_COLUMN in batch.schema.names:
                told += _messages_in([batch])
                rows = batch.filter(pc.is_null(batch.column(MESSAGE_COLUMN))).drop_columns([MESSAGE_COLUMN])
            else:
                rows = positions.missing(batch)
            if rows.num_rows:
                writer.write(as_in_table(rows, shape.columns))
        own = TableMessage(writer.finish(), positions.seen, positions.next)
        return combined_message([*told, own])


def _messages_in(batches: Iterable[pa.RecordBatch]) -> list[TableMessage]:
    found = [pc.drop_null(batch.column(MESSAGE_COLUMN)).to_pylist() for batch in batches]
    return [TableMessage.decode(data) for batch in found for data in batch]


def combined_message(told: Sequence[TableMessage]) -> TableMessage:
    """Combine the messages of tasks into one."""
    # If they do not agree, the table has moved on from the lowest of them, and the driver refuses it.
    seen = {name: min(positions) for name, positions in seen_by_tasks(told).items()}
    return TableMessage([file for message in told for file in message.files], seen, furthest(told))


def seen_by_tasks(messages: Iterable[TableMessage]) -> dict[str, set[int]]:
    """Where the table stood for the tasks that add to it. A partition is several tasks, and each asked at its own time."""
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
    """The rows with the table's types and order of columns: Spark uses the session's time zone and its own names inside lists."""
    schema = pa.schema([field for field in columns if field.name in rows.schema.names])
    return pa.record_batch([rows.column(field.name).cast(field.type) for field in schema], schema=schema)


def commit_tasks(place: Path, messages: Sequence[WriterCommitMessage | None], run: int = 0) -> None:
    """Commit what all tasks wrote, at once. Runs on the driver."""
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


# -- other frames -------------------------------------------------------------------------------------------------------------


POSITIONED_FORMAT = "tidelog_positioned"


class AppendedFiles(NamedTuple):
    files: tuple[str, ...]
    """Absolute paths; empty if the frame had no rows, and then nothing was committed."""
    rows: int


def append_frame(frame: "DataFrame", table: LakeTable, positions: Mapping[str, int]) -> AppendedFiles:
    """Raises TableConflict when another run has moved one of these positions since ``table`` was opened."""
    frame.sparkSession.dataSource.register(PositionedSink)
    expected = {name: table.position(name) for name in positions}
    before = _files(table)
    writer = frame.write.format(POSITIONED_FORMAT).mode("append").option("path", str(table.place))
    writer.options(positions=json.dumps(dict(positions)), expected=json.dumps(expected)).save()
    added = {path: rows for path, rows in _files(LakeTable.open(table.place)).items() if path not in before}
    return AppendedFiles(tuple(str(table.place / path) for path in added), sum(added.values()))


def _files(table: LakeTable) -> dict[str, int]:
    actions = pa.table(table.delta.get_add_actions(flatten=True)).select(["path", "num_records"]).to_pydict()
    return dict(zip(actions["path"], actions["num_records"], strict=True))


class FilesMessage(WriterCommitMessage):
    """The message of a task to the driver."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.files = files


class PositionedSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return POSITIONED_FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - the frame has the table's columns, and is appended
        return PositionedWriter({name.lower(): value for name, value in dict(self.options).items()})


class PositionedWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        """Created on the driver, and sent to the tasks."""
        self._place = local_path(options["path"])
        self._shape = TableShape.of(LakeTable.open(self._place))
        self._positions: dict[str, int] = json.loads(options["positions"])
        self._expected: dict[str, int] = json.loads(options["expected"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesMessage:
        rows = (as_in_table(batch, self._shape.columns) for batch in iterator if batch.num_rows)
        return FilesMessage(write_files(rows, self._place, self._shape.partition_by, ()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        files = [file for message in messages if isinstance(message, FilesMessage) for file in message.files]
        if files:
            LakeTable.open(self._place).append(files, self._positions, expected=self._expected)
