"""Rows into a Delta table together with positions that the caller chose, in one commit: for outcomes that are no rows of a topic.

``append_frame`` runs a frame once. Its tasks write files that belong to nobody yet; the driver commits them with the positions,
only where the table still stands where the caller saw it. So a batch that is done again finds its position taken.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.spark.tables.data_files import DataFile, write_files
from tidelog.spark.tables.lake_table import LakeTable, local_path
from tidelog.spark.tables.table_sink import as_in_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = "tidelog_positioned"


class Appended(NamedTuple):
    files: tuple[str, ...]
    """By absolute path; none where the frame had no rows, and then nothing was committed."""
    rows: int


def append_frame(frame: "DataFrame", table: LakeTable, positions: Mapping[str, int]) -> Appended:
    """TableConflict when another run moved one of these positions since ``table`` was opened."""
    frame.sparkSession.dataSource.register(PositionedSink)
    expected = {name: table.position(name) for name in positions}
    before = _files(table)
    writer = frame.write.format(FORMAT).mode("append").option("path", str(table.place))
    writer.options(positions=json.dumps(dict(positions)), expected=json.dumps(expected)).save()
    added = {path: rows for path, rows in _files(LakeTable.open(table.place)).items() if path not in before}
    return Appended(tuple(str(table.place / path) for path in added), sum(added.values()))


def _files(table: LakeTable) -> dict[str, int]:
    actions = pa.table(table.delta.get_add_actions(flatten=True)).select(["path", "num_records"]).to_pydict()
    return dict(zip(actions["path"], actions["num_records"], strict=True))


class FilesMessage(WriterCommitMessage):
    """From a task to the driver."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.files = files


class PositionedSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - the frame has the table's columns, and is appended
        return PositionedWriter({name.lower(): value for name, value in dict(self.options).items()})


class PositionedWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._place = local_path(options["path"])
        self._positions: dict[str, int] = json.loads(options["positions"])
        self._expected: dict[str, int] = json.loads(options["expected"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesMessage:
        table = LakeTable.open(self._place)
        columns = table.columns
        rows = (as_in_table(batch, columns) for batch in iterator if batch.num_rows)
        return FilesMessage(write_files(rows, self._place, table.partition_by, ()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        files = [file for message in messages if isinstance(message, FilesMessage) for file in message.files]
        if files:
            LakeTable.open(self._place).append(files, self._positions, expected=self._expected)
