"""Maintains tables: merges small files into large ones, and removes files that the table no longer uses.

**Merging.** Every batch adds a file for each task and day. When a partition of the table has FILES_MAX files smaller than
SMALL_BYTES, they become files of twice that size, except for the last one, which takes part again. So after an undisturbed merge
a partition has fewer than FILES_MAX small files, and at most one large file for each SMALL_BYTES of rows, however many batches
there were. Each file that a batch adds costs at most the rewriting of SMALL_BYTES / FILES_MAX.

Rows stay as they are, and so do the table's positions. Concurrent appends are not disturbed. Of two concurrent merges one is
refused (``LakeTable.replace``). A merge that fails, or is killed, leaves files that no commit refers to.

**Vacuum.** Removes files that the table does not refer to (of tasks that died, of commits that failed, of merges) once they are
older than the retention, which is longer than any batch and any reader takes. Names that begin with ``_`` are kept: these are
the log of the table and our own files.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.client.errors import InvalidArgument
from tidelog.spark.tables.data_files import DataFile, DataFileWriter, PartitionValues, writing
from tidelog.spark.tables.lake_table import LakeTable, StoredFile

SMALL_BYTES = 64 << 20
FILES_MAX = 64
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


def merge_small_files(place: Path, *, small_bytes: int = SMALL_BYTES, files_max: int = FILES_MAX) -> MergedFiles:
    """One commit for all partitions that have too many."""
    table = LakeTable.open(place)
    bins = [
        (values, each)
        for values, files in _small_files(table, small_bytes).items()
        if len(files) >= files_max
        for each in pack(files, 2 * small_bytes)
        if len(each) > 1
    ]
    if not bins:
        return MergedFiles(0, 0)
    columns = pa.schema([field for field in table.columns if field.name not in table.partition_by])
    written: list[DataFile] = []
    for values, files in bins:
        written += _rewritten(table, values, files, columns)
    old = [file for _, files in bins for file in files]
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


def merge_after_commit(place: Path, *, files_max: int = FILES_MAX) -> None:
    """Merge between two batches. The rows are in the table: whatever goes wrong here must not fail the batch."""
    try:
        merge_small_files(place, files_max=files_max)
    except Exception as error:
        _logger.warning("the small files of %s are not merged: %s", place, error)


@contextmanager
def vacuumed(places: Sequence[Path], *, retention_hours: int, every_hours: float = VACUUM_EVERY_HOURS) -> Iterator[None]:
    """Vacuum now and then while a run continues, and when it has ended well."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every_hours * 3600):
            _vacuum_all(places, retention_hours)

    thread = threading.Thread(target=watch, name="vacuum", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    _vacuum_all(places, retention_hours)


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


def _rewritten(table: LakeTable, values: PartitionValues, files: Sequence[StoredFile], columns: pa.Schema) -> list[DataFile]:
    writer = DataFileWriter(table.place, table.partition_by, STATS_COLUMNS)
    with writing(writer, table.place):
        for file in files:
            with pq.ParquetFile(table.place / file.path) as opened:
                for batch in opened.iter_batches(_ROWS_PER_READ):
                    writer.write_part(values, _with_all(batch, columns))
        return writer.finish()


def _with_all(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Add the missing columns: a file from before a column was added does not have it."""
    arrays = [
        rows.column(field.name).cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in columns
    ]
    return pa.record_batch(arrays, schema=columns)
