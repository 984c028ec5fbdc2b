"""From a topic to a table and back, on a real broker: the same messages in the same order, each once, whatever dies meanwhile.

Rows of an archive as messages, on a small frame: which of them, in which order, with what.
"""

import json
import os
import random
import secrets
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere with Spark

from tests.spark.pipelines.archived import FIRST_MS, archive, send, send_in_transactions
from tests.spark.sink.reader import committed_messages
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.spark.pipelines import archive as archive_pipeline
from tidelog.spark.pipelines.offset_ranges import OffsetRange
from tidelog.spark.pipelines.pipeline import PipelineFailed, PipelineOutcome, Silent
from tidelog.spark.pipelines.replay.pipeline import (
    ReplayOptions,
    ReplaySelection,
    counted,
    is_within,
    messages,
    run,
    selected,
    time_ms,
)
from tidelog.spark.pipelines.replay.plan import ReplayPlanFile
from tidelog.spark.tables.errors import TableMissing

ROWS = 300
PARTITIONS = 3
KEPT = {"retention.ms": "-1"}
DRIVER_SECONDS_MAX = 240.0


def new_topic(kafka: ToolkitBroker, *, partitions: int = PARTITIONS, config: Mapping[str, str] = KEPT) -> str:
    return create_topic(kafka.bootstrap, f"replay-{secrets.token_hex(4)}", partitions=partitions, config=config)


@pytest.fixture
def source(kafka: ToolkitBroker) -> str:
    name = new_topic(kafka)
    send(kafka.bootstrap, name, range(ROWS), partitions=PARTITIONS)
    send_in_transactions(kafka.bootstrap, name, range(ROWS, ROWS + 40))
    return name


def replay(spark: SparkSession, kafka: ToolkitBroker, table: Path, topic: str, **given: Any) -> PipelineOutcome:
    return run(spark, ReplayOptions(table=str(table), topic=topic, bootstrap=kafka.bootstrap, **given), Silent())


def whole(message: Any) -> tuple[Any, ...]:
    return message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1]


def by_partition(kafka: ToolkitBroker, topic: str) -> dict[int, list[Any]]:
    found = defaultdict(list)
    for message in committed_messages(kafka.bootstrap, topic):
        found[message.partition()].append(whole(message))
    return dict(found)


def by_key(kafka: ToolkitBroker, topic: str) -> dict[bytes | None, list[Any]]:
    found = defaultdict(list)
    for sent in by_partition(kafka, topic).values():
        for message in sent:
            found[message[0]].append(message)
    return dict(found)


def test_there_and_back(spark: SparkSession, kafka: ToolkitBroker, source: str, tmp_path: Path) -> None:
    table, target = tmp_path / "table", new_topic(kafka)
    # Values are no JSON: all of them are bad, and come back all the same.
    options = archive_pipeline.ArchiveOptions(
        topic=(source,), table=str(table), bootstrap=kafka.bootstrap, schema="id BIGINT NOT NULL"
    )
    archive_pipeline.run(spark, options, Silent())
    dry = replay(spark, kafka, table, target, chunk_rows=100, dry_run=True)
    assert dry.summary == f"{ROWS + 20} rows would be sent to {target}, in 4 chunks; nothing was sent"
    found = replay(spark, kafka, table, target, chunk_rows=100)
    assert found.summary == f"{ROWS + 20} rows sent to {target}"
    assert (found.figures["chunks"], found.figures["partitions"]) == (4, "the same as in the archive")
    assert by_partition(kafka, target) == by_partition(kafka, source)
    again = replay(spark, kafka, table, target)
    assert "was done before" in again.summary
    assert again.figures["sent by this run"] == 0
    assert len(committed_messages(kafka.bootstrap, target)) == ROWS + 20


