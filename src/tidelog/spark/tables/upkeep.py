"""Maintains tables: merges small files into large ones, and removes files that the table no longer uses.

**Merging.** Every batch adds a file for each task and day. When a partition of the table has FILES_MAX files smaller than
SMALL_BYTES, they become files of twice that size, except for the last one, which takes part again. So after an undisturbed merge
a partition has fewer than FILES_MAX small files, and at most one large file for each SMALL_BYTES of rows, however many batches
there were. Each file that a batch adds costs at most the rewriting of SMALL_BYTES / FILES_MAX. A merge rewrites MERGE_BYTES_MAX
at most, and leaves the rest to the next one.

A stream that only appends is merged beside its batches, not within their commits: ``merged`` looks every few seconds, and Spark's
tasks rewrite the files. Pipelines that change rows merge between two batches (``merge_after_commit``), since two commits that
remove the same file would leave its rows twice.

Rows stay as they are, and so do the table's positions. Concurrent appends are not disturbed. Of two concurrent merges one is
refused (``LakeTable.replace``). A merge that fails, or is killed, leaves files that no commit refers to.

**Vacuum.** Removes files that the table does not refer to (of tasks that died, of commits that failed, of merges) once they are
older than the retention, which is longer than any batch and any reader takes. Names that begin with ``_`` are kept: these are
the log of the table and our own files.
"""

import json
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.tables.data_files import DataFile, DataFileWriter, PartitionValues, writing
from tidelog.spark.tables.lake_table import LakeTable, StoredFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BYTES = 64 << 20
FILES_MAX = 64
# What one merge rewrites: some seconds of work, so that a run that is told to stop does not wait for longer.
MERGE_BYTES_MAX = 8 * 2 * SMALL_BYTES
MERGE_EVERY_SECONDS = 10.0
RETENTION_HOURS = 7 * 24
# A shorter retention could remove what a running batch has written.
RETENTION_HOURS_MIN = 24
VACUUM_EVERY_HOURS = 24.0
# The log keeps the minimum and maximum of these columns, if a table has them.
STATS_COLUMNS = ("partition", "offset")
_ROWS_PER_READ = 65_536

_logger = logging.getLogger(__name__)


class MergedFiles(NamedTuple):
    files_before: int
    files_after: int


class MergeBin(NamedTuple):
    """Files of one partition of the table that become one file. Plain data, which goes to a task as JSON."""

    place: str
    values: PartitionValues
    paths: tuple[str, ...]


Rewrite = Callable[[Sequence[MergeBin]], list[DataFile]]


def rewritten_here(bins: Sequence[MergeBin]) -> list[DataFile]:
    return [file for each in bins for file in _rewritten(each)]


def rewritten_by(spark: "SparkSession") -> Rewrite:
    """A task of Spark rewrites each bin."""
    spark.dataSource.register(MergeSource)

    def rewrite(bins: Sequence[MergeBin]) -> list[DataFile]:
        told = spark.read.format(MergeSource.name()).option("bins", json.dumps(bins)).load().collect()
        return [DataFile(*file) for row in told for file in json.loads(row.files)]

    return rewrite


class MergeSource(DataSource):
    """A frame with a row for each bin, which lists the files that it became."""

    @classmethod
    def name(cls) -> str:
        return "tidelog_merge"

    def schema(self) -> str:
        return "files string"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - there is one column
        return MergeReader(json.loads(self.options["bins"]))


class MergeReader(DataSourceReader):
    def __init__(self, bins: Sequence[Any]) -> None:
        self._bins = bins

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(each) for each in self._bins]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        place, values, paths = partition.value
        files = _rewritten(MergeBin(place, tuple(values), tuple(paths)))
        yield pa.record_batch({"files": [json.dumps(files)]})


def merge_small_files(
    place: Path, *, small_bytes: int = SMALL_BYTES, files_max: int = FILES_MAX, rewrite: Rewrite = rewritten_here
) -> MergedFiles:
    """One commit for all partitions that have too many, up to MERGE_BYTES_MAX."""
    table = LakeTable.open(place)
    bins: list[MergeBin] = []
    old: list[StoredFile] = []
    left = MERGE_BYTES_MAX
    for values, files in _small_files(table, small_bytes).items():
        for each in pack(files, 2 * small_bytes) if len(files) >= files_max else ():
            size = sum(file.size for file in each)
            if len(each) > 1 and (size <= left or not bins):
                bins.append(MergeBin(str(place), values, tuple(file.path for file in each)))
                old += each
                left -= size
    if not bins:
        return MergedFiles(0, 0)
    written = rewrite(bins)
    # A commit that fails may have succeeded after all, so the vacuum removes what it wrote.
    table.replace(old, written)
    return MergedFiles(len(old), len(written))


