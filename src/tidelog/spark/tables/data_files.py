"""The files that an executor writes: Arrow batches become Parquet files of the table, one for each set of partition values.

A file belongs to no table until the driver commits it, so a task that dies leaves an orphan, which a vacuum removes. Names are
random, so that the attempts of a task never write to the same file.
"""

import datetime
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.spark.tables.errors import TableUnwritable

COMPRESSION = "zstd"
# A row group is the unit that a reader can skip, and that a writer keeps in memory per open file: whichever limit comes first.
ROWS_PER_GROUP = 250_000
BYTES_PER_GROUP = 32 << 20
# A task that meets more days than this (times that producers made up) closes the file that it opened first.
OPEN_FILES_MAX = 32
# A larger file is not faster to read, and costs more to write again after a failure.
ROWS_PER_FILE_MAX = 8 * ROWS_PER_GROUP
_NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"

PartitionValues = tuple[str | None, ...]


class DataFile(NamedTuple):
    """Plain data, which a task's message carries to the driver."""

    path: str
    """The path relative to the table, as in the table's log."""
    size: int
    rows: int
    partition_values: Mapping[str, str | None]
    modified_ms: int
    stats: str


class DataFileWriter:
    """The files of one task."""

    def __init__(self, table: Path, partition_by: tuple[str, ...], stats_columns: tuple[str, ...]) -> None:
        self._table = table
        self._partition_by = partition_by
        self._stats_columns = stats_columns
        self._open: dict[PartitionValues, _OpenFile] = {}
        self._finished: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        for values, rows in split(batch, self._partition_by):
            self.write_part(values, rows)

    def write_part(self, values: PartitionValues, rows: pa.RecordBatch) -> None:
        """Write rows without the columns whose values these are."""
        if values not in self._open:
            if len(self._open) >= OPEN_FILES_MAX:
                self._finish(next(iter(self._open)))
            self._open[values] = self._new_file(values, rows.schema)
        self._open[values].write(rows)
        if self._open[values].rows >= ROWS_PER_FILE_MAX:
            self._finish(values)

    def finish(self) -> list[DataFile]:
        for values in list(self._open):
            self._finish(values)
        return self._finished

    def abandon(self) -> None:
        """Remove what was written, because the task failed."""
        for opened in self._open.values():
            opened.abandon()
        self._open.clear()
        for file in self._finished:
            (self._table / file.path).unlink(missing_ok=True)
        self._finished.clear()

    def _finish(self, values: PartitionValues) -> None:
        self._finished.append(self._open[values].finish())
        del self._open[values]

    def _new_file(self, values: PartitionValues, schema: pa.Schema) -> "_OpenFile":
        directory = "/".join(
            f"{name}={_NULL_DIRECTORY if value is None else quote(value, safe=' ')}"
            for name, value in zip(self._partition_by, values, strict=True)
        )
        relative = f"{directory}/part-{secrets.token_hex(16)}.zstd.parquet".removeprefix("/")
        try:
            return _OpenFile(
                self._table, relative, dict(zip(self._partition_by, values, strict=True)), schema, self._stats_columns
            )
        except OSError as error:
            raise TableUnwritable(f"{self._table / relative} cannot be written: {error.strerror or error}") from error


class _OpenFile:
    def __init__(
        self, table: Path, relative: str, values: Mapping[str, str | None], schema: pa.Schema, stats_columns: tuple[str, ...]
    ) -> None:
        self._relative = relative
        self._path = table / relative
        self._values = values
        self._stats = {name: _Extent() for name in stats_columns if name in schema.names}
        self.rows = 0
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Dictionaries cost more time than they save on keys and values that hardly repeat; zstd finds what does.
        dictionary = [field.name for field in schema if pa.types.is_string(field.type)]
        self._writer = pq.ParquetWriter(
            self._path, schema, compression=COMPRESSION, compression_level=1, use_dictionary=dictionary
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        for name, extent in self._stats.items():
            extent.add(rows.column(name))
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= ROWS_PER_GROUP or self._waiting_bytes >= BYTES_PER_GROUP:
            self._write_group()

    def finish(self) -> DataFile:
        self._write_group()
        self._writer.close()
        # Sync the file before anyone can commit it: a table whose log names a file that a power cut emptied has lost its rows for
        # good.
        for path in (self._path, self._path.parent):
            sync(path)
        stats = {
            "numRecords": self.rows,
            "minValues": {name: extent.smallest for name, extent in self._stats.items() if extent.smallest is not None},
            "maxValues": {name: extent.greatest for name, extent in self._stats.items() if extent.greatest is not None},
            "nullCount": {name: extent.nulls for name, extent in self._stats.items()},
        }
        size = self._path.stat().st_size
        return DataFile(self._relative, size, self.rows, self._values, int(time.time() * 1000), json.dumps(stats))

    def abandon(self) -> None:
        self._writer.close()
        self._path.unlink(missing_ok=True)

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Extent:
    """The minimum and maximum of a column of numbers. Other types have their own rules for how a table's log writes them."""

    def __init__(self) -> None:
        self.smallest: int | None = None
        self.greatest: int | None = None
        self.nulls = 0

    def add(self, column: pa.Array) -> None:
        self.nulls += column.null_count
        found = pc.min_max(column).as_py()
        if found["min"] is not None:
            self.smallest = found["min"] if self.smallest is None else min(self.smallest, found["min"])
            self.greatest = found["max"] if self.greatest is None else max(self.greatest, found["max"])


def split(batch: pa.RecordBatch, partition_by: tuple[str, ...]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Split the batch by partition values and drop those columns. Rows keep their order."""
    rest = batch.drop_columns(list(partition_by)) if partition_by else batch
    if not batch.num_rows:
        return
    keys = [batch.column(name) for name in partition_by]
    # Nearly always a batch belongs to one day.
    if all(_is_constant(column) for column in keys):
        yield tuple(partition_text(column[0].as_py()) for column in keys), rest
        return
    numbered = pa.table([*keys, pa.array(range(batch.num_rows), pa.int64())], names=[*partition_by, "_row"])
    groups = numbered.group_by(list(partition_by)).aggregate([("_row", "list")]).to_pylist()
    for group in groups:
        values = tuple(partition_text(group[name]) for name in partition_by)
        yield values, rest.take(pa.array(sorted(group["_row_list"]), pa.int64()))


def _is_constant(column: pa.Array) -> bool:
    if column.null_count:
        return bool(column.null_count == len(column))
    found = pc.min_max(column)
    return bool(found["min"] == found["max"])


def partition_text(value: Any) -> str | None:
    """The value as the table's log writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else None if value is None else str(value)


@contextmanager
def writing(writer: DataFileWriter, table: Path) -> Iterator[None]:
    """Remove everything if something goes wrong."""
    try:
        yield
    except OSError as error:
        writer.abandon()
        raise TableUnwritable(f"{table} cannot be written: {error.strerror or error}") from error
    except BaseException:
        writer.abandon()
        raise


def write_files(
    batches: Iterable[pa.RecordBatch], table: Path, partition_by: tuple[str, ...], stats_columns: tuple[str, ...]
) -> list[DataFile]:
    """Write all of the files, or none of them."""
    writer = DataFileWriter(table, partition_by, stats_columns)
    with writing(writer, table):
        for batch in batches:
            writer.write(batch)
        return writer.finish()
