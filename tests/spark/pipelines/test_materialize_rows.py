"""Which rows of a batch are the newest: on small frames, and against a fold in Python."""

import datetime
import random
import zlib
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidelog.spark.pipelines.materialize_rows import keyed, newest_per_key, unsettled, with_bucket

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
    left = [(each.partition, each.offset) for each in unsettled(rows, {0: 5, 1: 0}).collect()]
    assert sorted(left) == [(0, 5), (1, 0), (1, 1), (2, 0)]
    assert unsettled(rows, {0: 0}).count() == keyed(rows).count() + 1 == 5


def test_a_bucket_is_what_python_says(spark: SparkSession) -> None:
    keys = [b"", b"\x00", b"alice", "Zoë".encode(), bytes(range(256))]
    rows = with_bucket(frame(spark, *[row(key, b"", 0, 0) for key in keys]), 16).collect()
    assert [each.bucket for each in rows] == [zlib.crc32(key) % 16 for key in keys]
