"""archive on a real broker: what is in the topic is in the table, once, and what is refused is refused before it reads.

A checkpoint that is ahead of the table is not believed. Without Spark: a checkpoint is a few files. What a run says that it
brought, of a table on disk. Which checkpoint is that of a directory of Parquet files, by the names in Spark's logs alone.
"""

import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import Row, SparkSession

from tests.compatibility.apache_kafka import wait_until
from tests.spark.pipelines.interrupting import SECONDS_MAX, ctrl_c_after
from tests.spark.reading import producer
from tests.spark.tables.test_lake_table import append, ensure, rows
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.checkpoint_offsets import StreamOffset
from tidelog.spark.pipelines import archive
from tidelog.spark.pipelines.archive.pipeline import ArchiveOptions, added_by, check_parquet_place, note_end, set_aside_if_ahead
from tidelog.spark.pipelines.archive.rows import PARTITION_BY, archive_columns
from tidelog.spark.pipelines.pipeline import PipelineOutcome, Reporter, Silent
from tidelog.spark.pipelines.topics import FoundTopic
from tidelog.spark.tables.errors import WrongSchema, WrongTable
from tidelog.spark.tables.lake_table import LakeTable

SCHEMA = "id BIGINT NOT NULL, city STRING"


class Scene(NamedTuple):
    spark: SparkSession
    bootstrap: str
    topic: str
    place: Path

    def send(self, numbers: range, *, partitions: int = 2) -> None:
        """Every tenth is bad."""
        sender = producer(self.bootstrap)
        for number in numbers:
            value = b"poison" if number % 10 == 9 else json.dumps({"id": number, "city": "Ulm", "new": 1}).encode()
            headers = [("h", b"%d" % number)]
            sender.produce(self.topic, value, b"k%d" % number, partition=number % partitions, headers=headers)
        assert sender.flush(60) == 0

    def run(self, reporter: Reporter | None = None, **given: Any) -> PipelineOutcome:
        table = given.pop("table", str(self.place))
        topic = given.pop("topic", (self.topic,))
        options = ArchiveOptions(topic=topic, table=table, **{"bootstrap": self.bootstrap, "schema": SCHEMA, **given})
        return archive.run(self.spark, options, reporter or Silent())

    def run_until(self, meanwhile: Callable[[], None], **given: Any) -> PipelineOutcome:
        with ctrl_c_after(meanwhile):
            return self.run(continuous=True, trigger_seconds=0.2, **given)

    def wait_for(self, count: int) -> None:
        def is_there() -> bool:
            # The log's directory is there a moment before the first version is.
            return any(self.place.glob("_delta_log/*.json")) and LakeTable.open(self.place).delta.count() >= count

        wait_until(is_there, f"{count} rows", SECONDS_MAX)

    def rows(self) -> list[Row]:
        return LakeTable.open(self.place, kind="archive").frame(self.spark).collect()

    def keys(self) -> list[str]:
        return sorted(row.key.decode() for row in self.rows())


PARTITIONS, TRIGGERS = 40, 8


def test_files_follow_rows_and_not_partitions(spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path) -> None:
    """Small triggers of a topic with many partitions leave a file each, at most, and not one for each partition."""
    topic = create_topic(kafka.bootstrap, f"archive-{token_hex(4)}", partitions=PARTITIONS)
    scene = Scene(spark, kafka.bootstrap, topic, tmp_path / "t")
    count = PARTITIONS * TRIGGERS
    scene.send(range(count), partitions=PARTITIONS)
    outcome = scene.run(schema=None, batch_rows=PARTITIONS)
    assert (outcome.figures["rows"], scene.keys()) == (count, keys(count))
    table = LakeTable.open(scene.place)
    assert (table.version, len(table.files())) == (TRIGGERS, TRIGGERS)


class CtrlC(Silent):
    def step(self, text: str) -> None:
        """Before the first query has begun."""
        os.kill(os.getpid(), signal.SIGINT)


def keys(count: int) -> list[str]:
    return sorted(f"k{number}" for number in range(count))


