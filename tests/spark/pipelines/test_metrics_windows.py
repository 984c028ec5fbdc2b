"""Windows on small frames: the time of a message, what is counted of it, and what is made of the partitions of a window."""

import datetime
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from tidelog.spark.pipelines.metrics_windows import by_topic, events, interval, windows

UTC = datetime.UTC
NOON = datetime.datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
KINDS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


def at(seconds: float) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=seconds)


def message(
    key: bytes | None, value: bytes | None, seconds: float, *, partition: int = 0, topic: str = "orders"
) -> tuple[Any, ...]:
    return key, value, topic, partition, 0, at(seconds), 0


# Each with the time that is found in it, as seconds after noon; None: it is not believed.
TIMES: list[tuple[bytes | None, float | None]] = [
    (b'{"meta": {"at": "2026-01-31T12:00:05Z"}}', 5),
    (b'{"meta": {"at": "2026-01-31T13:00:05+01:00"}}', 5),
    (b'{"meta": {"at": %d}}' % NOON.timestamp(), 0),
    (b'{"meta": {"at": "%d"}}' % (NOON.timestamp() * 1000 + 250), 0.25),
    (b'{"meta": {"at": %d}}' % (NOON.timestamp() * 1_000_000), 0),
    (b'{"meta": {"at": %d000}}' % (NOON.timestamp() * 1_000_000), 0),
    (b'{"meta": {"at": "yesterday"}}', None),
    (b'{"meta": {"at": "2199-01-01T00:00:00Z"}}', None),
    (b'{"meta": {"at": 1e300}}', None),
    (b'{"meta": {"at": -5}}', None),
    (b'{"meta": 3}', None),
    (b"\xff\xfe not JSON", None),
    (b"", None),
    (None, None),
]


def test_the_time_of_a_message(spark: SparkSession) -> None:
    frame = spark.createDataFrame([message(None, value, 20) for value, _ in TIMES], KINDS)
    found = events(frame, "meta.at").collect()
    for (value, seconds), row in zip(TIMES, found, strict=True):
        expected = (at(20 if seconds is None else seconds), seconds is None, None if seconds is None else 1000 * (20 - seconds))
        assert (row.event_time.astimezone(UTC), row.undated, row.delay_ms) == expected, value


# Two windows of orders, on three of four partitions, and one of payments.
MESSAGES = [
    *(message(b"hot", b"x" * 90, number, partition=1) for number in range(10)),
    *(message(b"k%d" % number, b"1234", 59, partition=2) for number in range(3)),
    message(b"hot", None, 30, partition=0),
    message(None, b"1234567890", 59.999, partition=0),
    message(b"\xff\x01", b"", 0, partition=0),
    message(b"next", b"", 60, partition=0),
    message(b"p", b"p", 0, topic="payments"),
]


@pytest.fixture(scope="module")
def counted(spark: SparkSession) -> dict[tuple[str, datetime.datetime], Row]:
    frame = spark.createDataFrame(MESSAGES, KINDS)
    rows = by_topic(windows(events(frame), 60, 0), {"orders": 4}).collect()
    return {(row.topic, row.window_start.astimezone(UTC)): row for row in rows}


def test_windows_by_topic(counted: dict[tuple[str, datetime.datetime], Row]) -> None:
    assert sorted(counted) == [("orders", at(0)), ("orders", at(60)), ("payments", at(0))]
    row = counted["orders", at(0)]
    assert row.window_end.astimezone(UTC) == at(60)
    assert (row.messages, row.keyless, row.undated) == (16, 1, 0)
    assert row.bytes == 10 * 93 + 3 * 6 + 3 + 10 + 2
    assert row.messages_per_second == pytest.approx(16 / 60)
    assert row.bytes_per_second == pytest.approx(row.bytes / 60)
    assert counted["orders", at(60)].messages == 1


def test_hot_keys_of_all_partitions(counted: dict[tuple[str, datetime.datetime], Row]) -> None:
    row = counted["orders", at(0)]
    assert [(key.key, key.messages) for key in row.hot_keys] == [("hot", 11), ("0xFF01", 1), ("k0", 1), ("k1", 1), ("k2", 1)]
    assert [tuple(key) for key in counted["payments", at(0)].hot_keys] == [("p", 1)]


def test_skew_is_the_share_of_the_busiest(counted: dict[tuple[str, datetime.datetime], Row]) -> None:
    row = counted["orders", at(0)]
    assert (row.partitions, row.busiest_partition, row.skew) == (4, 1, 10 * 4 / 16)
    other = counted["payments", at(0)]
    assert (other.partitions, other.busiest_partition, other.skew) == (1, 0, 1)


def test_delay_without_a_field_is_how_long_a_message_waited(counted: dict[tuple[str, datetime.datetime], Row]) -> None:
    row = counted["orders", at(0)]
    since_noon = (datetime.datetime.now(UTC) - NOON).total_seconds() * 1000
    assert since_noon - 600_000 < row.delay_p50_ms <= row.delay_p95_ms <= row.delay_p99_ms <= row.delay_max_ms <= since_noon


def test_intervals_as_spark_reads_them() -> None:
    assert interval(60) == "60000 milliseconds"
    assert interval(0.25) == "250 milliseconds"