def pack(files: Sequence[StoredFile], bytes_max: int) -> list[list[StoredFile]]:
    """Group files in order, each group as large as fits. If every file is smaller than half of that, every group but the last is
    larger than half."""
    bins: list[list[StoredFile]] = []
    size = 0
    for file in files:
        if not bins or size + file.size > bytes_max:
            bins.append([])
            size = 0
        bins[-1].append(file)
        size += file.size
    return bins


def remove_orphans(place: Path, *, retention_hours: int = RETENTION_HOURS) -> int:
    """Return the number of files that were removed."""
    if retention_hours < RETENTION_HOURS_MIN:
        raise InvalidArgument(f"files are kept for {RETENTION_HOURS_MIN} hours at least: not {retention_hours}")
    table = LakeTable.open(place).delta
    found = table.vacuum(retention_hours=retention_hours, enforce_retention_duration=False, full=True)
    if found:
        table.vacuum(retention_hours=retention_hours, enforce_retention_duration=False, full=True, dry_run=False)
    return len(found)


def merge_after_commit(place: Path, *, files_max: int = FILES_MAX, rewrite: Rewrite = rewritten_here) -> None:
    """Merge what is committed. Whatever goes wrong here must not fail a batch, whose rows are in the table."""
    try:
        merge_small_files(place, files_max=files_max, rewrite=rewrite)
    except Exception as error:
        _logger.warning("the small files of %s are not merged: %s", place, error)


@contextmanager
def merged(
    spark: "SparkSession", places: Sequence[Path], *, files_max: int = FILES_MAX, every_seconds: float = MERGE_EVERY_SECONDS
) -> Iterator[None]:
    """Merge small files beside the batches of a run, and when it has ended well."""
    rewrite = rewritten_by(spark)

    def merge_all() -> None:
        for place in places:
            merge_after_commit(place, files_max=files_max, rewrite=rewrite)

    with _repeated(merge_all, every_seconds):
        yield


@contextmanager
def vacuumed(places: Sequence[Path], *, retention_hours: int, every_hours: float = VACUUM_EVERY_HOURS) -> Iterator[None]:
    """Vacuum now and then while a run continues, and when it has ended well."""
    with _repeated(lambda: _vacuum_all(places, retention_hours), every_hours * 3600):
        yield


@contextmanager
def _repeated(work: Callable[[], None], every_seconds: float) -> Iterator[None]:
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every_seconds):
            work()

    thread = threading.Thread(target=watch, name="upkeep", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    work()


def _vacuum_all(places: Sequence[Path], retention_hours: int) -> None:
    for place in places:
        try:
            remove_orphans(place, retention_hours=retention_hours)
        except Exception as error:
            _logger.warning("old files of %s are not removed: %s", place, error)


def _small_files(table: LakeTable, small_bytes: int) -> dict[PartitionValues, list[StoredFile]]:
    found: dict[PartitionValues, list[StoredFile]] = defaultdict(list)
    for file in table.files():
        if file.size < small_bytes:
            found[tuple(file.partition_values[name] for name in table.partition_by)].append(file)
    return found


def _rewritten(merge: MergeBin) -> list[DataFile]:
    table = LakeTable.open(merge.place)
    columns = pa.schema([field for field in table.columns if field.name not in table.partition_by])
    writer = DataFileWriter(table.place, table.partition_by, STATS_COLUMNS)
    with writing(writer, table.place):
        for path in merge.paths:
            with pq.ParquetFile(table.place / path) as opened:
                for batch in opened.iter_batches(_ROWS_PER_READ):
                    writer.write_part(merge.values, _with_all(batch, columns))
        return writer.finish()


def _with_all(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Add the missing columns: a file from before a column was added does not have it."""
    arrays = [
        rows.column(field.name).cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in columns
    ]
    return pa.record_batch(arrays, schema=columns)
