"""Tasks that write files themselves write what Spark would have written. Without Spark but for the comparison."""

import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

from tidelog.client.fetch.types import SCHEMA_WITH_HEADERS
from tidelog.spark.data_source import schema_text
from tidelog.spark.pipelines.archive.json_columns import JsonColumns
from tidelog.spark.pipelines.archive.rows import PARTITION_BY, archive_columns, archive_rows
from tidelog.spark.pipelines.archive.source import ROWS_COLUMN, ArchivePartition, raw_rows, write_parsed, write_raw
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.table_sink import MESSAGE_COLUMN, TableMessage, commit_tasks

MOMENT = datetime.datetime(2026, 11, 16, 23, 59, 59, tzinfo=datetime.UTC)
LAST_MICROSECOND = 2**63 - 1


def messages(first: int, count: int) -> pa.RecordBatch:
    columns = [
        pa.array([None, b"k"] * count, pa.binary()).slice(0, count),
        pa.array([b"not JSON", None] * count, pa.binary()).slice(0, count),
        pa.array(["orders"] * count),
        pa.array([0] * count, pa.int32()),
        pa.array(range(first, first + count), pa.int64()),
        pa.array([MOMENT + datetime.timedelta(seconds=number) for number in range(count)], pa.timestamp("us", "UTC")),
        pa.array([0] * count, pa.int32()),
        pa.array([[{"key": "h", "value": b"x"}]] * count, SCHEMA_WITH_HEADERS.field("headers").type),
    ]
    return pa.record_batch(columns, schema=SCHEMA_WITH_HEADERS)


def test_the_rows_are_those_of_the_long_way(spark: SparkSession, tmp_path: Path) -> None:
    LakeTable.ensure(tmp_path, archive_columns(None), partition_by=PARTITION_BY, identity={})
    commit_tasks(tmp_path, [write_raw(tmp_path, {"orders/0": 0}, [messages(0, 4)])])
    short = LakeTable.open(tmp_path).frame(spark)
    given = messages(0, 4).to_pylist()
    long = archive_rows(spark.createDataFrame([tuple(row.values()) for row in given], f"struct<{schema_text(True)}>"), None)
    assert short.schema.names == long.schema.names
    assert sorted(short.collect(), key=lambda row: row.offset) == sorted(long.collect(), key=lambda row: row.offset)
    assert {row.day.isoformat() for row in short.collect()} == {"2026-11-16", "2026-11-17"}


def test_what_the_table_has_is_not_written(tmp_path: Path) -> None:
    LakeTable.ensure(tmp_path, archive_columns(None), partition_by=PARTITION_BY, identity={})
    commit_tasks(tmp_path, [write_raw(tmp_path, {"orders/0": 0}, [messages(0, 4)])])
    positions = {"orders/0": LakeTable.open(tmp_path).position("orders/0")}
    again = write_raw(tmp_path, positions, [messages(2, 4)])
    assert (sum(file.rows for file in again.files), again.seen, again.next) == (2, {"orders/0": 4}, {"orders/0": 6})
    assert write_raw(tmp_path, positions, [messages(0, 4)]).files == []
    assert write_raw(tmp_path, positions, []).files == []


def test_with_a_schema_spark_gets_what_is_not_certain(tmp_path: Path) -> None:
    """The files have the fields of certain values and tombstones; the position is that of all rows, for the sink writes the
    others in the same task."""
    schema = StructType().add("id", LongType(), nullable=False)
    table = LakeTable.ensure(tmp_path, archive_columns(schema), partition_by=PARTITION_BY, identity={})
    table.append([], {"orders/0": 11})
    values = [b'{"id": 7}', None, b"not JSON", b"{}", b'{"id": 8}']
    batch = messages(10, 5)
    index = batch.schema.get_field_index("value")
    batch = batch.set_column(index, "value", pa.array(values, pa.binary()))
    task = ArchivePartition([], {"orders/0": 11}, table.columns)
    *rows, last = write_parsed(tmp_path, task, [batch.slice(0, 2), batch.slice(2, 2), batch.slice(4)], JsonColumns(schema))
    assert [row["value"] for part in rows for row in part.to_pylist()] == [b"not JSON", b"{}"]
    assert {row[MESSAGE_COLUMN] for part in rows for row in part.to_pylist()} == {None}
    message = TableMessage.decode(last.column(MESSAGE_COLUMN)[0].as_py())
    assert last.column(ROWS_COLUMN).to_pylist() == [5], "all that it read"
    assert (message.seen, message.next) == ({"orders/0": 11}, {"orders/0": 15})
    commit_tasks(tmp_path, [message])
    stored = LakeTable.open(tmp_path).delta.to_pyarrow_table(columns=["offset", "id", "error", "bad"]).to_pylist()
    assert sorted((row["offset"], row["id"], row["error"], row["bad"]) for row in stored) == [
        (11, None, None, False),
        (14, 8, None, False),
    ]


def test_a_day_that_no_date_can_be_written_of_is_null() -> None:
    batch = messages(0, 3)
    index = batch.schema.get_field_index("timestamp")
    times = pa.array([LAST_MICROSECOND, -LAST_MICROSECOND, -1], pa.timestamp("us", "UTC"))
    found = {values: rows.column("offset").to_pylist() for values, rows in raw_rows(batch.set_column(index, "timestamp", times))}
    assert found[("1969-12-31", "false")] == [2]
    assert set(found) == {(None, "false"), ("1969-12-31", "false")}


@pytest.mark.parametrize("times", [[None, 0, None], [None, None, None], [None, LAST_MICROSECOND, 0]])
def test_a_message_without_a_time_is_kept(times: list[int | None]) -> None:
    batch = messages(0, 3)
    index = batch.schema.get_field_index("timestamp")
    given = batch.set_column(index, "timestamp", pa.array(times, pa.timestamp("us", "UTC")))
    found = [(values, offset) for values, rows in raw_rows(given) for offset in rows.column("offset").to_pylist()]
    days = ["1970-01-01" if time == 0 else None for time in times]
    assert sorted(found, key=lambda each: each[1]) == [((day, "false"), offset) for offset, day in enumerate(days)]