@pytest.fixture
def scene(spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path) -> Scene:
    return Scene(spark, kafka.bootstrap, create_topic(kafka.bootstrap, f"archive-{token_hex(4)}", partitions=2), tmp_path / "t")


def test_from_topic_to_table_and_on(scene: Scene) -> None:
    """One story, for each run costs seconds: all messages, then new ones with a schema and from a new partition, a new field
    under a new checkpoint."""
    scene.send(range(100))
    outcome = scene.run(schema=None)
    assert (outcome.figures["rows"], outcome.figures["bad_rows"]) == (100, 0)
    assert outcome.figures["positions"] == "0: 50, 1: 50"
    assert scene.keys() == keys(100)

    admin = AdminClient({"bootstrap.servers": scene.bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(scene.topic, 3)])[scene.topic].result()
    wait_until(lambda: len(admin.list_topics(scene.topic).topics[scene.topic].partitions) == 3, "the partition is seen")
    scene.send(range(100, 130), partitions=3)
    version = LakeTable.open(scene.place).version
    outcome = scene.run()
    assert (outcome.figures["rows"], outcome.figures["bad_rows"]) == (30, 3)
    assert LakeTable.open(scene.place).version == version + 2, "the columns, and the rows of one batch"

    shutil.rmtree(scene.place / "_tidelog")
    scene.send(range(130, 140), partitions=3)
    assert scene.run(schema=f"{SCHEMA}, new INT").figures["rows"] == 10
    assert scene.run(schema=f"{SCHEMA}, new INT").figures["rows"] == 0
    rows = scene.rows()
    assert sorted(row.key.decode() for row in rows) == keys(140)
    assert all(row.headers[0].value == row.key[1:] and row.topic == scene.topic for row in rows)
    found = {int(row.key[1:]): (row.id, row.city, row.new, row.error) for row in rows}
    assert [found[number] for number in (5, 105, 109, 135)] == [
        (None, None, None, None),
        (105, "Ulm", None, None),
        (None, None, None, "not JSON"),
        (135, "Ulm", 1, None),
    ]


def test_continuous_until_interrupted_and_on_from_there(scene: Scene) -> None:
    def meanwhile() -> None:
        scene.wait_for(30)
        scene.send(range(30, 50))
        scene.wait_for(50)

    scene.send(range(30))
    outcome = scene.run_until(meanwhile)
    assert outcome.summary.endswith("bad and kept aside; stopped, the same command continues from here")
    assert (outcome.figures["rows"], outcome.figures["bad_rows"], outcome.exit_code) == (50, 5, 0)
    assert scene.spark.streams.active == []
    scene.send(range(50, 60))
    assert "0 messages" in scene.run(CtrlC(), continuous=True, trigger_seconds=3600.0).summary
    assert scene.run().figures["rows"] == 10
    assert scene.keys() == keys(60)


def test_several_topics_in_turns_each_to_a_table_by_its_name(scene: Scene) -> None:
    names = scene.topic, create_topic(scene.bootstrap, f"archive-{token_hex(4)}", partitions=1)
    first, second = (scene._replace(topic=name, place=scene.place / name) for name in names)

    def meanwhile() -> None:
        first.wait_for(20)
        second.wait_for(10)
        first.send(range(20, 30))
        first.wait_for(30)

    first.send(range(20))
    second.send(range(10), partitions=1)
    outcome = scene.run_until(meanwhile, topic=names)
    assert outcome.summary.startswith(f"40 messages of {names[0]}, {names[1]} archived, 4 of them bad")
    assert outcome.summary.endswith("stopped, the same command continues from here")
    second.send(range(10, 20), partitions=1)
    outcome = scene.run(topic=names)
    assert outcome.figures["rows"] == 10
    assert [outcome.figures[f"{name} positions"] for name in names] == ["0: 15, 1: 15", "0: 20"]
    assert (first.keys(), second.keys()) == (keys(30), keys(20))
    assert {row.topic for row in second.rows()} == {second.topic}