def test_a_part_of_it_by_key(spark: SparkSession, kafka: ToolkitBroker, source: str, tmp_path: Path) -> None:
    table, target = archive(tmp_path / "table", kafka.bootstrap, source), new_topic(kafka, partitions=2)
    moment = datetime.fromtimestamp((FIRST_MS + 30_000) / 1000, UTC).isoformat()
    given: dict[str, Any] = {"from_time": moment, "to_time": str(FIRST_MS + 250_000), "key": ("k1", "k2"), "chunk_rows": 20}
    found = replay(spark, kafka, table, target, offsets=("0", "2:5-80"), **given)
    assert found.figures["partitions"] == "by key"
    wanted = defaultdict(list)
    for message in committed_messages(kafka.bootstrap, source):
        is_in = message.partition() == 0 or (message.partition() == 2 and 5 <= message.offset() < 80)
        is_in &= FIRST_MS + 30_000 <= message.timestamp()[1] < FIRST_MS + 250_000
        if is_in and message.key() in (b"k1", b"k2"):
            wanted[message.partition(), message.key()].append(whole(message))
    sent = by_key(kafka, target)
    assert sum(map(len, sent.values())) == sum(map(len, wanted.values())) == found.figures["rows"]
    for (_, key), expected in wanted.items():
        assert [message for message in sent[key] if message in expected] == expected, "in the order of its partition"


def test_a_driver_that_is_killed(spark: SparkSession, kafka: ToolkitBroker, source: str, tmp_path: Path) -> None:
    table, target = archive(tmp_path / "table", kafka.bootstrap, source), new_topic(kafka)
    given = {"table": str(table), "topic": target, "bootstrap": kafka.bootstrap, "chunk_rows": 90}
    text = json.dumps({"options": given, "local": str(tmp_path / "local")})
    root = str(Path(__file__).parents[4])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.spark.pipelines.replay.driver", text]
    with (tmp_path / "driver.out").open("wb") as output:
        ended = subprocess.run(
            command, cwd=root, env=environment, stdout=output, stderr=output, timeout=DRIVER_SECONDS_MAX, check=False
        )
    assert ended.returncode == -9, (tmp_path / "driver.out").read_text()
    # The next one dies after a chunk was committed, before it could write that down.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplayPlanFile, "note", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            replay(spark, kafka, table, target)
    found = replay(spark, kafka, table, target)
    assert by_partition(kafka, target) == by_partition(kafka, source)
    assert "rows of the plan sent" in found.summary
    (plan,) = (table / "_tidelog" / "replays").glob("*.json")
    first_chunk_rows, _ = json.loads(plan.read_text())["chunks"][0]
    assert found.figures["sent before"] == first_chunk_rows, "the second was sent, and not written down"


