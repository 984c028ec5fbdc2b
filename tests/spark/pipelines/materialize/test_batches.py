"""Which rows of a batch are the newest: on small frames, and against a fold in Python.

Newest rows into a table on disk, without Spark: what a merge inserts, replaces, deletes, leaves alone and refuses. What a killed
driver leaves beside a table is removed by a later run, when nobody can be reading it any more.
"""

import datetime
import random
import time
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tidelog.spark.pipelines.materialize.batches import (
    STAGED_HOURS_MAX,
    MergeCounts,
    after_positions,
    keyed,
    merge,
    newest_per_key,
    remove_leftovers,
    with_bucket,
)
from tidelog.spark.pipelines.materialize.pipeline import table_columns
from tidelog.spark.tables.errors import TableConflict, TableUnwritable
from tidelog.spark.tables.lake_table import LakeTable

# -- rows ---------------------------------------------------------------------------------------------------------------------


SCHEMA = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)


def row(key: bytes | None, value: bytes | None, partition: int, offset: int, seconds: int = 0) -> tuple[Any, ...]:
    return key, value, partition, offset, NOON + datetime.timedelta(seconds=seconds)


def frame(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), SCHEMA)


def found(rows: DataFrame) -> dict[bytes, tuple[bytes | None, int, int]]:
    collected = rows.collect()
    assert len({bytes(each.key) for each in collected}) == len(collected), "a key is there twice"
    return {bytes(each.key): (each.value and bytes(each.value), each.partition, each.offset) for each in collected}


def test_the_newest_of_a_partition_goes_by_offset_of_several_by_time(spark: SparkSession) -> None:
    rows = frame(
        spark,
        row(b"offset", b"old", 0, 7, seconds=9),
        row(b"offset", b"new", 0, 8, seconds=1),
        row(b"deleted", b"old", 0, 1),
        row(b"deleted", None, 0, 2),
        row(b"back", None, 0, 3),
        row(b"back", b"again", 0, 4),
        row(b"moved", b"here", 1, 5, seconds=30),
        row(b"moved", b"there", 0, 900, seconds=20),
        row(b"same time", b"low", 0, 77),
        row(b"same time", b"high", 1, 2),
        row(b"", b"an empty key is one", 0, 10),
    )
    assert found(newest_per_key(rows)) == {
        b"offset": (b"new", 0, 8),
        b"deleted": (None, 0, 2),
        b"back": (b"again", 0, 4),
        b"moved": (b"here", 1, 5),
        b"same time": (b"high", 1, 2),
        b"": (b"an empty key is one", 0, 10),
    }


def test_as_a_fold_would_have_it(spark: SparkSession) -> None:
    dice = random.Random(8)
    rows, fold = [], {}
    for offset in range(500):
        key, value = b"k%d" % dice.randrange(60), dice.choice([None, b"%d" % offset])
        partition = zlib.crc32(key) % 3
        rows.append(row(key, value, partition, offset))
        fold[key] = (value, partition, offset)
    dice.shuffle(rows)
    assert found(newest_per_key(frame(spark, *rows).repartition(3))) == fold


def test_settled_and_keyless_rows_are_left_out(spark: SparkSession) -> None:
    rows = frame(
        spark, row(b"a", b"", 0, 4), row(b"b", b"", 0, 5), row(b"c", b"", 1, 0), row(b"d", b"", 2, 0), row(None, b"", 1, 1)
    )
    left = [(each.partition, each.offset) for each in after_positions(rows, {0: 5, 1: 0}).collect()]
    assert sorted(left) == [(0, 5), (1, 0), (1, 1), (2, 0)]
    assert after_positions(rows, {0: 0}).count() == keyed(rows).count() + 1 == 5


def test_a_bucket_is_what_python_says(spark: SparkSession) -> None:
    keys = [b"", b"\x00", b"alice", "Zoë".encode(), bytes(range(256))]
    rows = with_bucket(frame(spark, *[row(key, b"", 0, 0) for key in keys]), 16).collect()
    assert [each.bucket for each in rows] == [zlib.crc32(key) % 16 for key in keys]


# -- the merge ----------------------------------------------------------------------------------------------------------------


COLUMNS = table_columns(None)
Row = dict[str, Any]


def table_row(key: bytes, value: bytes | None, offset: int, *, partition: int = 0, seconds: int = 0) -> Row:
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


