"""A table on a real disk, through deltalake: what it is, how far it has come, what it takes and what it refuses."""

import datetime
import os
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidelog.client.errors import InvalidArgument
from tidelog.spark.tables.data_files import write_files
from tidelog.spark.tables.errors import TableConflict, TableMissing, TableUnwritable, WrongSchema, WrongTable
from tidelog.spark.tables.lake_table import LakeTable, check_checkpoint_place

COLUMNS = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("bad", pa.bool_()),
    ]
)
IDENTITY = {"kind": "archive", "topic": "orders"}
BY = ("day", "bad")
DAY = datetime.date(2026, 11, 16)


def rows(first: int, count: int, *, day: datetime.date = DAY) -> pa.RecordBatch:
    offsets = range(first, first + count)
    moment = datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC)
    columns = [
        pa.array([0] * count, pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array([b"%d" % offset for offset in offsets], pa.binary()),
        pa.array([[{"key": "h", "value": b"x"}]] * count, COLUMNS.field("headers").type),
        pa.array([moment] * count, COLUMNS.field("timestamp").type),
        pa.array([day] * count, pa.date32()),
        pa.array([offset % 10 == 9 for offset in offsets], pa.bool_()),
    ]
    return pa.record_batch(columns, schema=COLUMNS)


def ensure(place: Path, columns: pa.Schema = COLUMNS) -> LakeTable:
    return LakeTable.ensure(place, columns, partition_by=BY, identity=IDENTITY)


def append(table: LakeTable, batch: pa.RecordBatch, position: int) -> None:
    table.append(write_files([batch], table.place, BY, ("offset",)), {"orders/0": position})


def test_rows_and_positions_come_together(tmp_path: Path, spark: SparkSession) -> None:
    place = tmp_path / "table"
    assert ensure(place).position("orders/0") == 0
    append(ensure(place), rows(0, 20), 20)
    table = ensure(place)
    assert table.position("orders/0") == 20
    found = table.frame(spark)
    assert found.schema.names == COLUMNS.names
    assert sorted((row.offset, row.value, row.bad, row.day) for row in found.collect()) == [
        (offset, b"%d" % offset, offset % 10 == 9, DAY) for offset in range(20)
    ]
    assert {row.headers[0].key for row in found.collect()} == {"h"}


def test_an_empty_table_has_its_columns(tmp_path: Path, spark: SparkSession) -> None:
    found = ensure(tmp_path / "table").frame(spark)
    assert found.schema.names == COLUMNS.names
    assert found.count() == 0


def test_of_two_writers_one_is_refused(tmp_path: Path) -> None:
    one, other = ensure(tmp_path), ensure(tmp_path)
    append(one, rows(0, 10), 10)
    with pytest.raises(TableConflict, match="nothing of this batch was committed"):
        append(other, rows(0, 10), 10)
    assert LakeTable.open(tmp_path).delta.count() == 10


def test_new_columns_are_added_and_null_in_older_rows(tmp_path: Path, spark: SparkSession) -> None:
    append(ensure(tmp_path), rows(0, 5), 5)
    wider = COLUMNS.append(pa.field("city", pa.string()))
    table = ensure(tmp_path, wider)
    assert "city" in table.columns.names
    assert table.position("orders/0") == 5
    assert {row.city for row in table.frame(spark).collect()} == {None}
    assert ensure(tmp_path).columns.names == wider.names, "an older schema takes nothing away"


def test_another_type_is_refused(tmp_path: Path) -> None:
    ensure(tmp_path)
    index = COLUMNS.get_field_index("value")
    with pytest.raises(WrongSchema, match="has column value as binary, the pipeline writes int64"):
        ensure(tmp_path, COLUMNS.set(index, pa.field("value", pa.int64())))


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    ensure(tmp_path)
    with pytest.raises(WrongTable, match="is of topic orders, not of topic payments"):
        LakeTable.ensure(tmp_path, COLUMNS, partition_by=BY, identity={"kind": "archive", "topic": "payments"})
    with pytest.raises(WrongTable, match="partitioned by"):
        LakeTable.ensure(tmp_path, COLUMNS, partition_by=("day",), identity=IDENTITY)
    with pytest.raises(WrongTable, match="is of kind archive, not of kind metrics"):
        LakeTable.open(tmp_path, kind="metrics")


def test_what_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(TableMissing, match="nothing is there"):
        LakeTable.open(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TableMissing, match="no _delta_log"):
        LakeTable.open(tmp_path)
    with pytest.raises(WrongTable, match="not empty"):
        ensure(tmp_path)
    with pytest.raises(WrongTable, match="not an address"):
        LakeTable.open("s3://bucket/table")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_table_within_a_table_is_refused(tmp_path: Path) -> None:
    ensure(tmp_path / "table")
    with pytest.raises(WrongTable, match=r"lies within the table .*/table, whose upkeep would remove its files"):
        ensure(tmp_path / "table" / "deep" / "inner")
    assert not (tmp_path / "table" / "deep").exists()
    ensure(tmp_path / "other")


@pytest.mark.parametrize(
    ("checkpoint", "is_fine"),
    [
        ("table/_tidelog/checkpoint", True),
        ("table/_mine", True),
        ("checkpoint", True),
        ("table", False),
        ("table/checkpoint", False),
        ("table/day=x/_checkpoint", False),
        ("other/../table/checkpoint", False),
        ("other/checkpoint", False),
    ],
)
def test_a_checkpoint_that_upkeep_would_remove_is_refused(tmp_path: Path, checkpoint: str, is_fine: bool) -> None:
    """Also one within another table than its own, and before its own is there."""
    ensure(tmp_path / "other")
    expected = nullcontext() if is_fine else pytest.raises(InvalidArgument, match=r"--checkpoint .* whose upkeep would remove it")
    with expected:
        check_checkpoint_place(tmp_path / checkpoint, tmp_path / "table")


def test_a_place_with_blanks_and_umlauts(tmp_path: Path, spark: SparkSession) -> None:
    place = tmp_path / "my töpics #1"
    append(ensure(place), rows(0, 20), 20)
    table = LakeTable.open(place)
    assert {Path(path) for path in table.paths()} == set(place.rglob("*.parquet"))
    assert table.frame(spark).count() == 20
    with pytest.raises(WrongTable, match="a path with %"):
        ensure(tmp_path / "my%20topics")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TableUnwritable, match="Not a directory"):
        ensure(tmp_path / "file" / "table")
    table = ensure(tmp_path / "table")
    (table.place / "day=2026-11-16").write_text("in the way")
    with pytest.raises(TableUnwritable):
        write_files([rows(0, 1)], table.place, BY, ())
    assert table.delta.count() == 0


def test_a_failed_task_leaves_no_file(tmp_path: Path) -> None:
    def batches() -> object:
        yield rows(0, 10)
        raise RuntimeError("the reader died")

    with pytest.raises(RuntimeError):
        write_files(batches(), tmp_path, BY, ())  # type: ignore[arg-type]  # a generator that never ends well
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == []


def test_a_batch_of_two_days_becomes_a_file_each(tmp_path: Path) -> None:
    table = ensure(tmp_path)
    both = pa.Table.from_batches([rows(0, 5), rows(5, 5, day=DAY + datetime.timedelta(days=1))]).combine_chunks().to_batches()
    files = write_files(both, table.place, BY, ("offset",))
    assert sorted((file.partition_values["day"], file.partition_values["bad"], file.rows) for file in files) == [
        ("2026-11-16", "false", 5),
        ("2026-11-17", "false", 4),
        ("2026-11-17", "true", 1),
    ]