def test_what_is_refused_before_anything_is_sent(spark: SparkSession, kafka: ToolkitBroker, source: str, tmp_path: Path) -> None:
    table = archive(tmp_path / "table", kafka.bootstrap, source)
    with pytest.raises(UnknownTopic, match=r"topic nowhere: .*create it first"):
        replay(spark, kafka, table, "nowhere")
    with pytest.raises(PipelineFailed, match=r"would see these messages a second time.*--same-topic"):
        replay(spark, kafka, table, source)
    stamping = new_topic(kafka, config={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(PipelineFailed, match=r"LogAppendTime.*--new-timestamps"):
        replay(spark, kafka, table, stamping)
    with pytest.raises(TableMissing):
        replay(spark, kafka, tmp_path / "none", source)
    assert not (table / "_tidelog").exists()
    assert "would be sent" in replay(spark, kafka, table, source, same_topic=True, dry_run=True).summary
    assert "nothing to replay" in replay(spark, kafka, table, stamping, new_timestamps=True, from_time="2040-01-01").summary
    assert committed_messages(kafka.bootstrap, stamping) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": 0}, "--rate is rows a second"),
        ({"chunk_rows": 0}, "--chunk-rows must be at least 1"),
        ({"from_time": "noon"}, "--from-time is a time such as"),
        ({"from_time": "2026-01-02", "to_time": "2026-01-02T00:00:00+00:00"}, "is not before --to-time"),
        ({"offsets": ("0-5",)}, "--offsets is a partition and offsets"),
        ({"id": "a/b"}, "--id has up to 64"),
        ({"topic": ""}, "--topic is missing"),
        ({"kafka": ("x",)}, "--kafka x: expected NAME=VALUE"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        ReplayOptions(**{"table": "t", "topic": "again", **given})


# -- rows ---------------------------------------------------------------------------------------------------------------------


SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, partition int, offset bigint, "
    "timestamp timestamp, bad boolean"
)
MOMENT = datetime(2026, 1, 5, 12, tzinfo=UTC)
MOMENT_MS = int(MOMENT.timestamp() * 1000)


def table(spark: SparkSession) -> DataFrame:
    """Two partitions of 40, out of order. A second between messages; key 1 of 4; every tenth is bad."""
    rows: list[Any] = [
        (b"%d" % (offset % 4), b"%d" % offset, None, partition, offset, MOMENT + timedelta(seconds=offset), offset % 10 == 9)
        for partition in range(2)
        for offset in range(40)
    ]
    random.Random(1).shuffle(rows)
    return spark.createDataFrame(rows, SCHEMA)


def test_which_rows(spark: SparkSession) -> None:
    rows = table(spark)
    chosen = {
        "time": ReplaySelection(from_ms=MOMENT_MS + 5_000, to_ms=MOMENT_MS + 8_000),
        "offsets": ReplaySelection(ranges=(OffsetRange(0, 38, 99), OffsetRange(1, 0, 2))),
        "keys": ReplaySelection(keys=("1", "3"), ranges=(OffsetRange(1, 0, 8),)),
        "good": ReplaySelection(is_good_only=True, ranges=(OffsetRange(0, 7, 12),)),
    }
    parts = [
        selected(rows, selection).select(F.lit(name).alias("name"), "partition", "offset") for name, selection in chosen.items()
    ]
    found = parts[0].union(parts[1]).union(parts[2]).union(parts[3]).collect()
    assert sorted(map(tuple, found)) == sorted(
        [("time", partition, offset) for partition in range(2) for offset in (5, 6, 7)]
        + [("offsets", 0, 38), ("offsets", 0, 39), ("offsets", 1, 0), ("offsets", 1, 1)]
        + [("keys", 1, offset) for offset in (1, 3, 5, 7)]
        + [("good", 0, offset) for offset in (7, 8, 10, 11)]
    )


def test_a_partition_is_one_task_in_order(spark: SparkSession) -> None:
    rows = table(spark).repartition(4).where(is_within([OffsetRange(0, 0, 30), OffsetRange(1, 3, 40)]))
    sent = messages(rows, keeps_partitions=True, keeps_timestamps=True)
    assert sent.columns == ["key", "value", "headers", "partition", "timestamp"]
    found = sent.withColumn("task", F.spark_partition_id()).collect()
    for partition, offsets in ((0, range(30)), (1, range(3, 40))):
        of_partition = [row for row in found if row.partition == partition]
        assert [int(row.value) for row in of_partition] == list(offsets)
        assert len({row.task for row in of_partition}) == 1
    assert messages(rows, keeps_partitions=False, keeps_timestamps=False).columns == ["key", "value", "headers"]


def test_how_many_there_are_where(spark: SparkSession) -> None:
    found = counted(table(spark).where("offset != 20"), 20).orderBy("partition", "first").collect()
    assert [tuple(row) for row in found] == [
        (partition, first, last, rows, MOMENT_MS + 1000 * first)
        for partition in range(2)
        for first, last, rows in ((0, 19, 20), (21, 39, 19))
    ]


def test_times_as_users_write_them() -> None:
    for text in ("2026-01-05T12:00", "2026-01-05 12:00:00Z", "2026-01-05T13:00+01:00", str(MOMENT_MS)):
        assert time_ms("--from-time", text) == MOMENT_MS
    with pytest.raises(InvalidArgument, match="--from-time is a time such as"):
        time_ms("--from-time", "yesterday")
