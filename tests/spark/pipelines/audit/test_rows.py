"""What an audit does with rows, on small frames: fingerprints, sums, what differs and what that means."""

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere with Spark

from tidelog.spark.pipelines.audit.rows import (
    compared,
    differences,
    fingerprint,
    placed_table,
    placed_topic,
    rows_of,
    sums,
    with_meaning,
)

SCHEMA = (
    "topic string, partition int, offset bigint, key binary, value binary, headers array<struct<key:string,value:binary>>, "
    "timestamp timestamp, timestampType int"
)
MOMENT = datetime(2026, 1, 5, tzinfo=UTC)
SIZE = 10
# The log starts at 5, and the table has come to 20.
BOUNDS = [(0, 5, 20)]


def row(offset: int | None, **given: Any) -> tuple[Any, ...]:
    whole = {"topic": "orders", "partition": 0, "offset": offset, "key": b"k", "value": b"v", "headers": None}
    whole |= {"timestamp": MOMENT, "timestampType": 0, **given}
    return tuple(whole.values())


def frame(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, SCHEMA)


def bounds(spark: SparkSession, given: list[tuple[int, int, int]]) -> DataFrame:
    return spark.createDataFrame(given, "partition int, log_start bigint, end bigint")


def test_whatever_differs_has_another_fingerprint(spark: SparkSession) -> None:
    different = [
        row(1),
        row(2),
        row(1, partition=1),
        row(1, key=None),
        row(1, key=b""),
        row(1, key=b"k", value=None),
        row(1, key=None, value=b"k"),
        row(1, key=b"kv", value=b""),
        row(1, key=b"", value=b"kv"),
        row(1, timestamp=None),
        row(1, timestampType=1),
        row(1, headers=[("a", None)]),
        row(1, headers=[("a", b"")]),
        row(1, headers=[("a", None), ("b", b"c")]),
        row(1, headers=[("a", b"b"), ("c", None)]),
        row(1, headers=[("a", b"b")]),
        row(1, headers=[("", b"ab")]),
    ]
    same = [row(1), row(1, headers=[]), row(1, topic="another")]
    found = [each.mark for each in frame(spark, [*different, *same]).select(fingerprint().alias("mark")).collect()]
    assert len(set(found[: len(different)])) == len(different)
    assert set(found[len(different) :]) == {found[0]}


def test_sums_and_findings(spark: SparkSession) -> None:
    topic = placed_topic(frame(spark, [row(offset) for offset in range(5, 22)]), bounds(spark, BOUNDS), SIZE)
    kept = [row(offset) for offset in range(20) if offset not in (7, 12)]
    planted = [
        row(2),  # a duplicate of what has expired
        row(15, value=b"w"),  # a copy that is another one
        row(25),  # past the end
        row(6, topic="payments"),
        row(None),
        row(1, partition=None),
        row(1, partition=4),
    ]
    table = placed_table(frame(spark, [*kept, *planted]), "orders", bounds(spark, BOUNDS), SIZE)
    cells = rows_of(compared(sums(topic, SIZE), sums(table, SIZE)))
    assert [(cell.partition, cell.portion, cell.place, cell.topic_rows, cell.table_rows, cell.differs) for cell in cells] == [
        (None, 0, "foreign", 0, 1, True),
        (0, None, "foreign", 0, 1, True),
        (0, 0, "expired", 0, 6, True),
        (0, 0, "foreign", 0, 1, True),
        (0, 0, "inside", 5, 4, True),
        (0, 1, "inside", 10, 10, True),
        (0, 2, "foreign", 0, 1, True),
        (0, 2, "later", 2, 0, False),
        (4, 0, "foreign", 0, 1, True),
    ]
    seen = topic.where((F.col("place") == "inside") & (F.col("offset") != 9))
    found = differences(seen, table, "orders").persist()
    told = {(each.kind, each.partition, each.offset, each.detail) for each in found.collect()}
    assert told == {
        ("gap", 0, 7, ""),
        ("gap", 0, 12, ""),
        ("absent", 0, 9, "the topic has no such message"),
        ("duplicate", 0, 2, "2 copies"),
        ("duplicate", 0, 15, "2 copies"),
        ("changed", 0, 15, "value"),
        ("foreign", 0, 25, "the archive has not come to this offset, or the topic does not go so far"),
        ("foreign", 0, 6, "of topic payments"),
        ("foreign", 0, None, "without a place in the topic"),
        ("foreign", None, 1, "without a place in the topic"),
        ("foreign", 4, 1, "the topic has no such partition"),
    }
    for log_start, is_compacted, meaning in ((5, False, "foreign"), (5, True, "compacted"), (10, False, "expired")):
        now = with_meaning(found, bounds(spark, [(0, log_start, 20)]), is_compacted).where("offset = 9").collect()
        assert [each.kind for each in now] == [meaning]
    found.unpersist()


def test_sums_alone_tell_a_changed_byte_and_what_counts_do_not(spark: SparkSession) -> None:
    def partition(number: int, values: list[bytes], offsets: tuple[int, ...] = (5, 6, 7)) -> list[tuple[Any, ...]]:
        return [row(offset, partition=number, value=value) for offset, value in zip(offsets, values, strict=True)]

    sent = [each for number in range(4) for each in partition(number, [b"a", b"b", b"b"])]
    # As it was; a byte changed; two values swapped; one row twice and another that is like it gone.
    kept = partition(0, [b"a", b"b", b"b"]) + partition(1, [b"a", b"b", b"c"]) + partition(2, [b"b", b"a", b"b"])
    kept += partition(3, [b"a", b"b", b"b"], (5, 6, 6))
    places = bounds(spark, [(number, 5, 20) for number in range(4)])
    topic, table = placed_topic(frame(spark, sent), places, SIZE), placed_table(frame(spark, kept), "orders", places, SIZE)
    cells = rows_of(compared(sums(topic, SIZE), sums(table, SIZE)))
    assert [(cell.partition, cell.topic_rows, cell.table_rows, cell.differs) for cell in cells] == [
        (0, 3, 3, False),
        (1, 3, 3, True),
        (2, 3, 3, True),
        (3, 3, 3, True),
    ]