def test_what_is_refused_before_anything_is_read(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic):
        scene.run(topic=("no-such-topic",))
    with pytest.raises(InvalidArgument, match="has a field offset"):
        scene.run(schema="offset BIGINT")
    assert not scene.place.exists()
    other = create_topic(scene.bootstrap, f"archive-{token_hex(4)}")
    scene.send(range(2))
    scene.run()
    with pytest.raises(WrongSchema, match="has column id as int64, the pipeline writes string"):
        scene.run(schema="id STRING")
    with pytest.raises(WrongTable, match=f"is of topic {scene.topic}, not of topic {other}"):
        scene.run(topic=(other,))
    admin = AdminClient({"bootstrap.servers": scene.bootstrap, "log_level": 0})
    admin.delete_topics([scene.topic])[scene.topic].result()
    wait_until(lambda: scene.topic not in admin.list_topics().topics, "the topic is gone")
    create_topic(scene.bootstrap, scene.topic)
    with pytest.raises(WrongTable, match="is of topic_id"):
        scene.run()
    assert scene.keys() == keys(2)


def test_plain_parquet(scene: Scene) -> None:
    scene.send(range(20))
    outcome = scene.run(format="parquet")
    assert (outcome.figures["rows"], outcome.figures["bad_rows_in_all"]) == (20, 2)
    found = scene.spark.read.parquet(str(scene.place)).collect()
    assert sorted(row.key.decode() for row in found) == keys(20)
    with pytest.raises(WrongTable, match="every message would be written a second time"):
        scene.run(format="parquet", checkpoint=str(scene.place.parent / "other"))
    with pytest.raises(WrongTable, match="is not a table, and not empty"):
        scene.run()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"topic": ()}, "--topic is missing"),
        ({"topic": ("a", "a")}, "--topic names one topic twice"),
        ({"table": ""}, "--table is missing"),
        ({"schema": "a INT", "schema_file": "b"}, "give one of them"),
        ({"trigger_seconds": 0}, "--trigger-seconds"),
        ({"batch_rows": 0}, "--batch-rows"),
        ({"format": "avro"}, "--format is delta or parquet"),
        ({"retention_hours": 23}, "--retention-hours must be at least 24"),
        ({"kafka": ("sasl.username",)}, "--kafka sasl.username: expected NAME=VALUE"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        ArchiveOptions(**{"topic": ("orders",), "table": "lake/orders", **given})


# -- the checkpoint -----------------------------------------------------------------------------------------------------------


def plan(
    checkpoint: Path, number: int, end: int, *, begins: int | None = None, is_done: bool = True, topic: str = "orders"
) -> None:
    partition = TopicPartition(topic, 0)
    offset = StreamOffset({topic: bytes(range(16))}, {partition: end}, {} if begins is None else {partition: begins})
    for directory in ("offsets", "commits")[: 2 if is_done else 1]:
        (checkpoint / directory).mkdir(parents=True, exist_ok=True)
        text = "\n".join(["v1", json.dumps({"batchTimestampMs": 1}), json.dumps(offset.to_json())])
        (checkpoint / directory / str(number)).write_text(text)


def table_with(place: Path, count: int) -> LakeTable:
    table = ensure(place)
    if count:
        append(table, rows(0, count), count)
    return LakeTable.open(place)


@pytest.mark.parametrize("rows_left", [0, 5])
def test_a_table_that_was_removed_or_restored(tmp_path: Path, rows_left: int) -> None:
    checkpoint = tmp_path / "checkpoint"
    table = table_with(tmp_path / "table", rows_left)
    for number in (1, 2):
        plan(checkpoint, 0, 10)
        assert set_aside_if_ahead(table, checkpoint, "orders") == tmp_path / f"checkpoint.ahead-{number}"
        assert not checkpoint.exists()
    assert (tmp_path / "checkpoint.ahead-1" / "offsets" / "0").exists()


def test_a_checkpoint_that_is_not_ahead_stays(tmp_path: Path) -> None:
    table = table_with(tmp_path / "table", 10)
    checkpoint = tmp_path / "checkpoint"
    assert set_aside_if_ahead(table, checkpoint, "orders") is None
    plan(checkpoint, 0, 10)
    assert set_aside_if_ahead(table, checkpoint, "orders") is None
    plan(checkpoint, 1, 20, is_done=False)
    assert set_aside_if_ahead(table, checkpoint, "orders") is None, "the batch is done again, from 10"
    plan(tmp_path / "other", 0, 99, topic="payments")
    assert set_aside_if_ahead(table, tmp_path / "other", "orders") is None, "the source refuses it"


def test_a_first_batch_that_began_where_the_table_had_been(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    plan(checkpoint, 0, 20, begins=10, is_done=False)
    assert set_aside_if_ahead(table_with(tmp_path / "same", 10), checkpoint, "orders") is None
    assert set_aside_if_ahead(table_with(tmp_path / "empty", 0), checkpoint, "orders") is not None


def test_markers_at_the_end_are_noted_for_this_table_alone(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    table = table_with(tmp_path / "table", 10)
    plan(checkpoint, 0, 11)
    note_end(table, checkpoint, "orders")
    assert set_aside_if_ahead(table, checkpoint, "orders") is None
    assert set_aside_if_ahead(table_with(tmp_path / "other", 10), checkpoint, "orders") is not None
    plan(checkpoint, 0, 11)
    note_end(table, checkpoint, "orders")
    plan(checkpoint, 1, 12)
    assert set_aside_if_ahead(table, checkpoint, "orders") is not None, "nobody has noted that 12 is right"


def test_the_commits_of_another_run_are_not_its_own(tmp_path: Path) -> None:
    LakeTable.ensure(tmp_path / "table", archive_columns(None), partition_by=PARTITION_BY, identity={"kind": "archive"})
    version = 0
    for number, (run, count) in enumerate([(7, 100), (7, 5), (8, 20), (7, 6)]):
        LakeTable.open(tmp_path / "table").append([], {"t/0": number}, notes={"rows": count, "badRows": 1, "run": run})
        version = version or LakeTable.open(tmp_path / "table").version
    topic = FoundTopic("t", "", 1)
    found = {run: added_by(run, tmp_path / "table", version, topic) for run in (7, 8, 9)}
    assert {run: (added.rows, added.bad_rows) for run, added in found.items()} == {7: (11, 2), 8: (20, 1), 9: (0, 0)}
    assert found[9].positions == {0: 3}


# -- Parquet ------------------------------------------------------------------------------------------------------------------


def check(root: Path, *, written: Sequence[str], offsets: Sequence[str], commits: Sequence[str]) -> None:
    place, checkpoint = root / "files", root / "checkpoint"
    for log, names in (
        (place / "_spark_metadata", written),
        (checkpoint / "offsets", offsets),
        (checkpoint / "commits", commits),
    ):
        if names:
            log.mkdir(parents=True)
        for name in names:
            (log / name).write_text("")
    check_parquet_place(place, checkpoint)


@pytest.mark.parametrize(
    ("written", "offsets", "commits"),
    [
        ([], [], []),
        ([], ["0"], []),
        (["0"], ["0"], []),
        (["0"], ["0"], ["0"]),
        (["8", "9.compact", ".10.crc"], ["9", "10"], ["8", "9"]),
        (["9.compact", "10"], ["9", "10"], ["8", "9"]),
    ],
)
def test_whatever_a_crash_leaves_goes_on(tmp_path: Path, written: list[str], offsets: list[str], commits: list[str]) -> None:
    check(tmp_path, written=written, offsets=offsets, commits=commits)


@pytest.mark.parametrize(
    ("written", "offsets", "commits", "problem"),
    [
        (["0"], [], [], "does not know them"),
        (["9.compact"], ["8"], ["8"], "does not know them"),
        (["9.compact", "10"], ["0"], [], "does not know them"),
        ([], ["3"], ["3"], "their messages would be missing"),
        (["2"], ["4"], ["3"], "their messages would be missing"),
    ],
)
def test_another_checkpoint_is_refused(
    tmp_path: Path, written: list[str], offsets: list[str], commits: list[str], problem: str
) -> None:
    with pytest.raises(WrongTable, match=problem):
        check(tmp_path, written=written, offsets=offsets, commits=commits)
