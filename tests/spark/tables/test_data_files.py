"""The files of one task: how many are open, how large they become, and what stays when something goes wrong."""

import datetime
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.tables.test_lake_table import BY, DAY, rows
from tidelog.spark.tables import data_files
from tidelog.spark.tables.data_files import DataFileWriter, write_files

DAYS = 3 * data_files.OPEN_FILES_MAX


def many_days() -> list[pa.RecordBatch]:
    return [rows(number * 2, 2, day=DAY + datetime.timedelta(days=number)) for number in range(DAYS)]


def offsets(directory: Path) -> list[int]:
    found = [pq.ParquetFile(path).read(columns=["offset"]).column("offset").to_pylist() for path in directory.rglob("*.parquet")]
    return sorted(offset for each in found for offset in each)


def test_a_task_that_meets_many_days_has_few_files_open(tmp_path: Path) -> None:
    writer = DataFileWriter(tmp_path, BY, ())
    before = len(os.listdir("/proc/self/fd"))
    most = 0
    for batch in many_days():
        writer.write(batch)
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
    assert most <= data_files.OPEN_FILES_MAX
    assert sum(file.rows for file in writer.finish()) == 2 * DAYS
    assert offsets(tmp_path) == list(range(2 * DAYS))


def test_what_was_finished_goes_too_when_a_task_fails(tmp_path: Path) -> None:
    writer = DataFileWriter(tmp_path, BY, ())
    for batch in many_days():
        writer.write(batch)
    writer.abandon()
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_file_ends_when_it_has_enough_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "ROWS_PER_FILE_MAX", 10)
    monkeypatch.setattr(data_files, "BYTES_PER_GROUP", 100)
    files = write_files((rows(first, 4) for first in range(0, 40, 4)), tmp_path, (), ("offset",))
    assert [file.rows for file in files] == [12, 12, 12, 4]
    assert offsets(tmp_path) == list(range(40))
    assert pq.ParquetFile(tmp_path / files[0].path).num_row_groups == 3


def test_files_and_their_names_last_before_they_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(data_files, "sync", synced.append)
    (file,) = data_files.write_files([pa.record_batch([pa.array([1])], names=["offset"])], tmp_path, (), ("offset",))
    assert synced == [tmp_path / file.path, (tmp_path / file.path).parent]
