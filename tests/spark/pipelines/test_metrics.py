"""Metrics on a real broker: every closed window once in the table and once in the topic, also when the driver is killed.

Windows on small frames: the time of a message, what is counted of it, and what is made of the partitions of a window.
"""

import datetime
import json
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from tests.compatibility.apache_kafka import wait_until
from tests.deadletters.letters import read_all
from tests.spark.pipelines.interrupting import SECONDS_MAX, ctrl_c_after
from tests.spark.pipelines.metrics_child import options
from tests.spark.reading import producer
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.spark.pipelines.metrics import (
    COLUMNS,
    LateGroups,
    MetricsOptions,
    by_topic,
    check_checkpoint,
    events,
    identity_of,
    interval,
    read_query_id,
    run,
    sink_options,
    windows,
)
from tidelog.spark.pipelines.pipeline import PipelineFailed, Silent
from tidelog.spark.tables.errors import WrongTable
from tidelog.spark.tables.lake_table import LakeTable

CHILD_SECONDS_MAX = 300
NOON_S = 1_769_860_800


class Scene:
    """A topic with two partitions, a table, and a metrics topic that is not there yet."""

    def __init__(self, bootstrap: str, place: Path) -> None:
        self.bootstrap = bootstrap
        self.place = place
        self.topic = create_topic(bootstrap, f"orders-{secrets.token_hex(4)}", partitions=2)
        self.metrics_topic = f"{self.topic}-metrics"

    @property
    def words(self) -> list[str]:
        return [self.bootstrap, self.topic, str(self.place / "table"), self.metrics_topic]

    @property
    def options(self) -> MetricsOptions:
        return options(*self.words)

    def send(self, *seconds: float) -> None:
        """One message for each: so many seconds after noon, which the value says."""
        sender = producer(self.bootstrap)
        for number, second in enumerate(seconds):
            value = json.dumps({"at": (NOON_S + second) * 1000}).encode()
            sender.produce(self.topic, value, f"k{number % 3}".encode(), partition=number % 2)
        assert sender.flush(60) == 0

    def in_table(self, spark: SparkSession) -> list[tuple[int, int]]:
        """Of each window its begin, in seconds after noon, and its messages."""
        rows = LakeTable.open(self.place / "table", kind="metrics").frame(spark).collect()
        return sorted((round(row.window_start.timestamp() - NOON_S), row.messages) for row in rows)

    def close_two_windows(self) -> None:
        """With a message that comes when a run has done its first batch."""
        place = self.place / "table"
        wait_until((place / "_tidelog" / "checkpoint" / "commits" / "0").exists, "a batch is done", SECONDS_MAX)
        self.send(25)
        wait_until(lambda: LakeTable.open(place).delta.count() == 2, "two windows", SECONDS_MAX)

    def in_topic(self) -> list[dict[str, Any]]:
        messages = read_all(self.bootstrap, self.metrics_topic)
        assert {message.key() for message in messages} <= {self.topic.encode()}
        return [json.loads(message.value()) for message in messages]

    def windows_in_topic(self) -> list[tuple[str, int]]:
        return [(found["window_start"], found["messages"]) for found in self.in_topic()]


@pytest.fixture
def scene(kafka: ToolkitBroker, tmp_path: Path) -> Scene:
    return Scene(kafka.bootstrap, tmp_path)


def test_windows_come_once_when_they_are_closed(spark: SparkSession, scene: Scene) -> None:
    scene.send(1, 2, 3, 11, 12)
    continuous = MetricsOptions(**{**vars(scene.options), "continuous": True, "trigger_seconds": 0.2})
    with ctrl_c_after(scene.close_two_windows):
        outcome = run(spark, continuous, Silent())
    assert outcome.summary.endswith("stopped; the same command continues from here")
    assert (outcome.figures["messages read"], outcome.figures["windows written"]) == (6, 2)
    assert scene.in_table(spark) == [(0, 3), (10, 2)], "the window of 25 is still open"
    assert scene.windows_in_topic() == [("2026-01-31T12:00:00.000Z", 3), ("2026-01-31T12:00:10.000Z", 2)]
    (first, _) = scene.in_topic()
    unsure = dict.fromkeys(("delay_p50_ms", "delay_p95_ms", "delay_p99_ms", "delay_max_ms", "bytes", "bytes_per_second"), 0)
    assert {**first, **unsure} == {
        **unsure,
        "window_start": "2026-01-31T12:00:00.000Z", "window_end": "2026-01-31T12:00:10.000Z", "topic": scene.topic,
        "messages": 3, "messages_per_second": 0.3, "undated": 0, "keyless": 0,
        "hot_keys": [{"key": "k0", "messages": 1}, {"key": "k1", "messages": 1}, {"key": "k2", "messages": 1}],
        "partitions": 2, "busiest_partition": 0, "skew": pytest.approx(4 / 3),
    }  # fmt: skip

    scene.send(4, 26, 40)
    again = run(spark, scene.options, Silent())
    assert scene.in_table(spark) == [(0, 3), (10, 2), (20, 2)], "4 came too late, 40 is open"
    assert again.figures["late groups dropped"] == 1
    assert len(scene.windows_in_topic()) == 3

    elsewhere = MetricsOptions(**{**vars(scene.options), "checkpoint": str(scene.place / "elsewhere")})
    with pytest.raises(WrongTable, match="has windows of another checkpoint"):
        run(spark, elsewhere, Silent())


