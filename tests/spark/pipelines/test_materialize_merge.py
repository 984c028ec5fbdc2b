"""Newest rows into a table on disk, without Spark: what a merge inserts, replaces, deletes, leaves alone and refuses."""

import datetime
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.spark.pipelines.materialize import table_columns
from tidelog.spark.pipelines.materialize_merge import Merged, merge
from tidelog.spark.tables.errors import TableConflict, TableUnwritable
from tidelog.spark.tables.lake_table import LakeTable

COLUMNS = table_columns(None)
NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)
Row = dict[str, Any]


def row(key: bytes, value: bytes | None, offset: int, *, partition: int = 0, seconds: int = 0) -> Row:
    time = NOON + datetime.timedelta(seconds=seconds)
    place = {"topic": "customers", "partition": partition, "offset": offset, "timestamp": time, "timestampType": 0}
    message = {"key": key, "value": value, "headers": [{"key": "h", "value": b"1"}], **place}
    return {**message, "error": None, "bad": False, "bucket": zlib.crc32(key) % 4}


def ensure(place: Path) -> LakeTable:
    return LakeTable.ensure(place / "table", COLUMNS, partition_by=("bucket",), identity={"kind": "materialize"})


def staged(place: Path, *rows: Row) -> Path:
    directory = place / "staged"
    directory.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), COLUMNS), directory / "part.parquet")
    return directory


def merged(place: Path, position: int, *rows: Row) -> Merged:
    return merge(ensure(place), staged(place, *rows), {"customers/0": position})


def values(place: Path) -> dict[bytes, bytes]:
    rows = ensure(place).delta.to_pyarrow_table().to_pylist()
    assert len({each["key"] for each in rows}) == len(rows)
    return {each["key"]: each["value"] for each in rows}


def test_upserts_and_deletes(tmp_path: Path) -> None:
    assert merged(tmp_path, 3, row(b"a", b"1", 0), row(b"b", b"1", 1), row(b"c", b"1", 2)) == Merged(3, 0, 0)
    changes = [row(b"a", b"2", 3, seconds=-60), row(b"b", None, 4), row(b"d", b"1", 5), row(b"never", None, 6)]
    assert merged(tmp_path, 7, *changes) == Merged(1, 1, 1)
    assert values(tmp_path) == {b"a": b"2", b"c": b"1", b"d": b"1"}
    assert ensure(tmp_path).position("customers/0") == 7
    (found,) = [each for each in ensure(tmp_path).delta.to_pyarrow_table().to_pylist() if each["key"] == b"a"]
    assert found == row(b"a", b"2", 3, seconds=-60), "every column is the newer row's"


def test_another_partition_wins_by_time_only(tmp_path: Path) -> None:
    merged(tmp_path, 10, row(b"a", b"old", 9), row(b"b", b"old", 8), row(b"c", b"old", 7, partition=1))
    older = [row(b"a", b"older", 0, partition=1, seconds=-1), row(b"b", None, 1, partition=1, seconds=-1)]
    assert merged(tmp_path, 10, *older, row(b"c", b"same time", 11)) == Merged(0, 0, 0)
    newer = [row(b"a", b"new", 2, partition=1), row(b"b", None, 3, partition=1, seconds=1)]
    assert merged(tmp_path, 10, *newer) == Merged(0, 1, 1)
    assert values(tmp_path) == {b"a": b"new", b"c": b"old"}


def test_files_of_other_buckets_stay(tmp_path: Path) -> None:
    keys = [b"k%d" % number for number in range(40)]
    merged(tmp_path, 40, *[row(key, b"1", offset) for offset, key in enumerate(keys)])
    before = set(ensure(tmp_path).delta.file_uris())
    merged(tmp_path, 41, row(b"k7", b"2", 40))
    after = set(ensure(tmp_path).delta.file_uris())
    assert len(before) == len(after) == 4
    assert len(before & after) == 3


def test_no_rows_still_move_the_position(tmp_path: Path) -> None:
    assert merged(tmp_path, 12) == Merged()
    assert ensure(tmp_path).position("customers/0") == 12


def test_of_two_merges_at_a_time_one_is_refused(tmp_path: Path) -> None:
    one, other = ensure(tmp_path), ensure(tmp_path)
    merge(one, staged(tmp_path, row(b"a", b"1", 0)), {"customers/0": 1})
    with pytest.raises(TableConflict, match="let one run alone write to it"):
        merge(other, staged(tmp_path, row(b"a", b"other", 0)), {"customers/0": 1})
    assert values(tmp_path) == {b"a": b"1"}


def test_a_table_that_cannot_be_written(tmp_path: Path) -> None:
    table = ensure(tmp_path)
    bucket = zlib.crc32(b"a") % 4
    (table.place / f"bucket={bucket}").write_text("in the way")
    with pytest.raises(TableUnwritable, match="nothing can be merged"):
        merge(table, staged(tmp_path, row(b"a", b"1", 0)), {"customers/0": 1})
    assert ensure(tmp_path).position("customers/0") == 0