def merged(place: Path, position: int, *rows: Row) -> MergeCounts:
    return merge(ensure(place), staged(place, *rows), {"customers/0": position})


def values(place: Path) -> dict[bytes, bytes]:
    rows = ensure(place).delta.to_pyarrow_table().to_pylist()
    assert len({each["key"] for each in rows}) == len(rows)
    return {each["key"]: each["value"] for each in rows}


def test_upserts_and_deletes(tmp_path: Path) -> None:
    assert merged(tmp_path, 3, table_row(b"a", b"1", 0), table_row(b"b", b"1", 1), table_row(b"c", b"1", 2)) == MergeCounts(
        3, 0, 0
    )
    changes = [
        table_row(b"a", b"2", 3, seconds=-60),
        table_row(b"b", None, 4),
        table_row(b"d", b"1", 5),
        table_row(b"never", None, 6),
    ]
    assert merged(tmp_path, 7, *changes) == MergeCounts(1, 1, 1)
    assert values(tmp_path) == {b"a": b"2", b"c": b"1", b"d": b"1"}
    assert ensure(tmp_path).position("customers/0") == 7
    (found,) = [each for each in ensure(tmp_path).delta.to_pyarrow_table().to_pylist() if each["key"] == b"a"]
    assert found == table_row(b"a", b"2", 3, seconds=-60), "every column is the newer row's"


def test_another_partition_wins_by_time_only(tmp_path: Path) -> None:
    merged(tmp_path, 10, table_row(b"a", b"old", 9), table_row(b"b", b"old", 8), table_row(b"c", b"old", 7, partition=1))
    older = [table_row(b"a", b"older", 0, partition=1, seconds=-1), table_row(b"b", None, 1, partition=1, seconds=-1)]
    assert merged(tmp_path, 10, *older, table_row(b"c", b"same time", 11)) == MergeCounts(0, 0, 0)
    newer = [table_row(b"a", b"new", 2, partition=1), table_row(b"b", None, 3, partition=1, seconds=1)]
    assert merged(tmp_path, 10, *newer) == MergeCounts(0, 1, 1)
    assert values(tmp_path) == {b"a": b"new", b"c": b"old"}


def test_files_of_other_buckets_stay(tmp_path: Path) -> None:
    keys = [b"k%d" % number for number in range(40)]
    merged(tmp_path, 40, *[table_row(key, b"1", offset) for offset, key in enumerate(keys)])
    before = set(ensure(tmp_path).delta.file_uris())
    merged(tmp_path, 41, table_row(b"k7", b"2", 40))
    after = set(ensure(tmp_path).delta.file_uris())
    assert len(before) == len(after) == 4
    assert len(before & after) == 3


def test_no_rows_still_move_the_position(tmp_path: Path) -> None:
    assert merged(tmp_path, 12) == MergeCounts()
    assert ensure(tmp_path).position("customers/0") == 12


def test_of_two_merges_at_a_time_one_is_refused(tmp_path: Path) -> None:
    one, other = ensure(tmp_path), ensure(tmp_path)
    merge(one, staged(tmp_path, table_row(b"a", b"1", 0)), {"customers/0": 1})
    with pytest.raises(TableConflict, match="let one run alone write to it"):
        merge(other, staged(tmp_path, table_row(b"a", b"other", 0)), {"customers/0": 1})
    assert values(tmp_path) == {b"a": b"1"}


def test_a_table_that_cannot_be_written(tmp_path: Path) -> None:
    table = ensure(tmp_path)
    bucket = zlib.crc32(b"a") % 4
    (table.place / f"bucket={bucket}").write_text("in the way")
    with pytest.raises(TableUnwritable, match="nothing can be merged"):
        merge(table, staged(tmp_path, table_row(b"a", b"1", 0)), {"customers/0": 1})
    assert ensure(tmp_path).position("customers/0") == 0


def test_old_batches_go_and_the_checkpoint_stays(tmp_path: Path) -> None:
    for name in ("batch-1234", "checkpoint"):
        (tmp_path / "_tidelog" / name / "files").mkdir(parents=True)
    remove_leftovers(tmp_path, time.time())
    assert (tmp_path / "_tidelog" / "batch-1234").exists(), "it may be of a run that goes on"
    remove_leftovers(tmp_path, time.time() + STAGED_HOURS_MAX * 3600 + 1)
    assert [path.name for path in (tmp_path / "_tidelog").iterdir()] == ["checkpoint"]
    remove_leftovers(tmp_path / "none", time.time())
