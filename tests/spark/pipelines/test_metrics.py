"""Metrics on a real broker: every closed window once in the table and once in the topic, also when the driver is killed."""

import json
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.compatibility.apache_kafka import wait_until
from tests.deadletters.letters import read_all
from tests.spark.pipelines.interrupting import SECONDS_MAX, ctrl_c_after
from tests.spark.pipelines.metrics_child import options
from tests.spark.reading import producer
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.spark.pipelines.metrics import LateGroups, MetricsOptions, check_checkpoint, identity_of, run, sink_options
from tidelog.spark.pipelines.metrics_batches import COLUMNS, read_query_id
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
    assert outcome.summary.endswith("stopped; the same command goes on from here")
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
        ({"topic": ("a", "a")}, "named twice"),
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
