"""Which messages are good, which are bad and why, on one small frame."""

import datetime
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.data_source import schema_text
from tidelog.spark.pipelines.archive.rows import archive_columns, archive_rows, read_schema

DDL = """id BIGINT NOT NULL, city STRING, placed TIMESTAMP, buyer STRUCT<name: STRING NOT NULL, age: INT>, price DECIMAL(5,2),
         lines ARRAY<STRUCT<sku: STRING NOT NULL>>"""
MOMENT = datetime.datetime(2026, 11, 16, 23, 59, 59, tzinfo=datetime.UTC)

# A value, and why it is bad.
VALUES: list[tuple[bytes | None, str | None]] = [
    (b'{"id": 1, "city": "Ulm", "placed": "2026-11-16T10:00:00"}', None),
    (b'{"id": 2, "unknown": [1], "city": null}', None),
    (b' {"id": 3, "lines": [], "buyer": {"name": "Eva"}} \n', None),
    (b'{"id": 4, "city": 5, "price": 1.234}', None),
    (b'{"id": 5, "city": "}{"}', None),
    (None, None),
    (b"", "not JSON"),
    (b"not JSON", "not JSON"),
    (b'{"id": 1', "not JSON"),
    (b"{'id': 1}", "not JSON"),
    (b'{"id": 1, "city": NaN}', "not JSON"),
    (b'{"id": 1}{"id": 2}', "not JSON"),
    (b'{"id": 1}\n{"id": 2}', "not JSON"),
    (b'{"id": 1}, {"id": 2}', "not a JSON object"),
    (b'{"id": 1}}', "not JSON"),
    (b'{"id": 1} and more', "not JSON"),
    (b'{"id": 1},"value":{"id": 2}', "not JSON"),
    (b'{"id": 1},"other":{"id": 2}', "not JSON"),
    (b'{"id": 1},"end":true} garbage', "not JSON"),
    (b'{"id": 1, "city": "\xff"}', "not UTF-8"),
    (b'[{"id": 1}]', "not a JSON object"),
    (b'"text"', "not a JSON object"),
    (b"12", "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'{"id": "1"}', "field id is no bigint"),
    (b'{"id": 1.5}', "field id is no bigint"),
    (b'{"id": 99999999999999999999}', "field id is no bigint"),
    (b'{"id": 1, "placed": "tomorrow"}', "field placed is no timestamp"),
    (b'{"id": 1, "price": 12345678}', "field price is no decimal(5,2)"),
    (b'{"id": 1, "buyer": 5}', "field buyer is no struct<name:string,age:int>"),
    (b'{"id": 1, "buyer": {"name": "Eva", "age": "old"}}', "a field inside of another has the wrong type"),
    (b"{}", "field id is missing"),
    (b'{"ID": 1}', "field id is missing"),
    (b'{"id": null}', "field id is missing"),
    (b'{"id": 1, "buyer": {"age": 5}}', "field buyer.name is missing"),
    (b'{"id": 1, "lines": [{"sku": "a"}, {}]}', "field lines[].sku is missing"),
]


def message(offset: int, value: bytes | None, moment: datetime.datetime = MOMENT) -> tuple[Any, ...]:
    return b"key", value, "orders", 0, offset, moment, 0, [Row(key="h", value=b"x")]


def schema_of(spark: SparkSession, text: str = DDL) -> StructType:
    found = read_schema(text, None)
    assert found is not None
    return found


def archived(spark: SparkSession, messages: list[tuple[Any, ...]], schema: StructType | None) -> list[Row]:
    rows = archive_rows(spark.createDataFrame(messages, f"struct<{schema_text(True)}>"), schema)
    assert rows.schema.names == archive_columns(schema).names
    return sorted(rows.collect(), key=lambda row: row.offset)


def test_good_and_bad(spark: SparkSession) -> None:
    rows = archived(spark, [message(offset, value) for offset, (value, _) in enumerate(VALUES)], schema_of(spark))
    assert [(row.value, row.error) for row in rows] == VALUES
    assert [row.bad for row in rows] == [error is not None for _, error in VALUES]
    assert {(row.key, row.topic, row.partition, row.headers[0].value) for row in rows} == {(b"key", "orders", 0, b"x")}
    fields = [(row.id, row.city, row.placed, row.buyer, row.price, row.lines) for row in rows]
    assert {each for each, row in zip(fields, rows, strict=True) if row.bad} == {(None,) * 6}
    assert [each[0] for each in fields[:6]] == [1, 2, 3, 4, 5, None]
    assert fields[0][1:3] == ("Ulm", datetime.datetime(2026, 11, 16, 10))
    assert fields[2][3] == Row(name="Eva", age=None)
    assert fields[3][1] == "5"


def test_the_day_is_that_of_utc(spark: SparkSession) -> None:
    moments = [MOMENT, MOMENT + datetime.timedelta(seconds=1), datetime.datetime(1969, 12, 31, 23, tzinfo=datetime.UTC)]
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        frame = [message(offset, b"any", moment) for offset, moment in enumerate(moments)]
        days = [row.day.isoformat() for row in archived(spark, frame, None)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert days == ["2026-11-16", "2026-11-17", "1969-12-31"]


def test_without_a_schema_nothing_is_bad(spark: SparkSession) -> None:
    rows = archived(spark, [message(0, b"not JSON"), message(1, None)], None)
    assert [(row.value, row.bad, row.error) for row in rows] == [(b"not JSON", False, None), (None, False, None)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id BIGINT, Offset INT", "has a field Offset, and the archive has a column of that name"),
        ("id BIGINT, ID INT", "has field ID twice"),
        ("id BIGGEST", "is not a schema"),
        ("", "names no fields"),
        ("{}", "is not a schema"),
        ('{"type": "struct"}', "is not a schema"),
        ("`a b` INT", "a column's name has no blanks"),
        ("a VARIANT", "field a is variant, which a Delta table cannot hold"),
        ("a INTERVAL DAY", "which a Delta table cannot hold"),
        ("a VOID", "which a Delta table cannot hold"),
    ],
)
def test_schemas_that_are_refused(spark: SparkSession, text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        read_schema(text, None)


def test_a_schema_from_a_file(spark: SparkSession, tmp_path: Any) -> None:
    schema = schema_of(spark)
    for name, text in (("ddl", DDL), ("json", schema.json())):
        (tmp_path / name).write_text(text)
        assert read_schema(None, str(tmp_path / name)) == schema
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_schema(None, str(tmp_path / "none"))