@pytest.mark.parametrize("point", ["between", pytest.param("after", marks=pytest.mark.soak)])
def test_a_driver_is_killed_between_table_and_topic(point: str, spark: SparkSession, scene: Scene) -> None:
    scene.send(1, 2, 3, 11, 12, 25)
    with open(scene.place / "child.log", "wb") as log:
        command = [sys.executable, "-m", "tests.spark.pipelines.metrics_child", point, *scene.words, str(scene.place / "local")]
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    assert child.wait(CHILD_SECONDS_MAX) == -signal.SIGKILL, (scene.place / "child.log").read_text()[-2000:]
    windows = [(0, 3), (10, 2)]
    assert scene.in_table(spark) == windows
    assert len(scene.windows_in_topic()) == (0 if point == "between" else 2)
    run(spark, scene.options, Silent())
    assert scene.in_table(spark) == windows
    assert scene.windows_in_topic() == [("2026-01-31T12:00:00.000Z", 3), ("2026-01-31T12:00:10.000Z", 2)]
    scene.send(26, 40)
    run(spark, scene.options, Silent())
    assert scene.in_table(spark) == [*windows, (20, 2)], "the window that was open has what it had before"
    assert len(scene.windows_in_topic()) == 3


def test_what_is_refused_before_anything_is_read(scene: Scene) -> None:
    missing = MetricsOptions(topic=("there-is-none",), table=str(scene.place / "t"), bootstrap=scene.bootstrap)
    with pytest.raises(UnknownTopic):
        run(None, missing, Silent())  # type: ignore[arg-type]  # it does not come so far as to need Spark
    assert not (scene.place / "t").exists()
    LakeTable.ensure(scene.place / "table", COLUMNS, identity={**identity_of(scene.options), "window": "1 milliseconds"})
    with pytest.raises(WrongTable, match="is of window 1 milliseconds, not of window 10000 milliseconds"):
        run(None, scene.options, Silent())  # type: ignore[arg-type]  # as above


def test_a_metrics_topic_is_exactly_once_or_refused() -> None:
    given = MetricsOptions(topic=("a",), table="t", metrics_topic="m", kafka=("security.protocol=SASL_SSL",))
    with pytest.raises(InvalidArgument, match="exactly-once"):
        sink_options(given)
    assert sink_options(MetricsOptions(topic=("a",), table="t", kafka=("security.protocol=SASL_SSL",))) is None


def test_a_table_belongs_to_one_checkpoint(tmp_path: Path) -> None:
    table = LakeTable.ensure(tmp_path / "table", COLUMNS, identity={"kind": "metrics"})
    check_checkpoint(table, tmp_path / "none")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id": "one"}')
    assert read_query_id(checkpoint) == "one"
    table.append_rows(COLUMNS.empty_table().slice(0, 0), {"one": 1})
    check_checkpoint(LakeTable.open(table.place), checkpoint)
    (checkpoint / "metadata").write_text("{}")
    with pytest.raises(PipelineFailed, match="cannot be read"):
        read_query_id(checkpoint)


class Told:
    def __init__(self, batch: int, dropped: int) -> None:
        self.json = json.dumps({"batchId": batch, "stateOperators": [{"numRowsDroppedByWatermark": dropped}]})


def test_late_groups_are_counted_once() -> None:
    late = LateGroups()
    late.look()
    query = SimpleNamespace(recentProgress=[Told(0, 2), Told(1, 3)])
    late.query = query  # type: ignore[assignment]  # it has all that is asked of it
    late.look()
    late.look()
    query.recentProgress = [Told(1, 3), Told(1, 3), Told(2, 1)]
    late.look()
    assert late.count == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": ()}, "--topic is missing"),
        ({"topic": ("a", "a")}, "names one topic twice"),
        ({"table": ""}, "--table"),
        ({"metrics_topic": "a"}, "--metrics-topic a is one of those watched"),
        ({"event_time": "a b"}, "--event-time a b"),
        ({"event_time": "a['x']"}, "--event-time"),
        ({"window_seconds": 0.0}, "--window-seconds"),
        ({"watermark_seconds": -1.0}, "--watermark-seconds"),
        ({"trigger_seconds": 0.0}, "--trigger-seconds"),
        ({"kafka": ("x",)}, "--kafka x"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        MetricsOptions(**{"topic": ("a",), "table": "t", **given})


# -- windows ------------------------------------------------------------------------------------------------------------------


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
